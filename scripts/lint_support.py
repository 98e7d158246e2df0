"""What the lints share: which files to read, and how findings are reported."""

import argparse
import subprocess
import sys
from pathlib import Path

SOURCE_SUFFIXES = {".hpp", ".cpp", ".h", ".c", ".cu", ".cuh"}
SKIPPED_FOLDERS = {".git", "build", "install", "__pycache__", ".cache"}


def repository_root() -> Path:
    return Path(__file__).resolve().parent.parent


def git_files(root: Path) -> list[str] | None:
    """Tracked files and new ones that are not ignored; None when `root` is no git checkout."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode != 0:
        return None
    return [name for name in result.stdout.decode().split("\0") if name]


def walked_files(root: Path) -> list[str]:
    """The same for a tree without git: an unpacked archive, or the sample of a self-test."""
    paths = (path.relative_to(root) for path in root.rglob("*"))
    return [str(path) for path in paths if not SKIPPED_FOLDERS & set(path.parts)]


def list_files(root: Path) -> list[Path]:
    """Every file of the project, relative to `root`, sorted. Links and vanished files are left out."""
    names = git_files(root)
    if names is None:
        names = walked_files(root)
    files = {Path(name) for name in names}
    return sorted(path for path in files if (root / path).is_file() and not (root / path).is_symlink())


def source_files(root: Path) -> list[Path]:
    """The files that the C and C++ lints read, tests included."""
    return [path for path in list_files(root) if path.suffix in SOURCE_SUFFIXES]


def read_text(root: Path, path: Path) -> str:
    """Bytes that are no UTF-8 are replaced: a lint should report on a file, not fail at it."""
    return (root / path).read_text(encoding="utf-8", errors="replace")


def line_of(text: str, position: int) -> int:
    """From 1, as editors count."""
    return text.count("\n", 0, position) + 1


def is_test(path: Path) -> bool:
    return path.parts[0] == "tests"


def run_lint(name: str, check) -> None:
    """Runs `check(root) -> list[str]` of findings and exits with 1 when there are any."""
    parser = argparse.ArgumentParser(description=check.__doc__)
    parser.add_argument("--root", type=Path, default=repository_root(), help="the tree to check")
    root = parser.parse_args().root.resolve()
    findings = check(root)
    for finding in findings:
        print(finding)
    print(f"{name}: {len(findings)} finding{'s' if len(findings) != 1 else ''}")
    sys.exit(1 if findings else 0)
