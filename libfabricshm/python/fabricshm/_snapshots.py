"""Snapshots of shared parameters on disk. docs/snapshots.md."""

import os

from . import _fabricshm
from ._arrays import milliseconds


class Snapshot:
    """One that was begun; by all ranks:

    snapshot = set.snapshot("snapshots", keep=3)
    ...                                          # steps go on
    report = snapshot.wait()

    Until wait() has returned, values and states are changed by steps alone.
    """

    def __init__(self, handle, directory):
        self._handle = handle
        self.directory = directory
        self.report = None  # of the last wait()

    @property
    def over(self):
        """This rank's part is; wait() then waits for other ranks only."""
        return self.report is not None or self._handle.snapshot_over

    def wait(self, timeout=None):
        """By all ranks: it is on the disk, whole and under its name. Returns a report of this rank:
        .step, .bytes (written by it), .staged (seconds until its shard was copied), .total, and how it
        was written: .uring, .registered, .direct. When any rank fails all do, nothing of it is left,
        and snapshots of before are as they were. FabricTimeoutError: call again."""
        if self.report is None:
            self.report = self._handle.snapshot_wait(milliseconds(timeout))
        return self.report


def path_text(path):
    text = os.fspath(path)
    if "\0" in text:
        raise ValueError(f"a path has no zero character: {text!r}")
    return text


def begin(handle, directory, keep, file_bytes, plain_writes, timeout):
    directory = path_text(directory)
    handle.snapshot_begin(directory, keep, file_bytes or 0, bool(plain_writes), milliseconds(timeout))
    return Snapshot(handle, directory)


def latest_snapshot(directory):
    """The path of the newest whole snapshot in a directory; NotFoundError when there is none."""
    return _fabricshm.latest_snapshot(path_text(directory))
