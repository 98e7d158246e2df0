#!/usr/bin/python3
"""scripts/setup waits for another apt that runs, and installs for the demo what the demo needs."""

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


def apt_calls(option):
    """What scripts/setup calls apt-get with, on a machine that has none of the packages."""
    with tempfile.TemporaryDirectory() as folder:
        for name, body in PROGRAMS.items():
            program = Path(folder) / name
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
        calls = Path(folder) / "calls"
        environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", CALLS=str(calls))
        done = subprocess.run([SETUP, option], env=environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        return calls.read_text().splitlines()


class Setup(unittest.TestCase):
    def test_apt_waits_for_the_lock_of_another_one(self):
        made = apt_calls("--minimal")
        self.assertEqual(["update" in call or "install" in call for call in made], [True, True])
        for call in made:
            self.assertRegex(call, r"^-o DPkg::Lock::Timeout=[1-9]\d*00 ")

    def test_the_demo_needs_no_machines_and_no_peers(self):
        packages = apt_calls("--demo")[-1].split()
        for needed in ("g++", "libgrpc++-dev", "libtorch-dev", "dataset-fashion-mnist"):
            self.assertIn(needed, packages)
        for other in ("qemu-system-x86", "mpich", "openmpi-bin", "python3-matplotlib", "spin", "clang-tidy"):
            self.assertNotIn(other, packages)


if __name__ == "__main__":
    unittest.main()
