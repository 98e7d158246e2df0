"""How a run ends before its time: whatever ends this program, what it started goes with it."""

import contextlib
import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_unbroken = 0  # how many unbroken() are entered
_held_back = []  # signals that came meanwhile


def end_with_parent():
    """In a child, between fork and exec: the kernel ends it when this program is gone, if only by
    SIGKILL. mpirun passes the signal on to its ranks."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def unwind_on_signals():
    """Turns SIGTERM (timeout sends it) and SIGHUP into an exception, as SIGINT is one already, so
    that every `finally` runs. A second one does not interrupt the clearing up."""
    def take(number, _frame):
        # Not ignored yet: what is being started would inherit that.
        if _unbroken:
            _held_back.append(number)
        else:
            _unwind(number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, take)


def _unwind(number):
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


@contextlib.contextmanager
def unbroken():
    """Holds that exception back for a moment: a process that is started is noted down, too, by the code that ends it."""
    global _unbroken  # pylint: disable=global-statement
    _unbroken += 1
    try:
        yield
    finally:
        _unbroken -= 1
        if _held_back and not _unbroken:
            _unwind(_held_back.pop())
