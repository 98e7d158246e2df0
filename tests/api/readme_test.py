#!/usr/bin/python3
"""The examples of README.md build and do what they say: two ranks of each, against a daemon of
their own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FABRIC_BUILD_DIR", ROOT / "build/release")).resolve()
DEADLINE_S = 60

# The C example is a function; this is the program around it. Three floats add up to 2 on each rank.
C_MAIN = """
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
    float values[3] = {1, 1, 1};
    if (argc != 3) return 3;
    const int code = sum_over_ranks(values, 3, atoi(argv[1]), atoi(argv[2]));
    if (code != 0) fprintf(stderr, "%s\\n", fabricshm_error_text());
    return code != 0 ? 1 : values[0] == 2 && values[2] == 2 ? 0 : 2;
}
"""


def example(language: str) -> str:
    """The first block of README.md in this language."""
    text = (ROOT / "README.md").read_text()
    return re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL).group(1)


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="fabric-readme-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.environment = dict(os.environ, XDG_RUNTIME_DIR=str(cls.folder), HOME=str(cls.folder),
                               FABRIC_SOCKET=str(cls.folder / "fabricd/attach.sock"))
        command = [BUILD / "fabricd/fabricd", "--pool-backend", "emu", "--pool-capacity", "256MiB",
                   "--server-runtime-dir", cls.folder / "fabricd", "--state-dir", cls.folder / "state"]
        (cls.folder / "fabricd").mkdir(mode=0o700)
        cls.log = (cls.folder / "fabricd.log").open("w+")
        cls.addClassCleanup(cls.log.close)
        cls.daemon = subprocess.Popen([str(part) for part in command], env=cls.environment,
                                      stdout=cls.log, stderr=cls.log)
        cls.addClassCleanup(cls.stop_daemon)
        cls.wait_for_socket()

    @classmethod
    def wait_for_socket(cls):
        end = time.monotonic() + DEADLINE_S
        while not Path(cls.environment["FABRIC_SOCKET"]).exists():
            if cls.daemon.poll() is not None or time.monotonic() > end:
                cls.log.seek(0)
                raise AssertionError(f"fabricd did not start:\n{cls.log.read()}")
            time.sleep(0.01)

    @classmethod
    def stop_daemon(cls):
        cls.daemon.terminate()
        try:
            cls.daemon.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            cls.daemon.kill()
            cls.daemon.wait()

    def build(self, compiler: str, source: Path, *flags: str) -> Path:
        program = source.with_suffix("")
        library = BUILD / "libfabricshm/client"
        command = [compiler, *flags, "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/libfabricshm/include",
                   str(source), f"-L{library}", "-lfabricshm", f"-Wl,-rpath,{library}", "-o", str(program)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return program

    def run_ranks(self, program: Path, world: int = 2):
        ranks = [subprocess.Popen([str(program), str(rank), str(world)], env=self.environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for rank in range(world)]
        results = [(rank.communicate(timeout=DEADLINE_S)[0], rank.returncode) for rank in ranks]
        self.assertEqual(results, [("", 0)] * world)

    def test_the_cpp_example(self):
        source = self.folder / "example_cpp.cpp"
        source.write_text(example("cpp"))
        self.run_ranks(self.build("c++", source, "-std=c++20"))

    def test_the_c_example(self):
        source = self.folder / "example_c.c"
        source.write_text(example("c") + C_MAIN)
        self.run_ranks(self.build("cc", source, "-std=c11", "-pedantic"))

    def test_the_pytorch_example(self):
        launcher = BUILD / "python/fabricrun"
        if not launcher.is_file() or not (BUILD / "python/fabricshm/torch").exists():
            self.skipTest("built without PyTorch")
        script = self.folder / "train.py"
        script.write_text(example("python"))
        environment = dict(self.environment, PYTHONPATH=str(BUILD / "python"), OMP_NUM_THREADS="1",
                           FABRIC_ARENA_BYTES="64M")
        result = subprocess.run(["/usr/bin/python3", str(launcher), "--nproc-per-node", "2", str(script)],
                                env=environment, capture_output=True, text=True, check=False,
                                timeout=2 * DEADLINE_S)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    if not (BUILD / "CMakeCache.txt").is_file():
        sys.exit(f"set FABRIC_BUILD_DIR: {BUILD} is no build folder")
    unittest.main()
