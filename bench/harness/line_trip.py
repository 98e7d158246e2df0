"""Asks how far apart the two cores are now: `near`, `far`."""

import os
import select
import subprocess

from harness.endings import end_with_parent

# One way of a cache line, in nanoseconds. The two virtual cores of the machines that this was
# written on showed about 60 at one time and about 250 at another, with little between.
NEAR_BELOW_NS = 125


class LineTrip:
    """The running bench_line_trip; without it (no program, one core) every state is `any`."""

    def __init__(self, program, near_below_ns=NEAR_BELOW_NS):
        self._near_below = near_below_ns
        self._process = None
        # With one core the two threads would wait for the scheduler.
        if program and len(os.sched_getaffinity(0)) > 1:
            self._process = subprocess.Popen([program], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, preexec_fn=end_with_parent)

    def measure(self, timeout=10):
        """Nanoseconds of one way, or None."""
        if not self._process:
            return None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.stop()
            return None
        return float(line)

    def state(self, before, after):
        """Of what ran between two measurements; `mixed` when they disagree."""
        if before is None or after is None:
            return "any"
        near = [trip < self._near_below for trip in (before, after)]
        return "mixed" if near[0] != near[1] else "near" if near[0] else "far"

    def stop(self):
        """Ends it. Once more does no harm."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
