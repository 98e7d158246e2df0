#!/usr/bin/python3
"""lint.sizes: files and functions stay within the hard limits of the house style; prints how long
they are and how much of them is comment."""

import ast
import re
import statistics
from pathlib import Path

import cxx_scan
from lint_support import SOURCE_SUFFIXES, is_test, list_files, read_text, run_lint

FILE_LIMIT = 700           # lines: look twice at 400; tests are lists of cases and may be longer
PUBLIC = ("libfabricshm", "include")  # an interface is one text, as long as it has to be
FUNCTION_LIMIT = 60        # lines
TEST_FUNCTION_LIMIT = 100  # lines; a test case is a story and is read from top to bottom
# Per cent of the lines of a folder's sources that are comment and nothing else, at least. The house
# style asks for 12 to 19, of which a change may take some; folders named here have a floor of their own,
# others the usual one once they have so many lines.
USUAL_FLOOR, USUAL_FLOOR_FROM = 11, 500
COMMENT_FLOOR = {"libfabricshm/include/fabricshm": 20, "libfabricshm/shm": 15, "libfabricshm/vgpu": 14}
ALLOW_FILE = "scripts/sizes_allow.txt"
SHELL_FUNCTION = re.compile(r"^(?:function )?([\w-]+) ?\(\) ?[{(]\n(.*?)^[})]", re.MULTILINE | re.DOTALL)


def allowed(root: Path) -> dict[str, str]:
    """`path` or `path:function` -> reason, from the allow list."""
    path = root / ALLOW_FILE
    lines = path.read_text().splitlines() if path.is_file() else []
    entries = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {entry[0]: entry[1] if len(entry) > 1 else "" for entry in entries}


def is_shell(path: Path, text: str) -> bool:
    """By its name, or by its first line."""
    return path.suffix == ".sh" or (path.suffix == "" and text.startswith("#!/bin/bash"))


def is_python(path: Path, text: str) -> bool:
    return path.suffix == ".py" or (path.suffix == "" and text.startswith("#!/usr/bin/python3"))


def python_functions(text: str) -> list[cxx_scan.Function]:
    """Inner functions count by themselves, and within the one around them."""
    nodes = ast.walk(ast.parse(text))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [cxx_scan.Function(node.name, node.lineno, node.end_lineno - node.lineno + 1)
            for node in nodes if isinstance(node, kinds)]


def shell_functions(text: str) -> list[cxx_scan.Function]:
    """To the line that begins with the closing brace."""
    return [cxx_scan.Function(match.group(1), text.count("\n", 0, match.start()) + 1,
                              match.group(2).count("\n") + 2)
            for match in SHELL_FUNCTION.finditer(text)]


def functions_of(path: Path, text: str) -> list[cxx_scan.Function] | None:
    """The functions of a source file; None when it is no source file."""
    if path.suffix in SOURCE_SUFFIXES:
        return cxx_scan.functions(text)
    if is_python(path, text):
        return python_functions(text)
    return shell_functions(text) if is_shell(path, text) else None


class Statistics:
    """Lengths and comment shares of one kind of file, for the report."""

    def __init__(self):
        self.file_lines, self.function_lines = [], []
        self.comments, self.trailing, self.lines = 0, 0, 0

    def add(self, path: Path, text: str, found: list[cxx_scan.Function]) -> None:
        self.file_lines.append(text.count("\n"))
        self.function_lines += [function.lines for function in found]
        if path.suffix in SOURCE_SUFFIXES:
            alone, behind_code = cxx_scan.comment_lines(text)
            self.comments += alone
            self.trailing += behind_code
            self.lines += sum(1 for line in text.split("\n") if line.strip())

    def share(self) -> float:
        return 100 * self.comments / self.lines if self.lines else 0

    def line(self, name: str) -> str:
        share = "-"
        if self.lines:
            share = (f"{self.share():.1f} % comment, "
                     f"{100 * self.trailing / self.lines:.1f} % with one behind code")
        return (f"{name:15} {len(self.file_lines):4} files: {spread(self.file_lines)}; "
                f"{len(self.function_lines):5} functions: {spread(self.function_lines)}; {share}")


def spread(values: list[int]) -> str:
    """Not the mean, which a few long files would move."""
    if not values:
        return "none"
    ordered = sorted(values)
    return (f"median {statistics.median(ordered):.0f}, p90 {ordered[int(0.9 * (len(ordered) - 1))]}, "
            f"longest {ordered[-1]}")


def group_of(path: Path) -> str:
    """The line of the report that a file counts for."""
    if is_test(path):
        return "tests"
    if path.parts[:2] == ("libfabricshm", "include"):
        return "public headers"
    return "source" if path.suffix in SOURCE_SUFFIXES else "scripts"


def over_limits(path: Path, text: str, found: list[cxx_scan.Function], allow: dict) -> list[str]:
    """Files and functions that are too long and not on the list."""
    findings = []
    lines = text.count("\n")
    if lines > FILE_LIMIT and not is_test(path) and path.parts[:2] != PUBLIC and str(path) not in allow:
        findings.append(f"{path}: {lines} lines; the limit is {FILE_LIMIT}")
    limit = TEST_FUNCTION_LIMIT if is_test(path) else FUNCTION_LIMIT
    for function in found:
        if function.lines > limit and f"{path}:{function.name}" not in allow:
            findings.append(f"{path}:{function.line}: {function.name} has {function.lines} lines; "
                            f"the limit is {limit}")
    return findings


def allow_findings(root: Path, allow: dict[str, str]) -> list[str]:
    """Entries without a reason, and those of files that are gone."""
    findings = [f"{ALLOW_FILE}: {key} has no reason" for key, reason in allow.items() if not reason]
    return findings + [f"{ALLOW_FILE}: {key}: there is no such file" for key in allow
                       if not (root / key.split(":")[0]).is_file()]


def share_findings(folders: dict[str, Statistics]) -> list[str]:
    """Prints the share of comment lines of each folder; the folders that fell below their floor."""
    print("share of comment lines: " +
          ", ".join(f"{name} {folders[name].share():.1f} %" for name in sorted(folders)))
    floors = {name: USUAL_FLOOR for name, folder in folders.items() if folder.lines >= USUAL_FLOOR_FROM}
    floors.update((name, floor) for name, floor in COMMENT_FLOOR.items() if name in folders)
    return [f"{name}: {folders[name].share():.1f} % of its lines are comment; at least {floor} are wanted"
            for name, floor in floors.items() if folders[name].share() < floor]


def check(root: Path) -> list[str]:
    """Checks the lengths of files and functions and the share of comments, and prints their distribution."""
    allow = allowed(root)
    findings = allow_findings(root, allow)
    groups: dict[str, Statistics] = {}
    folders: dict[str, Statistics] = {}
    for path in list_files(root):
        if path.suffix not in SOURCE_SUFFIXES | {".py", ".sh", ""}:
            continue
        text = read_text(root, path)
        found = functions_of(path, text)
        if found is None:
            continue
        groups.setdefault(group_of(path), Statistics()).add(path, text, found)
        if path.suffix in SOURCE_SUFFIXES and not is_test(path):
            folders.setdefault(str(path.parent), Statistics()).add(path, text, found)
        findings += over_limits(path, text, found, allow)
    for name in sorted(groups):
        print(groups[name].line(name))
    return findings + share_findings(folders)


if __name__ == "__main__":
    run_lint("lint.sizes", check)
