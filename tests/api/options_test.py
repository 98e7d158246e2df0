#!/usr/bin/python3
"""Each installed program has the same options in its --help, on its manual page and in its completions
for bash, zsh and fish: what is added to one of them and forgotten in another is named here."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(os.environ.get("FABRIC_BUILD_DIR", "build/release")).resolve()
LONG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMPLETIONS = {"bash": "bash-completion/completions/{}", "zsh": "zsh/site-functions/_{}",
               "fish": "fish/vendor_completions.d/{}.fish"}
# Pages of programs whose command line says more than a page of its own has room for.
MORE_PAGES = {"fabricd": ["man5/fabricd.toml.5"]}


def run(*command) -> str:
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command} gave {done.returncode}:\n{done.stdout}")
    return done.stdout


def own(text: str, program: str) -> str:
    """Without the command lines of other programs, and without examples, which have more of them."""
    text = re.sub(r"(?ms)^(Examples:|\.SH EXAMPLES)$.*?(?=^$|^\.SH|\Z)", "", text)
    return re.sub(rf"\b(?!{program}\b)fabric(d|ctl|run)( [a-z]+)? --[a-z-]+", "", text)


def options_of_help(program: Path) -> set:
    text = run(program, "--help")
    commands = re.search(r"(?ms)^Subcommands:\n(.*?)(\n\n|\Z)", text)
    names = re.findall(r"(?m)^  ([a-z][\w-]*)", commands.group(1)) if commands else []
    texts = [text, *(run(program, name, "--help") for name in names)]
    return {option for part in texts for option in LONG.findall(own(part, program.name))}


def command_lines(program: Path) -> list:
    """Words before the options, with the help there: of the program, and of each of its commands."""
    text = run(program, "--help")
    commands = re.search(r"(?ms)^Subcommands:\n(.*?)(\n\n|\Z)", text)
    names = re.findall(r"(?m)^  ([a-z][\w-]*)", commands.group(1)) if commands else []
    return [([program], text), *(([program, name], run(program, name, "--help")) for name in names)]


def options_with_values(text: str) -> list:
    """In help a name, one blank and what stands for the value."""
    return re.findall(r"(?m)^ +(?:-\w, ?)?(--[a-z][\w-]*) (?=\S)", text)


def first_argument(text: str) -> list:
    return re.findall(r"(?m)^Positionals:\n  (\S+)", text)


def options_of_page(page: Path, program: str) -> set:
    # Its comments say how it was made.
    text = "\n".join(line for line in page.read_text().splitlines() if not line.startswith('.\\"'))
    text = re.sub(r"\\f.", "", text).replace("\\-", "-")
    return set(LONG.findall(own(text, program)))


def options_of_completion(shell: str, text: str) -> set:
    if shell == "fish":
        return {f"--{name}" for name in re.findall(r" -l ([a-z][a-z0-9-]*)", re.sub(r" -d '([^']|'\\'')*'", "", text))}
    if shell == "zsh":
        return set(re.findall(r"(?m)^\s*'(?:\([^)]*\))?(--[a-z][a-z0-9-]*)", text))
    lists = re.findall(r"options=' ?([^']*)'|-W '([^']*)'", text)
    return {word for pair in lists for words in pair for word in words.split() if LONG.fullmatch(word)}


class Options(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (BUILD / "fabricd/fabricd").is_file():
            raise unittest.SkipTest("built without the daemon")
        cls.prefix = Path(tempfile.mkdtemp(prefix="fabric-options-"))
        cls.addClassCleanup(shutil.rmtree, cls.prefix)
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.programs = sorted((cls.prefix / "bin").iterdir())

    def pages_of(self, name: str) -> list:
        pages = [page for section in (1, 8) for page in
                 [self.prefix / f"share/man/man{section}/{name}.{section}"] if page.is_file()]
        self.assertEqual(len(pages), 1, f"{name} has no manual page")
        return pages + [self.prefix / "share/man" / more for more in MORE_PAGES.get(name, [])]

    def test_there_are_programs(self):
        self.assertGreaterEqual(len(self.programs), 3)

    def test_manual_pages_have_the_options_of_help_and_no_others(self):
        for program in self.programs:
            with self.subTest(program.name):
                asked = options_of_help(program)
                written = {option for page in self.pages_of(program.name) for option in options_of_page(page, program.name)}
                self.assertTrue(asked)
                self.assertEqual(asked - written, set(), "not on the manual page")
                self.assertEqual(written - asked, set(), "on the manual page alone")

    def test_completions_have_the_options_of_help_and_no_others(self):
        for program in self.programs:
            asked = options_of_help(program)
            for shell, file in COMPLETIONS.items():
                with self.subTest(program.name, shell=shell):
                    text = (self.prefix / "share" / file.format(program.name)).read_text()
                    offered = options_of_completion(shell, text)
                    self.assertEqual(asked - offered, set(), "not offered")
                    self.assertEqual(offered - asked, set(), "offered, and not in --help")

    def test_an_empty_value_is_refused_by_its_name(self):
        # `--output "$FILE"` with a FILE that is not set.
        for program in self.programs:
            for words, text in command_lines(program):
                values = options_with_values(text)
                # What an empty key of the configuration means the configuration says.
                if program.name == "fabricd":
                    values = ["--config", "--emulate", "--completion"]
                    words = [*words, "--print-config"]
                lines = [(name, [*words, name, ""]) for name in values]
                lines += [(name, [*words, ""]) for name in first_argument(text)]
                for name, line in lines:
                    with self.subTest(" ".join([program.name, *map(str, line[1:])])):
                        done = subprocess.run(line, capture_output=True, text=True, check=False,
                                              stdin=subprocess.DEVNULL, cwd=self.prefix)
                        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                        self.assertIn(name, done.stderr)

    def test_a_number_that_is_refused_is_refused_with_its_range(self):
        bench = self.prefix / "bin/fabric-bench"
        if not bench.is_file():
            self.skipTest("built without benchmarks")
        for number in ("0", "257", "-1", "many"):
            done = subprocess.run([bench, "allreduce", "--ranks", number], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, number)
            self.assertIn("--ranks", done.stderr)
            self.assertRegex(done.stderr, r"\b1 (to|-) 256\b", number)


if __name__ == "__main__":
    if not (BUILD / "CMakeCache.txt").is_file():
        sys.exit(f"set FABRIC_BUILD_DIR: {BUILD} is no build folder")
    unittest.main()
