#!/usr/bin/python3
"""lint.paths: no file names a place of one developer's machine, and every script can be parsed."""

import ast
import re
import subprocess
from pathlib import Path

from check_sizes import is_python, is_shell
from lint_support import line_of, list_files, read_text, run_lint

# Written in pieces, so that this file does not find itself.
FOLDERS = ["work", "root", "home"]
PRIVATE = re.compile(r"(?<![\w.$}~/-])/(?:" + "|".join(FOLDERS) + r")/\w|\.\./" + "shared")
BINARY_SUFFIXES = {".png", ".gz", ".pdf", ".pt"}


def private_paths(path: Path, text: str) -> list[str]:
    """Absolute paths of one machine, in comments and documents, too."""
    return [f"{path}:{line_of(text, match.start())}: names a private path: {match.group()}"
            for match in PRIVATE.finditer(text)]


def python_error(path: Path, text: str) -> list[str]:
    """Parsed and not run: imports may need what is not built yet."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: {error.msg}"]
    return []


def shell_error(root: Path, path: Path) -> list[str]:
    """As python_error(), for shell."""
    result = subprocess.run(["bash", "-n", str(root / path)], capture_output=True, text=True,
                            check=False)
    return [f"{path}: {result.stderr.strip()}"] if result.returncode != 0 else []


def check(root: Path) -> list[str]:
    """Finds absolute private paths, and parses every Python and shell script."""
    findings = []
    for path in list_files(root):
        if path.suffix in BINARY_SUFFIXES:
            continue
        text = read_text(root, path)
        findings += private_paths(path, text)
        if is_python(path, text):
            findings += python_error(path, text)
        elif is_shell(path, text):
            findings += shell_error(root, path)
    return findings


if __name__ == "__main__":
    run_lint("lint.paths", check)
