#!/usr/bin/python3
"""scripts/setup waits for another apt that runs, instead of failing meanwhile."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "scripts/setup"

# Stand-ins: nothing is installed, and there are no kernels for this architecture.
PROGRAMS = {
    "apt-get": 'echo "$@" >> "$CALLS"',
    "dpkg-query": "exit 1",
    "dpkg": "echo riscv64",
    "sudo": 'exec "$@"',
}


class Setup(unittest.TestCase):
    def test_apt_waits_for_the_lock_of_another_one(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, body in PROGRAMS.items():
                program = Path(folder) / name
                program.write_text(f"#!/bin/sh\n{body}\n")
                program.chmod(0o755)
            calls = Path(folder) / "calls"
            environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", CALLS=str(calls))
            done = subprocess.run([SETUP, "--minimal"], env=environment, capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            made = calls.read_text().splitlines()
            self.assertEqual(["update" in call or "install" in call for call in made], [True, True])
            for call in made:
                self.assertRegex(call, r"^-o DPkg::Lock::Timeout=[1-9]\d*00 ")


if __name__ == "__main__":
    unittest.main()
