"""Slows a process down to the speed of its device."""

import time

# A wait shorter than this found its data there already.
_AT_ONCE_S = 0.0005


class Pacer:
    """Stretches each segment to the time that its device would take.

    A device that is busy all the time ends its segments exactly one segment's time apart. A process
    that sleeps wakes up late, so the next segment begins, for the reckoning, when the last one
    should have ended: what one sleep overshoots, the next leaves out. Where the machine itself is
    slower than the device, the segment ends when it ends, and is counted as late.
    """

    def __init__(self, clock=time.monotonic, sleep=time.sleep):
        self._clock = clock
        self._sleep = sleep
        self._start = None
        self._end = None
        self.busy_s = 0.0  # as the device is, or this machine where that is slower
        self.real_s = 0.0  # what this machine needed
        self.late = 0
        self._asked = None
        self._began = None

    def ask(self):
        """Before waiting for the data of a segment."""
        self._asked = self._clock()

    def begin(self):
        """The data is there."""
        self._began = self._clock()
        had_to_wait = self._began - self._asked > _AT_ONCE_S
        self._start = self._began if had_to_wait or self._end is None else self._end

    def finish(self, seconds):
        """The segment is computed: returns when the device would have done it."""
        now = self._clock()
        real = now - self._began
        self.real_s += real
        self.busy_s += max(real, seconds)
        # Having begun late is no fault of the machine's speed; needing longer is.
        self.late += real > seconds
        self._end = max(now, self._start + seconds)
        if self._end > now:
            self._sleep(self._end - now)
