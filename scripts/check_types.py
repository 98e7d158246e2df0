#!/usr/bin/python3
"""lint.types: a name means one type within a namespace. Two definitions of one name are two types
that the linker takes for one: it keeps the members of either, and reports nothing."""

import re
from pathlib import Path

from lint_support import read_text, run_lint, source_files

# Each of these is a program of its own, and shares no types with another.
PROGRAMS = {"tests", "bench", "examples"}

OPENED = re.compile(r"(?:inline )?namespace\b\s*([\w:]*)[^;={]*\{")
CLOSED = re.compile(r"\}\s*//\s*namespace")
# clang-format puts a definition of a namespace's own at the first column.
TYPE = re.compile(r"(?:template\s*<.*>\s*)?(?:class|struct|union|enum(?:\s+class)?)\s+"
                  r"(?:(?:alignas\([^)]*\)|\[\[[^\]]*\]\]|[A-Z_]{4,})\s+)*([\w:]+)\s*(?:final\b)?\s*(?::[^:;].*)?\{")


def definitions(text: str):
    """Name with its namespace, and line, of each type that other files may mean by that name."""
    namespaces = []
    for number, line in enumerate(text.split("\n"), 1):
        if opened := OPENED.match(line):
            # Without a name: the file's own.
            namespaces.append(opened.group(1) or None)
        elif CLOSED.match(line) and namespaces:
            namespaces.pop()
        elif (found := TYPE.match(line)) and None not in namespaces:
            yield "::".join([*namespaces, found.group(1)]), number


def check(root: Path) -> list[str]:
    """Finds names that two files give to types."""
    first: dict[str, str] = {}
    findings = []
    for path in source_files(root):
        if path.parts[0] in PROGRAMS:
            continue
        for name, line in definitions(read_text(root, path)):
            where = f"{path}:{line}"
            if name in first:
                findings.append(f"{where}: {name} is also defined at {first[name]}; give one of them another name")
            first.setdefault(name, where)
    return findings


if __name__ == "__main__":
    run_lint("lint.types", check)
