"""What the tests of jobs share: a folder with job files and scripts, and fabricctl in it."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

FABRICCTL = os.environ["FABRICCTL"]
FABRICD = os.environ["FABRICD"]
TIMEOUT = 60  # seconds for what takes a fraction of one: the machine may be loaded

DEVICES = """
[[device]]
name = "gpu0"
kind = "gpu"
gflops = 30
memory = "1GiB"
link_gbytes_per_s = 10
[[device]]
name = "cpu0"
kind = "cpu"
gflops = 10
memory = "1GiB"
link_gbytes_per_s = 10
"""


def wait_until(condition, what):
    """Polls, since processes are not ours to wait for."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(what)


def exists(pid):
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class JobTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fabric-jobs-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.jobs = self.folder / "jobs"
        self.environment = {**os.environ, "FABRIC_JOBS_DIR": str(self.jobs),
                            "FABRIC_ADMIN_SOCKET": str(self.folder / "none.sock")}
        # Every process of these tests has it in its environment: what is left is found by it.
        self.mark = f"FABRIC_TEST_MARK={self.folder.name}"
        self.environment.update([self.mark.split("=")])
        self.addCleanup(self.kill_marked)

    def script(self, text, name="script.sh"):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def job(self, script, *lines, name="a", ranks=(2,), more=""):
        """A job file of groups of processors; `lines` are of [job]."""
        groups = "".join(f'[[group]]\nkind = "cpu"\nranks = {count}\n' for count in ranks)
        path = self.folder / f"{name}.toml"
        if not any("adopt_within" in line for line in lines):
            lines = (*lines, 'adopt_within = "300ms"')
        path.write_text(f'[job]\nname = "{name}"\nscript = "{script}"\ninterpreter = ""\ngrace = "300ms"\n'
                        + "".join(f"{line}\n" for line in lines) + groups + more)
        return path

    def ctl(self, *words, check=None):
        done = subprocess.run([FABRICCTL, "jobs", *map(str, words)], capture_output=True, text=True,
                              env=self.environment, cwd=self.folder, timeout=TIMEOUT, check=False)
        if check is not None:
            self.assertEqual(done.returncode, check, done.stdout + done.stderr)
        return done

    def start(self, *words):
        """fabricctl in the background; ended with the test."""
        process = subprocess.Popen([FABRICCTL, "jobs", *map(str, words)], env=self.environment, cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self._reap, process)
        return process

    @staticmethod
    def _reap(process):
        process.kill()
        process.communicate()

    def edges(self, job):
        """(state, reason) of each, and of the end (outcome, code, reason)."""
        return [tuple(line.split(" ", 2)[1:]) for line in (self.jobs / str(job) / "journal").read_text().splitlines()]

    def states(self, job):
        try:
            return [edge[0] for edge in self.edges(job)]
        except FileNotFoundError:
            return []

    def record(self, job):
        return json.loads(self.ctl("show", job, "--json", check=0).stdout)

    def marked(self):
        """The processes of this test that run, but for itself."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                if self.mark.encode() in variables and exists(int(folder.name)):
                    found.append(int(folder.name))
        return found

    def named(self, word):
        """Those with this word in their command line, which have not ended meanwhile."""
        found = []
        for pid in self.marked():
            with contextlib.suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def kill_marked(self):
        for pid in self.marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def assert_nothing_left(self):
        wait_until(lambda: not self.marked(), "processes were left behind")


class DaemonJobTest(JobTest):
    """With a fabricd that has DEVICES."""

    def setUp(self):
        super().setUp()
        runtime = tempfile.TemporaryDirectory(prefix="fabricd-jobs-")
        self.addCleanup(runtime.cleanup)
        self.admin = Path(runtime.name) / "admin.sock"
        (self.folder / "d.toml").write_text(DEVICES)
        self.daemon_environment = dict(os.environ)
        self.prepare()
        self.daemon = subprocess.Popen([FABRICD, "--config", os.devnull, "--server-runtime-dir", runtime.name,
                                        "--pool-capacity", "256MiB", "--devices-file", self.folder / "d.toml"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env=self.daemon_environment)
        self.addCleanup(self._reap, self.daemon)
        wait_until(lambda: self.ctl("leaks", "--socket", self.admin).returncode == 0 and self.admin.exists(),
                   "fabricd did not start")

    def prepare(self):
        """What a test changes of the device file or of the daemon's environment."""
