"""Merging gradients of ranks with uneven shares: g = sum of b_i * g_i, the whole batch's gradient."""

import torch
import torch.distributed as dist

from ._clocks import HostClock


class GradientMerge:
    """Weights this rank's gradients and sums them over the ranks.

    `weight_of_step` is asked once per step, when the first gradients are there. `clock` makes the
    marks (_clocks.py). Used by the thread
    that computes and, for completions, by the one that runs the collectives; never by both at once.
    """

    def __init__(self, weight_of_step, group=None, clock=None):
        self._weight_of_step = weight_of_step
        self._group = group
        self._clock = HostClock() if clock is None else clock
        self.begin(apart=False, measures=False)

    def begin(self, apart, measures):
        """Before a step: whether its gradients stay what they are (local SGD), and norms are taken."""
        self.apart, self.measures = apart, measures
        self._weight = None
        self.squares = 0.0  # of this rank's own gradient
        self.asked_at = None  # when the last gradient of this rank was there
        self.merged_at = None  # when the merged one was

    def weigh(self, flat):
        """Turns this rank's gradients into its part of the sum."""
        if self.measures:
            # In halves the square of a large gradient would be infinite.
            exact = flat if flat.element_size() >= 4 else flat.float()
            self.squares += torch.dot(exact, exact).item()
        if self._weight is None:
            self._weight = self._weight_of_step()
        if self._weight == 0:
            return flat.zero_()  # a borrowed sample's gradient may be anything, and 0 * inf is NaN
        return flat if self._weight == 1 else flat.mul_(self._weight)

    def hook(self, bucket):
        """As DistributedDataParallel calls a communication hook, for each bucket."""
        flat = self.weigh(bucket.buffer())
        if bucket.is_last():
            self.asked_at = self._clock.mark()
        if self.apart:
            done = torch.futures.Future()
            done.set_result(flat)
            return done
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        return work.get_future().then(self._merged)

    def _merged(self, future):
        value = future.value()[0]
        # Of the last bucket, for they come in order. On a device: the stream of a callback waits for the merge.
        self.merged_at = self._clock.mark()
        return value

    def merge(self, parameters):
        """For a model without DistributedDataParallel, after backward(). A parameter without a
        gradient takes part with zero, so a rank without samples need not compute at all."""
        parameters = [p for p in parameters if p.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.asked_at = self._clock.mark()
        flat = self.weigh(torch.cat([p.grad.reshape(-1) for p in parameters]))
        if not self.apart:
            dist.all_reduce(flat, group=self._group)
        self.merged_at = self._clock.mark()
        offset = 0
        for parameter in parameters:
            part = flat[offset : offset + parameter.numel()]
            parameter.grad.copy_(part.view_as(parameter))
            offset += parameter.numel()
