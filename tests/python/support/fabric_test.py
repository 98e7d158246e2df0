"""Ranks and a daemon for tests: every file of tests is a script that ends with main()."""

import atexit
import contextlib
import faulthandler
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest

SKIPPED = 77
DEADLINE = 90  # seconds for all ranks of one test on a busy machine; success is prompt


class RankFailed(AssertionError):
    """What ranks raised, with their tracebacks."""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(1 if os.environ.get("FABRIC_TESTS_FAIL_ON_SKIP") == "1" else SKIPPED)


def daemon_or_skip(**options):
    """A fabricd for this program; it ends with it."""
    from fabricshm._daemon import EmbeddedDaemon, find_program

    try:
        program = find_program()
    except FileNotFoundError as error:
        skip(error)
    daemon = EmbeddedDaemon(program, **{"pool_bytes": 1 << 30, **options})
    os.environ["FABRIC_SOCKET"] = daemon.socket
    # Committing the daemon's default of 1 GiB takes long on a busy machine.
    os.environ.setdefault("FABRIC_ARENA_BYTES", "64M")
    return daemon


class Ranks:
    """Forked processes that run one function; the parent has what they return."""

    def __init__(self, function, world, *arguments):
        self.pids = []
        self._pipes = []
        self._owner = os.getpid()
        for rank in range(world):
            read_end, write_end = os.pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                os.close(read_end)
                _serve(write_end, function, rank, world, arguments)
            os.close(write_end)
            self.pids.append(pid)
            self._pipes.append(read_end)

    def results(self, deadline=DEADLINE, dead=()):
        """One result per rank; None for the ranks in `dead`, which are expected to be killed."""
        outcomes = []
        try:
            limit = time.monotonic() + deadline
            for rank, pipe in enumerate(self._pipes):
                outcomes.append(_read_all(pipe, limit, rank))
        finally:
            self.kill()
        values, error_messages = [], []
        for rank, data in enumerate(outcomes):
            good, value = pickle.loads(data) if data else (rank in dead, None)
            values.append(value)
            if not good:
                error_messages.append(f"rank {rank}: {value or 'died without a word'}")
        if error_messages:  # of all ranks: the first is often only what another one caused
            raise RankFailed("\n".join(error_messages))
        return values

    def kill(self):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids = []
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []


def _serve(pipe, function, rank, world, arguments):
    faulthandler.enable()
    faulthandler.dump_traceback_later(DEADLINE - 5, exit=False)
    try:
        outcome = (True, function(rank, world, *arguments))
    except BaseException:  # the parent raises it
        outcome = (False, traceback.format_exc())
    try:
        with os.fdopen(pipe, "wb") as file:
            file.write(pickle.dumps(outcome))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _read_all(pipe, limit, rank):
    import select

    data = b""
    while True:
        left = limit - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise RankFailed(f"rank {rank} did not end in time")
        part = os.read(pipe, 1 << 20)
        if not part:
            return data
        data += part


def run_ranks(function, world, *arguments):
    """[function(rank, world, *arguments) of each rank], each in a process of its own."""
    return Ranks(function, world, *arguments).results()


@contextlib.contextmanager
def group_of(rank, world, name="test", arena_bytes=256 << 20, timeout=60.0):
    """(arena, group) of this rank in the fabric."""
    import fabricshm

    with fabricshm.Session(timeout=timeout) as session:
        arena = session.arena("test", arena_bytes)
        with arena.join(name, rank, world) as group:
            yield arena, group


def store_path():
    """Where a file:// store may be made, until this process ends."""
    folder = tempfile.mkdtemp(prefix="fabric-store-")
    maker = os.getpid()

    def remove():
        # A rank that was forked has this as well, and the others still need the store.
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return os.path.join(folder, "store")


@contextlib.contextmanager
def process_group(backend, path, rank, world, timeout=60.0):
    """torch.distributed for the time of the block."""
    from datetime import timedelta

    import torch.distributed as dist

    if backend == "fabricshm":
        import fabricshm.torch  # noqa: F401
    dist.init_process_group(
        backend, init_method=f"file://{path}", rank=rank, world_size=world,
        timeout=timedelta(seconds=timeout))
    try:
        yield dist
    finally:
        dist.destroy_process_group()


def main():
    unittest.main(verbosity=2)
