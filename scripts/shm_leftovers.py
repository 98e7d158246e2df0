"""Finds what tests left in /dev/shm: new files that no running process uses any more."""

import os
import time
from pathlib import Path

SHM = Path("/dev/shm")


def names() -> set[str]:
    """Of all that is there, whichever program made it."""
    return set(os.listdir(SHM)) if SHM.is_dir() else set()


def used_by(process: Path) -> set[str]:
    """Names below /dev/shm that a process maps or holds open; none when it just ended."""
    found = set()
    try:
        for line in (process / "maps").read_text(errors="replace").splitlines():
            found.add(line.rsplit(None, 1)[-1])
        for descriptor in (process / "fd").iterdir():
            found.add(os.readlink(descriptor))
    except OSError:
        pass
    prefix = str(SHM) + "/"
    return {name[len(prefix):].split("/")[0] for name in found if name.startswith(prefix)}


def orphans(before: set[str]) -> list[str]:
    """New names that no process uses: a live process may still be about to remove its own."""
    fresh = names() - before
    if not fresh:
        return []
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    used = set().union(*(used_by(process) for process in processes))
    return sorted(fresh - used)


def wait_until_clean(before: set[str], seconds: float = 5) -> list[str]:
    """The names left after `seconds` at most: a killed test's daemon needs a moment to clear up."""
    end = time.monotonic() + seconds
    left = orphans(before)
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left = orphans(before)
    return left
