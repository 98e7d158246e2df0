"""How a run ends before its time: whatever ends this program, what it started goes with it."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent():
    """In a child, between fork and exec: the kernel ends it when this program is gone, if only by
    SIGKILL. mpirun passes the signal on to its ranks."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def unwind_on_signals():
    """Turns SIGTERM (timeout sends it) and SIGHUP into an exception, as SIGINT is one already, so
    that every `finally` runs. A second one does not interrupt the clearing up."""
    def unwind(number, _frame):
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, unwind)
