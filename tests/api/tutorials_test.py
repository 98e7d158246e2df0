#!/usr/bin/python3
"""docs/tutorials: the files are written and the commands run as they are printed, and what they print is compared.
In what is printed `...` stands for anything: in a line for its part, alone for lines. FABRIC_INSTALLED=yes: with the programs
that are installed (scripts/package_check), else with those of the build."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FABRIC_BUILD_DIR", ROOT / "build/release")).resolve()
INSTALLED = os.environ.get("FABRIC_INSTALLED") == "yes"
DEADLINE_S = 120
FILE = re.compile(r"^[^\n]*`([\w.]+)`[^`\n]*:\n\n```(?:cpp|python|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: str):
    """(command, the lines below it) of each command."""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def pattern(printed: str) -> re.Pattern:
    """What a command may print."""
    made = ""
    for line in printed.splitlines():
        made += "(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
    return re.compile(made)


def compiled_before() -> dict:
    """The environment that has a clone find what ccache knows: a new home would have it compile all again."""
    if shutil.which("ccache") is None:
        return {}
    folder = subprocess.run(["ccache", "--get-config", "cache_dir"], capture_output=True, text=True, check=True).stdout.strip()
    return {"CCACHE_DIR": folder}


class Tutorials(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if INSTALLED:
            return
        cls.prefix = Path(tempfile.mkdtemp(prefix="fabric-tutorial-"))
        cls.addClassCleanup(shutil.rmtree, cls.prefix)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", "development"],
                       check=True, stdout=subprocess.DEVNULL)

    def environment(self, folder):
        usual = {**compiled_before(), "HOME": folder, "XDG_RUNTIME_DIR": folder, "LC_ALL": "C", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                 "PATH": "/usr/bin:/bin"}
        if INSTALLED:
            return usual
        lib = next(self.prefix.rglob("libfabricshm.so"))
        programs = ("fabricd", "fabricd/ctl", "fabricd/data/program", "python")
        return {**usual, "PATH": ":".join([*(str(BUILD / program) for program in programs), usual["PATH"]]),
                "PYTHONPATH": str(BUILD / "python"), "PKG_CONFIG_PATH": str(lib.parent / "pkgconfig"),
                "LD_LIBRARY_PATH": str(lib.parent)}

    def run_page(self, name: str, clone: bool = False, deadline_s: int = DEADLINE_S):
        """With `clone` there is one of this tree in the folder."""
        page = (ROOT / "docs/tutorials" / name).read_text()
        steps = list(commands(page))
        with tempfile.TemporaryDirectory(prefix="fabric-tutorial-") as folder:
            if clone:
                subprocess.run(["git", "clone", "--quiet", ROOT, f"{folder}/fabricd"], check=True)
            for file, text in FILE.findall(page):
                (Path(folder) / file).write_text(text)
            script = "exec 2>&1\n" + "".join(f"{command}\nprintf '\\n=== %s\\n' $?\n" for command, _ in steps)
            with open(f"{folder}/printed", "w+b") as printed:
                # A session of its own: what it leaves running is ended with it.
                with subprocess.Popen(["bash", "-c", script], cwd=folder, env=self.environment(folder),
                                      stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
                                      start_new_session=True) as shell:
                    try:
                        shell.wait(deadline_s)
                    except subprocess.TimeoutExpired:
                        pass
                    finally:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(shell.pid, signal.SIGKILL)
                printed.seek(0)
                output = printed.read().decode(errors="replace")
        answers = re.split(r"\n=== (\d+)\n", output)
        self.assertEqual(len(answers) // 2, len(steps), f"{name}: stopped in {steps[len(answers) // 2 - 1]}:\n{output}")
        for number, (command, expected) in enumerate(steps):
            with self.subTest(f"{name}: {command}"):
                answer = answers[2 * number]
                # A daemon in the background prints when it likes.
                answer = "".join(line + "\n" for line in answer.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line))
                self.assertTrue(pattern(expected).fullmatch(answer), f"expected\n{expected}\nprinted\n{answer}")
                self.assertEqual(answers[2 * number + 1], "1" if "is not" in expected else "0")

    def test_first_allreduce(self):
        self.run_page("first_allreduce.md")

    def test_unchanged_pytorch(self):
        if not INSTALLED and not (BUILD / "python/fabricshm/torch").exists():
            self.skipTest("built without PyTorch")
        self.run_page("unchanged_pytorch.md")

    def test_a_host(self):
        self.run_page("a_host.md")

    def test_first_change(self):
        if INSTALLED or not (ROOT / ".git").exists():
            self.skipTest("needs a clone")
        self.run_page("first_change.md", clone=True, deadline_s=600)

    def test_data_set(self):
        if not INSTALLED and not (BUILD / "fabricd/data/program/fabric-data").is_file():
            self.skipTest("built without the data cache")
        self.run_page("data_set.md")


if __name__ == "__main__":
    if not INSTALLED and not (BUILD / "CMakeCache.txt").is_file():
        sys.exit(f"set FABRIC_BUILD_DIR: {BUILD} is no build folder")
    unittest.main()
