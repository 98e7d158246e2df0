"""What a step is measured by: the host's clock, or events of the GPU that computes it."""

import time
from dataclasses import dataclass
from typing import Any

import torch


class HostClock:
    """Marks are moments of the host, in nanoseconds. They have passed when they are made."""

    on_device = False

    def mark(self):
        return time.monotonic_ns()

    def has_passed(self, _mark):
        return True

    def ns_between(self, first, second):
        return second - first


class DeviceClock:
    """Marks are events on the current stream of one device: the moment when the device comes to them.

    The host only hands work to the device, and is ahead of it. Making a mark does not wait.
    `cuda` is torch.cuda, or what a test has in its place.
    """

    on_device = True

    def __init__(self, device, cuda=torch.cuda):
        self._device, self._cuda = device, cuda

    def mark(self):
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    def has_passed(self, mark):
        return mark.query()

    def ns_between(self, first, second):
        """Waits until the device has come to both."""
        first.synchronize()
        second.synchronize()
        return round(first.elapsed_time(second) * 1e6)


def clock_for(parameters):
    """The clock of a model. One that is spread over several devices has no stream that all of it runs on."""
    devices = {parameter.device for parameter in parameters}
    if len(devices) == 1 and next(iter(devices)).type == "cuda":
        return DeviceClock(devices.pop())
    return HostClock()


@dataclass
class Span:
    """A step of one rank, between marks of one clock."""

    clock: Any
    began: Any
    ended: Any
    # From the last gradient of this rank to the merged one, when it could compute nothing; None: no merge.
    asked: Any = None
    merged: Any = None

    def is_over(self):
        return self.clock.has_passed(self.ended)

    def compute_ns(self):
        """The step without the merge. Waits for a device that has not come to its end."""
        exposed = 0
        if self.asked is not None and self.merged is not None:
            exposed = max(self.clock.ns_between(self.asked, self.merged), 0)
        return max(self.clock.ns_between(self.began, self.ended) - exposed, 0)
