"""bench/compare.py that is ended before its time leaves no process and no file."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = Path(__file__).resolve().parents[3] / "bench" / "compare.py"
BUILD = Path(os.environ["FABRICD"]).parents[1]
TIMEOUT = 100


def command_lines(mark):
    """Of the processes that carry `mark` in their environment, by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
        except OSError:
            pass  # ended meanwhile, or not ours
    return found


class Interrupted(unittest.TestCase):
    def setUp(self):
        self._folder = TemporaryDirectory(prefix="fabric-bench-test-")
        self.addCleanup(self._folder.cleanup)
        self.folder = Path(self._folder.name)
        name = "FABRIC_TEST_MARK"
        self.mark = f"{name}={self.folder.name}"
        self.environment = {**os.environ, name: self.folder.name, "TMPDIR": str(self.folder),
                            "PYTHONDONTWRITEBYTECODE": "1"}

    def eventually(self, condition, text):
        limit = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), limit, text)
            time.sleep(0.02)

    def started(self):
        """A run without end whose ranks are at work."""
        process = subprocess.Popen(
            [sys.executable, PROGRAM, "--build", BUILD, "--quick", "--ranks", "2", "--sizes", "8Ki",
             "--collectives", "allreduce", "--contenders", "fabric", "--rounds", "1000000"],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        def at_work():
            self.assertIsNone(process.poll(), "it ended by itself")
            lines = command_lines(self.mark).values()
            return any(b"bench_fabric_driver" in line for line in lines)
        self.eventually(at_work, "no ranks")
        self.assertTrue(any(b"fabricd\0" in line for line in command_lines(self.mark).values()))
        return process

    def test_sigterm_ends_all_of_it(self):
        process = self.started()
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGTERM)
        self.assertEqual(command_lines(self.mark), {})
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_nothing_survives_it_when_it_is_killed(self):
        process = self.started()
        process.kill()
        process.wait(TIMEOUT)
        self.eventually(lambda: not command_lines(self.mark), "processes are left")


if __name__ == "__main__":
    unittest.main()
