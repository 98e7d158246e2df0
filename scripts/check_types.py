#!/usr/bin/python3
"""lint.types: a name means one type within a namespace. Two definitions of one name are two types
that the linker takes for one: it keeps the members of either, and reports nothing. What is a file's own (a type, a
constant, a function of the same parameters) has a name that no other file of its folder has: a unity build compiles
several of them as one."""

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
CONSTANT = re.compile(r"(?:static |inline )*const(?:expr)?\s[^=({;]*?\b(k[A-Z]\w*)\b")
ALIAS = re.compile(r"using (\w+) =")
FUNCTION = re.compile(r"^(?:static |inline |constexpr )*(?!return\b|else\b|using\b)[\w:][\w:<>,&* ]*?[ &*](\w+)\(([^;{}]*?)\)\s*(?:noexcept\s*)?\{",
                      re.MULTILINE)
COMPILED_ALONE = re.compile(r"set_source_files_properties\(([^)]*?)PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON\)")
OWN = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.DOTALL | re.MULTILINE)


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


def types_of(parameters: str) -> str:
    """The parameters without their names and defaults, so that two declarations compare."""
    parts = re.sub(r"<[^<>]*>", lambda inner: inner.group().replace(",", ";"), parameters).split(",")
    return ", ".join(re.sub(r"(?<=[\s&*])\w+(?:\[\])?\s*(?:=.*)?$", "", " ".join(part.split())).rstrip() for part in parts)


def own_names(text: str):
    """What a file keeps for itself, with its line: k names, types, aliases, functions with their parameters."""
    for own in OWN.finditer(text):
        start = text.count("\n", 0, own.start(1)) + 1
        for number, line in enumerate(own.group(1).split("\n")):
            for pattern in (TYPE, CONSTANT, ALIAS):
                if found := pattern.match(line):
                    yield found.group(1), start + number
        for found in FUNCTION.finditer(own.group(1)):
            yield f"{found.group(1)}({types_of(found.group(2))})", start + own.group(1).count("\n", 0, found.start())


def check_folders(root: Path) -> list[str]:
    """Finds names that two files of one folder have for themselves."""
    first: dict[tuple, str] = {}
    findings = []
    for path in source_files(root):
        if path.parts[0] in PROGRAMS or path.suffix != ".cpp":
            continue
        recipe = root / path.parent / "CMakeLists.txt"
        alone = COMPILED_ALONE.findall(recipe.read_text()) if recipe.is_file() else []
        if path.name in " ".join(alone).split():
            continue
        for name, line in own_names(read_text(root, path)):
            where = first.setdefault((path.parent, name), str(path))
            if where != str(path):
                findings.append(f"{path}:{line}: {name} is also a name of {where}'s own, and a unity build has both in one file")
    return findings


def check_types(root: Path) -> list[str]:
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


def check(root: Path) -> list[str]:
    """Both."""
    return check_types(root) + check_folders(root)


if __name__ == "__main__":
    run_lint("lint.types", check)
