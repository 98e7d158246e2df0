"""Scripts for one process, run by one process and by fabricrun --wrap."""

import os
import runpy
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TIMEOUT = 100


def need_torch():
    try:
        import torch
    except ImportError as error:
        fabric_test.skip(error)
    torch.set_num_threads(1)  # for equal bits


class WrapCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fabric-wrap-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def script(self, text, name="script.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def alone(self, script):
        """What one process makes of a script: its checkpoint. A child of this process, which has torch already."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                os.chdir(self.folder)
                sys.argv = [str(script), str(self.folder / "alone")]
                with open(os.devnull, "w") as sys.stdout:
                    runpy.run_path(str(script), run_name="__main__")
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0, f"{script} alone")
        return self.load("alone")

    def wrapped(self, script, ranks, *options, code=0):
        """What fabricrun printed, on both outputs."""
        return self.start([sys.executable, "-m", "fabricshm.run", "--wrap", "--nproc-per-node", str(ranks), "--prefix",
                           *options, str(script), str(self.folder / "wrapped")], code)

    def start(self, command, code=0):
        done = subprocess.run(command, cwd=self.folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=TIMEOUT,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def load(self, name):
        import torch
        flat = {}
        for key, value in torch.load(self.folder / name).items():
            flat.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
        return flat

    def compare(self, script, ranks, tolerance, *options):
        """The job's checkpoint against that of one process; returns what the job printed."""
        import torch
        expected = self.alone(script)
        done = self.wrapped(script, ranks, *options)
        found = self.load("wrapped")
        self.assertEqual(found.keys(), expected.keys())
        for key, value in expected.items():
            away = (found[key].double() - value.double()).abs().max().item()
            self.assertLessEqual(away, tolerance, f"{key}, {ranks} ranks")
            self.assertTrue(torch.isfinite(value).all())
        return done


def main():
    need_torch()
    fabric_test.daemon_or_skip()
    fabric_test.main()
