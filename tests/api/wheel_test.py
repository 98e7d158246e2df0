#!/usr/bin/python3
"""scripts/wheel: what it makes installs into a virtual environment by pip alone and runs ranks there. With a daemon of
the build, since a wheel has none."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FABRIC_BUILD_DIR", ROOT / "build/release")).resolve()
SCRIPT = """
import os, sys
import fabricshm

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if "{venv}" not in fabricshm.__file__:
    sys.exit("not the wheel's: " + fabricshm.__file__)
with fabricshm.Session() as session:
    arena = session.arena("wheel", bytes=16 << 20)
    values = arena.zeros(1000, "float32")
    values += rank + 1
    arena.join("sums", rank, world).all_reduce(values)
    if not (values == 3).all():
        sys.exit("wrong sum")
print("the sum of rank", rank, "is right")
"""


def lacks():
    """What a wheel is made and installed with."""
    if not (BUILD / "python/fabricshm/_fabricshm.so").exists():
        return "the build has no Python module"
    for module in ("wheel", "pip", "venv"):
        if subprocess.run([sys.executable, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode:
            return f"{sys.executable} has no module {module}"
    return ""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="fabric-wheel-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([ROOT / "scripts/wheel", "--build", BUILD, "--folder", cls.folder], check=True,
                       stdout=subprocess.DEVNULL)
        cls.wheel, = glob.glob(f"{cls.folder}/*.whl")

    def test_has_what_a_client_needs_and_no_more(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        self.assertIn("fabricshm/run.py", names)
        self.assertTrue(any(name.startswith("fabricshm.libs/libfabricshm.so.") for name in names))
        self.assertFalse([name for name in names if "torch" in Path(name).parts or "__pycache__" in name])
        self.assertLess(os.path.getsize(self.wheel), 4 << 20)

    def test_ranks_run_in_a_virtual_environment_and_pip_removes_all_of_it(self):
        venv = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", venv], check=True)
        pip = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check"]
        # Debian's own package, where it is installed, is another environment's.
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", self.wheel], check=True)
        script = self.folder / "sums.py"
        script.write_text(SCRIPT.format(venv=venv))
        environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder),
                       "FABRICD": str(BUILD / "fabricd/fabricd"), "OMP_NUM_THREADS": "1"}
        ran = subprocess.run([venv / "bin/fabricrun", "--nproc-per-node", "2", script], env=environment, cwd=self.folder,
                             capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertEqual(ran.stdout.count("is right"), 2, ran.stdout)
        placed = subprocess.run([venv / "bin/fabric-place", "--help"], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(placed.returncode, 0, placed.stderr)

        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "fabricshm"], check=True)
        self.assertEqual(glob.glob(f"{venv}/lib/python*/site-packages/fabricshm*"), [])
        self.assertEqual(glob.glob(f"{venv}/bin/fabric*"), [])


if __name__ == "__main__":
    if reason := lacks():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
