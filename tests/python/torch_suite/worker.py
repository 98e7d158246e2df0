"""A process that runs tests of the suite one after another, and the pool of them.

Each test of the suite forks its ranks from a worker. A worker that hangs or dies costs one test: its
process group is killed and a new worker takes the rest.
"""

import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections import namedtuple

import suite

Job = namedtuple("Job", "name world decorators")
Outcome = namedtuple("Outcome", "job status seconds detail")  # status: pass, skip or fail
GRACE_SECONDS = 30  # beyond the suite's own timeout, before the worker itself counts as hung


class Worker:
    """One forked process that serves jobs of one world size."""

    pipes = []  # this process's ends; a new worker must not keep the others' alive

    def __init__(self, backend, decorators, world, timeout, prepare):
        self.key = (decorators, world)
        self.job = None
        self.deadline = None
        self._timeout = timeout
        self._folder = tempfile.mkdtemp(prefix="torch-suite-")
        self.pipe, theirs = multiprocessing.Pipe()
        self.pipes.append(self.pipe)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            for pipe in self.pipes:
                pipe.close()
            serve_and_exit(theirs, self._folder, (backend, decorators, world, timeout), prepare)
        theirs.close()

    def start(self, job):
        self.job = job
        self.deadline = time.monotonic() + self._timeout + GRACE_SECONDS
        self.pipe.send(job)

    def collect(self):
        """The outcome of the job, or None while it runs."""
        job = self.job
        try:
            if self.pipe.poll():
                outcome = self.pipe.recv()
                self.job = None
                return outcome
        except (EOFError, ConnectionError):
            return Outcome(job, "fail", 0.0, "the worker died\n" + self.log())
        if time.monotonic() > self.deadline:
            return Outcome(job, "fail", float(self._timeout), "hung\n" + self.log())
        return None

    def log(self):
        return read_tail(os.path.join(self._folder, "log"))

    def stop(self):
        """Ends the worker, its ranks and its files."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)
        self.pipes.remove(self.pipe)
        self.pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def serve_and_exit(pipe, folder, arguments, prepare):
    """The life of a worker. Its own process group lets the pool end it together with its ranks."""
    os.setsid()
    status = 1
    try:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        redirect(os.path.join(folder, "log"))
        prepare()
        case = suite.load_suite(*arguments)
        while True:
            pipe.send(run_job(case, pipe.recv(), folder))
    except (EOFError, KeyboardInterrupt):
        status = 0
    except BaseException:  # reported through the log, which the pool shows
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def redirect(path):
    """Sends what this process and its ranks print to `path`."""
    log = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def run_job(case, job, folder):
    os.truncate(os.path.join(folder, "log"), 0)
    result = unittest.TestResult()
    before = time.monotonic()
    try:
        case(job.name).run(result)
    except Exception:  # a broken setUp of the suite is a failure of this test, not of the worker
        result.errors.append((None, traceback.format_exc()))
    seconds = time.monotonic() - before
    sys.stdout.flush()
    sys.stderr.flush()
    problems = result.errors + result.failures
    if problems:
        log = read_tail(os.path.join(folder, "log"))
        return Outcome(job, "fail", seconds, problems[0][1] + "\n" + log)
    if result.skipped:
        return Outcome(job, "skip", seconds, result.skipped[0][1])
    return Outcome(job, "pass", seconds, "")


def read_tail(path, length=6000):
    try:
        with open(path, errors="replace") as file:
            return file.read()[-length:]
    except OSError:
        return ""


def run_all(jobs, backend, timeout, width, prepare, report):
    """Runs `jobs` on up to `width` workers at a time; calls `report(outcome)` for each, as it ends."""
    waiting = list(reversed(jobs))
    workers = []
    try:
        while waiting or workers:
            while waiting and len(workers) < width:
                job = waiting.pop()
                worker = Worker(backend, job.decorators, job.world, timeout, prepare)
                worker.start(job)
                workers.append(worker)
            multiprocessing.connection.wait([worker.pipe for worker in workers], timeout=1)
            for worker in list(workers):
                outcome = worker.collect()
                if outcome is None:
                    continue
                report(outcome)
                alive = worker.job is None
                same = alive and waiting and (waiting[-1].decorators, waiting[-1].world) == worker.key
                if same:
                    worker.start(waiting.pop())
                else:
                    workers.remove(worker)
                    worker.stop()
    finally:
        for worker in workers:
            worker.stop()
