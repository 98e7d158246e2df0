"""The processes of one job: started together, watched together, ended together."""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple

from ._daemon import die_with_parent

Exit = namedtuple("Exit", "rank pid code")  # code: as a shell reports it, 128 + signal


def exit_text(ended):
    worker = f"rank {ended.rank} (pid {ended.pid})"
    if ended.code <= 128:
        return f"{worker} exited with code {ended.code}"
    try:
        return f"{worker} was killed by {signal.Signals(ended.code - 128).name}"
    except ValueError:
        return f"{worker} exited with code {ended.code}"


class _Prefixer:
    """Copies lines of a worker to our output, with its rank in front."""

    _lock = threading.Lock()  # lines of two ranks must not mix

    # Of terminals, none of them hard to read on black or on white.
    _COLOURS = (32, 33, 34, 35, 36, 31)

    def __init__(self, pipe, rank, target, colour):
        prefix = f"[{rank}] "
        if colour:
            prefix = f"\x1b[{self._COLOURS[rank % len(self._COLOURS)]}m[{rank}]\x1b[0m "
        self._thread = threading.Thread(
            target=self._copy, args=(pipe, prefix.encode(), target), daemon=True)
        self._thread.start()

    def _copy(self, pipe, prefix, target):
        with pipe:
            for line in pipe:
                with self._lock:
                    target.write(prefix + line if line.endswith(b"\n") else prefix + line + b"\n")
                    target.flush()

    def finish(self):
        # A grandchild may hold the pipe open for ever.
        self._thread.join(5)


class Workers:
    """Every worker leads a process group of its own, so that what it started ends with it."""

    def __init__(self, commands, prefix=False, colour=False):
        """commands: (command, environment) of each rank. prefix: the rank in front of each line, in
        `colour`."""
        self._colour = colour
        self._selector = selectors.DefaultSelector()
        self._alive = {}
        self._prefixers = []
        try:
            for rank, (command, environment) in enumerate(commands):
                self._start(rank, command, environment, prefix)
        except BaseException:
            self.end(0)
            raise

    def _start(self, rank, command, environment, prefix):
        output = subprocess.PIPE if prefix else None
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=die_with_parent)
        self._alive[rank] = process
        descriptor = os.pidfd_open(process.pid)
        self._selector.register(descriptor, selectors.EVENT_READ, rank)
        if prefix:
            self._prefixers.append(_Prefixer(process.stdout, rank, sys.stdout.buffer, self._colour))
            self._prefixers.append(_Prefixer(process.stderr, rank, sys.stderr.buffer, self._colour))

    @property
    def alive(self):
        return bool(self._alive)

    def watch(self, wakeup, timeout=None):
        """Waits for exits; returns them. Also returns, with none, when `wakeup` is readable."""
        key = self._selector.register(wakeup, selectors.EVENT_READ, None)
        try:
            ready = self._selector.select(timeout)
        finally:
            self._selector.unregister(key.fileobj)
        return [self._reap(key) for key, _ in ready if key.data is not None]

    def _reap(self, key):
        rank = key.data
        process = self._alive.pop(rank)
        self._selector.unregister(key.fileobj)
        os.close(key.fileobj)
        # Before wait(): the zombie still keeps its id from being used again.
        _signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
        return Exit(rank, process.pid, 128 - code if code < 0 else code)

    def end(self, grace):
        """SIGTERM to all, and SIGKILL to those still there after `grace` seconds."""
        for process in self._alive.values():
            _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self._alive:
            left = deadline - time.monotonic()
            if left <= 0:
                for process in self._alive.values():
                    _signal_group(process.pid, signal.SIGKILL)
            ready = self._selector.select(max(left, 0) if left > 0 else None)
            for key, _ in ready:
                self._reap(key)
        for prefixer in self._prefixers:
            prefixer.finish()
        self._selector.close()


def _signal_group(group, number):
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
