"""Local SGD: replicas that run apart for some steps are merged into their weighted mean."""

import math

import torch
import torch.distributed as dist


RELATIVE_RISE = 1e-3  # what is no rise, even of a loss without any noise


class LossTrend:
    """Whether the loss has begun to rise: a fast mean of it leaves a slow one upwards.

    "Rise" is more than `deviations` times what the noise moves the fast mean by.
    """

    def __init__(self, fast=0.3, slow=0.05, deviations=5.0, warm_up=10):
        self._rates = (fast, slow)
        self._deviations = deviations
        self._warm_up = warm_up
        self.restart()

    def restart(self):
        """Forgets the past, after an action that changes what is normal."""
        self._count = 0
        self._fast = self._slow = self._variance = 0.0

    def worsened(self, loss):
        """Takes the loss of one more step. A loss that is no number is the worst of trends."""
        if not math.isfinite(loss):
            return True
        self._count += 1
        # Plain means of the first losses: the very first must not weigh more than the others.
        fast, slow = (max(rate, 1.0 / self._count) for rate in self._rates)
        residual = loss - self._fast if self._count > 1 else 0.0
        self._fast += fast * (loss - self._fast)
        self._slow += slow * (loss - self._slow)
        # The noise of the past: a jump must not excuse itself.
        noise = math.sqrt(self._variance * fast / (2 - fast))
        self._variance += slow * (residual * residual - self._variance)
        limit = self._deviations * noise + RELATIVE_RISE * abs(self._slow)
        return self._count > self._warm_up and self._fast - self._slow > limit


def _flatten(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _unflatten(flat, tensors):
    offset = 0
    for tensor in tensors:
        part = flat[offset : offset + tensor.numel()]
        tensor.detach().copy_(part.view_as(tensor))
        offset += tensor.numel()


def _by_type(tensors):
    kinds = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    # Ranks must reduce in one order.
    return [kinds[kind] for kind in sorted(kinds, key=str)]


def weighted_mean(tensors, weight, group=None):
    """Replaces floating-point tensors by the sum of weight * tensor over the ranks, whose weights
    add up to 1. Weight 0 adds nothing, not even a NaN."""
    for alike in _by_type(tensors):
        flat = _flatten(alike)
        flat = flat.zero_() if weight == 0 else flat.mul_(weight)
        dist.all_reduce(flat, group=group)
        _unflatten(flat, alike)


def state_tensors(module, optimizer):
    """Everything of a replica that may part from the others: parameters, buffers, and the
    optimizer's momenta. A rank that adopts only the parameters would part again at once."""
    tensors = [*module.parameters(), *module.buffers()]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            # Steps are counted alike everywhere; a mean would only round them.
            tensors += [state[name] for name in sorted(state)
                        if name != "step" and torch.is_tensor(state[name])]
    return [tensor for tensor in tensors if tensor.is_floating_point()]
