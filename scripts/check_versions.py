#!/usr/bin/python3
"""lint.versions: what names the project's version names that of CMakeLists.txt; tests ask for it. scripts/release changes all of it."""

import re
from pathlib import Path

from lint_support import line_of, list_files, read_text, run_lint

WHOLE, SHORT = 3, 2          # how many of the three numbers
# Where a version stands: files by the beginning of their path, what stands before the version, and how much of it.
PLACES = [("CMakeLists.txt", r"^project\(fabricd VERSION ", WHOLE),
          ("docs/changelog.md", r"\A# Changelog\n(?:(?!## ).*\n)*## ", WHOLE),
          ("docs/man/", r'^\.TH .*"fabricd ', WHOLE),
          ("docs/install.md", r", `(?=[\d.]+~git)", WHOLE),
          ("libfabricshm/base/version.hpp", r'^#define FABRIC_VERSION "', WHOLE),
          ("libfabricshm/include/", r'/\* "', WHOLE),
          ("packaging/kubernetes/", r"/fabricd:", WHOLE),
          ("packaging/", r"libfabricshm", SHORT),
          ("docs/install.md", r"libfabricshm", SHORT),
          ("docs/api.md", r"find_package\(fabricshm ", SHORT),
          ("tests/api/consumer/", r"find_package\(fabricshm ", SHORT)]
NUMBER = {WHOLE: r"(\d+\.\d+\.\d+)", SHORT: r"(\d+\.\d+)"}


def spots(path: Path, text: str):
    """Each version in a file: where it is, and how many numbers of it."""
    for beginning, before, parts in PLACES:
        if str(path).startswith(beginning):
            for match in re.finditer(f"(?:{before}){NUMBER[parts]}", text, re.MULTILINE):
                yield match.span(1), parts


def shortened(version: str, parts: int) -> str:
    return ".".join(version.split(".")[:parts])


def check(root: Path) -> list[str]:
    """Compares what names the version with CMakeLists.txt."""
    texts = {path: read_text(root, path) for path in list_files(root)
             if str(path).startswith(tuple(beginning for beginning, _, _ in PLACES) + ("tests/",))}
    build = Path("CMakeLists.txt")
    of_build = [texts[build][slice(*span)] for span, _ in spots(build, texts.get(build, ""))] if build in texts else []
    if len(of_build) != 1:
        return ["CMakeLists.txt: names no version of three numbers"]
    right = of_build[0]
    changelog = Path("docs/changelog.md")
    findings = [] if list(spots(changelog, texts.get(changelog, ""))) else [f"{changelog}: its first heading is no version"]
    for path, text in texts.items():
        found = [(line_of(text, span[0]), text[slice(*span)], parts) for span, parts in spots(path, text)]
        found += [(0, str(path)[slice(*span)], parts) for span, parts in spots(path, str(path))]
        findings += [f"{path}:{line}: names version {said} where CMakeLists.txt has {right}"
                     for line, said, parts in found if said != shortened(right, parts)]
        if path.parts[0] == "tests":
            # Also as a pattern has it, whose dots are escaped.
            dotted = right.replace(".", r"\\?\.")
            repeated = rf'["\s]{dotted}(?![\d.~])'
            findings += [f"{path}:{line_of(text, match.start())}: repeats the version: FABRIC_VERSION, and "
                         f"CMakeLists.txt for Python, have it" for match in re.finditer(repeated, text)]
    return findings


if __name__ == "__main__":
    run_lint("lint.versions", check)
