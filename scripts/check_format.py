#!/usr/bin/python3
"""lint.format: clang-format would change nothing. Exit code 77 where clang-format is missing."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from lint_support import run_lint, source_files

WARNING = re.compile(r"^(.*?):(\d+):\d+: error: code should be clang-formatted", re.MULTILINE)


def check(root: Path) -> list[str]:
    """Runs clang-format over every source file without changing it."""
    files = [str(root / path) for path in source_files(root)]
    if not files:
        return ["no source files found"]
    command = ["clang-format", "--dry-run", "-Werror", *files]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    # One line per file is enough: the cure is the same, clang-format -i.
    first: dict[str, str] = {}
    for name, line in WARNING.findall(result.stderr):
        first.setdefault(str(Path(name).relative_to(root)), line)
    findings = [f"{name}:{line}: run clang-format -i {name}" for name, line in first.items()]
    if result.returncode != 0 and not findings:
        findings = [result.stderr.strip()]
    return findings


if __name__ == "__main__":
    if shutil.which("clang-format") is None:
        print("lint.format: skipped, clang-format is not installed")
        sys.exit(77)
    run_lint("lint.format", check)
