#!/usr/bin/env python3
"""Runs PyTorch's own DistributedTest against a backend and compares with what gloo passes.

  run.py --backend gloo --record          writes gloo_passes.txt: what passes here with gloo
  run.py --backend fabricshm              runs that list; exit code 1 if any test of it fails
  run.py --backend fabricshm --shard 1/2  one half of it
  run.py --backend fabricshm --only test_all_reduce_sum --world 3 --verbose
  run.py --backend fabricshm --decorators mpi --record      writes beyond_gloo.txt

A line of a list is "world decorators name seconds"; `decorators` is the backend for which the
suite's skip conditions are evaluated. With those of mpi it also runs the collectives that gloo
lacks (all_to_all); what fabricshm passes of them is in beyond_gloo.txt and is run with the list.
"""

import argparse
import multiprocessing
import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]

import suite  # noqa: E402
from embedded_fabric import fabric_for  # noqa: E402
from worker import Job, run_all  # noqa: E402

ARENA_BYTES = 64 << 20  # of a test; the suite's tensors are small
LIST = os.path.join(HERE, "gloo_passes.txt")
BEYOND_GLOO = os.path.join(HERE, "beyond_gloo.txt")  # what fabricshm passes and gloo lacks
WORLDS = (2, 3, 4)  # PyTorch's CI uses 3 for gloo; some tests want an even number, or four


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="fabricshm", help="gloo or fabricshm")
    parser.add_argument("--only", action="append", metavar="NAME", help="these tests (repeatable)")
    parser.add_argument("--world", type=int, help="ranks (default: 2, 3 and 4)")
    parser.add_argument("--decorators", default="gloo", help="with --only: see above")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--list", action="store_true", help="print what would run and stop")
    parser.add_argument("--record", action="store_true", help="run everything, write the list")
    parser.add_argument("--timeout", type=int, default=100, help="seconds per test (100)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at the same time (2)")
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    return parser.parse_args()


def read_list(path):
    """Recorded passes: {Job: seconds}."""
    passes = {}
    with open(path) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                world, decorators, name, seconds = line.split()
                passes[Job(name, int(world), decorators)] = float(seconds)
    return passes


def write_list(passes, path):
    with open(path, "w") as file:
        file.write("# Tests of PyTorch's DistributedTest that pass; written by run.py --record.\n")
        file.write("# world decorators name seconds\n")
        for job in sorted(passes, key=lambda job: (job.decorators, job.world, job.name)):
            file.write(f"{job.world} {job.decorators} {job.name} {passes[job]:.1f}\n")


def take_shard(jobs, text):
    """The I-th of N parts with about the same time each: every N-th, the slowest first."""
    index, count = (int(part) for part in text.split("/"))
    if not 1 <= index <= count:
        sys.exit(f"--shard {text}: the first number is between 1 and the second")
    return jobs[index - 1 :: count]


def choose_jobs(options):
    if options.only:
        worlds = [options.world] if options.world else WORLDS
        return [Job(name, world, options.decorators) for world in worlds for name in options.only]
    passes = read_list(LIST)
    if options.backend != "gloo":
        passes.update(read_list(BEYOND_GLOO))
    if options.world:
        passes = {job: seconds for job, seconds in passes.items() if job.world == options.world}
    slowest_first = sorted(passes, key=lambda job: (-passes[job], job))
    shard = take_shard(slowest_first, options.shard)
    # Jobs of one world size share workers, so they stay together.
    return sorted(shard, key=lambda job: (job.decorators, job.world, -passes[job]))


class Report:
    """Prints outcomes as they come and counts them."""

    def __init__(self, total, verbose):
        self.outcomes = []
        self._total = total
        self._verbose = verbose
        self._started = time.monotonic()

    def __call__(self, outcome):
        self.outcomes.append(outcome)
        job = outcome.job
        if self._verbose or outcome.status == "fail":
            reason = f"  ({outcome.detail})" if outcome.status == "skip" else ""
            print(
                f"{outcome.status:4} {outcome.seconds:6.1f} s  {job.name}"
                f"  [{job.world} ranks]{reason}",
                flush=True,
            )
        elif len(self.outcomes) % 25 == 0:
            elapsed = time.monotonic() - self._started
            print(f"{len(self.outcomes)} of {self._total}, {elapsed:.0f} s", flush=True)
        if outcome.status == "fail":
            print("    " + outcome.detail.strip().replace("\n", "\n    "), flush=True)

    def jobs(self, status):
        return [outcome.job for outcome in self.outcomes if outcome.status == status]

    def passes(self):
        return {o.job: o.seconds for o in self.outcomes if o.status == "pass"}

    def seconds(self):
        return time.monotonic() - self._started


def prepare_for(backend):
    """What a worker does before the suite is imported. Torch is there already, from the parent."""

    def prepare():
        if backend != "gloo":
            __import__(f"{backend}.torch")

    return prepare


def record(options, prepare):
    """Runs every test at every world size; writes what passed, or what gloo does not."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        names = pool.apply(suite.test_names)
    path, known = LIST, set()
    if options.backend != "gloo":
        path, known = BEYOND_GLOO, {job.name for job in read_list(LIST)}
    worlds = [options.world] if options.world else WORLDS
    names = [name for name in names if name not in known]
    jobs = [Job(name, world, options.decorators) for world in worlds for name in names]
    report = Report(len(jobs), options.verbose)
    run(jobs, options, prepare, report)
    write_list(report.passes(), path)
    print(f"{len(report.passes())} passes of {len(jobs)} written to {os.path.basename(path)}")
    return 0


def run(jobs, options, prepare, report):
    with fabric_for(options.backend, ARENA_BYTES, arenas=2 * options.jobs):
        run_all(jobs, options.backend, options.timeout, options.jobs, prepare, report)


def summarise(report, options):
    """Prints both counts and returns the exit code."""
    passed, failed, skipped = (report.jobs(status) for status in ("pass", "fail", "skip"))
    wanted = sum(outcome.job.decorators == "gloo" for outcome in report.outcomes)
    print(
        f"\ngloo passes {wanted} of these {len(report.outcomes)} tests; {options.backend}: "
        f"{len(passed)} pass, {len(failed)} fail, {len(skipped)} skip; {report.seconds():.0f} s"
    )
    for title, jobs in (("failed", failed), ("skipped, but on the list", skipped)):
        if jobs:
            print(f"{title}:")
            for job in sorted(jobs):
                print(f"  {job.name} [{job.world} ranks, {job.decorators}]")
    return 1 if failed or skipped else 0


def main():
    options = parse_arguments()
    if options.list:
        for job in choose_jobs(options):
            print(job.world, job.decorators, job.name)
        return 0
    try:
        import torch
    except ImportError:
        print("skipped: this Python has no torch (Debian: python3-torch)")
        return 77
    torch.set_num_threads(1)  # also keeps the parent free of threads, which forks would lose
    prepare = prepare_for(options.backend)
    if options.record:
        return record(options, prepare)
    jobs = choose_jobs(options)
    report = Report(len(jobs), options.verbose)
    run(jobs, options, prepare, report)
    return summarise(report, options)


if __name__ == "__main__":
    sys.exit(main())
