"""Shards: named tensors that fabricd moves while they are read. docs/migration.md."""

import contextlib
import time

from ._arrays import NAMES, milliseconds, storage

_COPY_SECONDS = 30  # as a session's own timeout is when none is given


def _array(view):
    dtype = NAMES[view.dtype]
    return view.array.view(storage(dtype)).reshape(view.shape)


class ChangedError(Exception):
    """The owner wrote the shard while it was read: drop what was read, read again."""


class Shard:
    """A named tensor without a fixed place: its array is good inside a `with` block only."""

    def __init__(self, handle, name):
        self._handle = handle
        self.name = name
        self.version = 0  # that this process read or published last

    @contextlib.contextmanager
    def read(self, version=0, timeout=None):
        """`with shard.read() as array`: the elements of `version` or a later one, not to be
        written. Raises ChangedError at the end when the owner wrote meanwhile."""
        view = self._handle.read(version, milliseconds(timeout))
        array = _array(view)
        array.flags.writeable = False
        try:
            yield array
        except BaseException:
            self._handle.release(view)
            raise
        if not self._handle.release(view):
            raise ChangedError(self.name)
        self.version = view.version

    def copy(self, version=0, timeout=None):
        """A copy of one whole version, in this process's own memory. Raises ChangedError when the
        owner still writes into every attempt after `timeout` seconds (default 30)."""
        # An owner that publishes all the time could keep a reader of a large shard here for ever.
        deadline = time.monotonic() + (_COPY_SECONDS if timeout is None else timeout)
        while True:
            try:
                with self.read(version, timeout) as array:
                    mine = array.copy()
                return mine
            except ChangedError:
                if time.monotonic() >= deadline:
                    raise

    @contextlib.contextmanager
    def write(self):
        """`with shard.write() as array`: the last version, to be changed in place and published at
        the end, also when the block raises: half a change has no other way out."""
        view = self._handle.write()
        try:
            yield _array(view)
        finally:
            self.version = self._handle.publish()

    def move(self, target, bytes_per_second=0):
        """Begins to move it: "here", "arena:NAME", "device:NAME" or "node:N". By the owner."""
        self._handle.move(target, bytes_per_second)

    def free(self):
        """Ends the shard for all. By the owner."""
        self._handle.free()

    def close(self):
        """Gives this process's handle back."""
        self._handle.close()
