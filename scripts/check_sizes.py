#!/usr/bin/python3
"""lint.sizes: files, functions and classes stay within limits, or within what the allow list grants them; prints how
large they are and how much of them is comment. No share of comments is asked for: a comment is written for its reader,
and one that is written for a percentage has none."""

import ast
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

import cxx_scan
from lint_support import SOURCE_SUFFIXES, is_test, list_files, read_text, run_lint

FILE_LIMIT = 700           # lines: reconsider the file at 400; tests are lists of cases and may be longer
PUBLIC = ("libfabricshm", "include")  # an interface is one text, as long as it has to be
FUNCTION_LIMIT = 60        # lines
TEST_FUNCTION_LIMIT = 100  # lines; a test case is a story and is read from top to bottom
# A class is one thing to know: its data, what can be asked of it, and the files that its functions are in. Plain structs
# without functions are tables, which are as long as what they describe.
CLASS_LIMITS = {"members": 25, "functions": 35, "files": 3}
ALLOW_FILE = "scripts/sizes_allow.txt"
BOUND = re.compile(r"^(lines|members|functions|files)<=(\d+)$")
SHELL_FUNCTION = re.compile(r"^(?:function )?([\w-]+) ?\(\) ?[{(]\n(.*?)^[})]", re.MULTILINE | re.DOTALL)


@dataclass
class Grant:
    """One line of the allow list: `path`, `path:function` or `path:Class`, what it may grow to, and why."""

    bounds: dict
    reason: str


def allowed(root: Path) -> dict[str, Grant]:
    """By key. A line reads `key lines<=N reason`, for a class `key members<=N functions<=N files<=N reason`."""
    path = root / ALLOW_FILE
    entries = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        key, *words = line.split() or [""]
        bounds = {}
        while words and (bound := BOUND.match(words[0])):
            bounds[bound.group(1)] = int(bound.group(2))
            words.pop(0)
        if key and not key.startswith("#"):
            entries[key] = Grant(bounds, " ".join(words))
    return entries


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


def over(allow: dict[str, Grant], key: str, what: str, size: int, limit: int) -> str | None:
    """What is wrong with a size that is above the usual limit and above what the allow list grants, if it is."""
    if size <= limit:
        return None
    granted = allow[key].bounds.get(what) if key in allow else None
    if granted is None:
        return f"{size} {what}; the limit is {limit}"
    return f"{size} {what}; {ALLOW_FILE} grants {granted}, and no exception grows" if size > granted else None


def over_limits(path: Path, text: str, found: list[cxx_scan.Function], allow: dict[str, Grant]) -> list[str]:
    """Files and functions that are too long."""
    findings = []
    if not is_test(path) and path.parts[:2] != PUBLIC:
        if finding := over(allow, str(path), "lines", text.count("\n"), FILE_LIMIT):
            findings.append(f"{path}: {finding}")
    limit = TEST_FUNCTION_LIMIT if is_test(path) else FUNCTION_LIMIT
    for function in found:
        if finding := over(allow, f"{path}:{function.name}", "lines", function.lines, limit):
            findings.append(f"{path}:{function.line}: {function.name} has {finding}")
    return findings


class Classes:
    """The classes of the sources: what each holds, offers, and in how many files its functions are."""

    def __init__(self):
        self.defined: list[tuple[Path, cxx_scan.Class]] = []
        self.files: dict[tuple[Path, str], set] = {}  # by folder and name

    def add(self, path: Path, text: str, found: list[cxx_scan.Function]) -> None:
        self.defined += [(path, one) for one in cxx_scan.classes(text)]
        for function in found:
            for name in function.name.split("::")[:-1]:
                self.files.setdefault((path.parent, name), set()).add(path.name)

    def sizes(self) -> list[tuple[Path, cxx_scan.Class, dict[str, int]]]:
        """Of those that have functions."""
        return [(path, one, {"members": one.members, "functions": one.functions,
                             "files": len(self.files.get((path.parent, one.name), set()) | {path.name})})
                for path, one in self.defined if one.functions]

    def report(self) -> str:
        sizes = self.sizes()
        parts = [f"{what} {spread([size[what] for _, _, size in sizes])}" for what in CLASS_LIMITS]
        return f"{len(sizes)} classes with functions: " + "; ".join(parts)

    def findings(self, allow: dict[str, Grant]) -> list[str]:
        return [f"{path}:{one.line}: {one.name} has {finding}" for path, one, size in self.sizes()
                for what, limit in CLASS_LIMITS.items()
                if (finding := over(allow, f"{path}:{one.name}", what, size[what], limit))]


def allow_findings(root: Path, allow: dict[str, Grant]) -> list[str]:
    """Entries without a reason or a bound, and those of files that are gone."""
    findings = [f"{ALLOW_FILE}: {key} has no reason" for key, grant in allow.items() if not grant.reason]
    findings += [f"{ALLOW_FILE}: {key} has no bound, such as lines<=800" for key, grant in allow.items() if not grant.bounds]
    return findings + [f"{ALLOW_FILE}: {key}: there is no such file" for key in allow
                       if not (root / key.split(":")[0]).is_file()]


def print_report(groups: dict[str, Statistics], folders: dict[str, Statistics], classes: Classes) -> None:
    for name in sorted(groups):
        print(groups[name].line(name))
    print(classes.report())
    print("share of comment lines: " + ", ".join(f"{name} {folders[name].share():.1f} %" for name in sorted(folders)))


def check(root: Path) -> list[str]:
    """Checks the sizes of files, functions and classes, and prints their distribution."""
    allow = allowed(root)
    findings = allow_findings(root, allow)
    groups: dict[str, Statistics] = {}
    folders: dict[str, Statistics] = {}
    classes = Classes()
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
            classes.add(path, text, found)
        findings += over_limits(path, text, found, allow)
    print_report(groups, folders, classes)
    return findings + classes.findings(allow)


if __name__ == "__main__":
    run_lint("lint.sizes", check)
