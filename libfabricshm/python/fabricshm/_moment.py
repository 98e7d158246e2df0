"""max-AdaBelief by moments: each rank keeps m and s of its own gradient. docs/optimisers.md.

With the rank's own gradient g, and t the number of the step:

    m = b1 m + (1 - b1) g        s = b2 s + (1 - b2) (g - m)^2 + e        r = max(r, s / (1 - b2^t))

    mean m = mean over the ranks of m / (1 - b1^t)                        mean r = mean over the ranks of r

    p = p (1 - lr d) - lr mean m / (sqrt(mean r) + e)

The mean of r is an allreduce. That of m is the step of the set in the pool: mean r is the same on all
ranks, so that the mean of the quotients is the quotient of the mean, and SGD without a momentum moves the
parameters by it. So they exist once here too, and what survives a death is what the set's step says.
"""

import math

import torch

from ._parameters import hyper
from ._shared import SharedParameters, copy_states

_ARRAYS = 3  # m, s and the maximum


def check(values):
    """The step in the pool is SGD, which does not look at these."""
    for name, usable in (("beta1", 0 <= values.beta1 < 1), ("beta2", 0 <= values.beta2 < 1),
                         ("epsilon", 0 <= values.epsilon < math.inf)):  # fmt: skip
        if not usable:
            raise ValueError(f"{name} is out of its range: {getattr(values, name)}")


class MomentParameters(SharedParameters):
    """Parameters in the pool, moments in this process."""

    def __init__(self, tensors, group, rule, name, options, timeout, arena=None, names=None):
        sizes = [tensor.numel() for tensor in tensors]
        total = sum(sizes)
        # A step that comes to nothing must leave the state alone: it is worked out next to it.
        self._kept = torch.zeros(_ARRAYS, total)
        self._next = torch.zeros(_ARRAYS, total)
        self._mean = torch.zeros(total)
        self._directions = []  # in the pool, where the other ranks read them
        self._options = list(options)
        super().__init__(tensors, group, rule, name, options, timeout, arena, names)
        self._places = []
        for index, (tensor, end) in enumerate(zip(self.tensors, torch.tensor(sizes).cumsum(0).tolist())):
            self._places.append(slice(end - tensor.numel(), end))
            kept = self._kept[:, self._places[-1]]
            self.states[index] = [array.view(tensor.shape) for array in kept]

    def _stepped_by(self):
        return "sgd"

    def _gradient_type(self, kind):
        return "float32"

    def _gradient_of(self, name, tensor):
        self._directions.append(torch.from_numpy(self.set.gradients[name]))
        # Stays out of the pool: a step that is repeated takes it again.
        return torch.zeros_like(tensor, memory_format=torch.contiguous_format)

    def step(self, options, weight, scale, clip_norm, skip_nonfinite, timeout):
        for values in options:
            check(values)
        number = self.set.steps + 1
        for index, option in enumerate(self._options):
            self._move_moments(index, options[option], number, scale)
        mean = self._mean.numpy()
        self.group.all_reduce(self._next[2].numpy(), op="avg", out=mean, timeout=timeout)
        for index, option in enumerate(self._options):
            self._point(index, options[option], number)
        # SGD has no use for betas and epsilon; ranks that differ in them are found by them.
        moves = [hyper(learning_rate=each.learning_rate, weight_decay=each.weight_decay, beta1=each.beta1,
                       beta2=each.beta2, epsilon=each.epsilon) for each in options]  # fmt: skip
        return self.set.step(moves, weight, timeout=timeout)

    def _move_moments(self, index, values, number, scale):
        place = self._places[index]
        gradient = self.gradients[index].view(-1).float() * (-scale if values.maximize else scale)
        (m, s, most), (next_m, next_s, next_most) = self._kept[:, place], self._next[:, place]
        torch.add(values.beta1 * m, gradient, alpha=1 - values.beta1, out=next_m)
        torch.add(values.beta2 * s, (gradient - next_m).square_(), alpha=1 - values.beta2, out=next_s)
        next_s.add_(values.epsilon)
        torch.maximum(most, next_s / (1 - values.beta2**number), out=next_most)

    def _point(self, index, values, number):
        place = self._places[index]
        root = self._mean[place].sqrt_().add_(values.epsilon)
        mean = self._next[0, place] / (1 - values.beta1**number)
        torch.div(mean, root, out=self._directions[index].view(-1))

    def snapshot(self, directory, keep, **options):
        raise ValueError("a snapshot has what the ranks share, and these moments are each rank's own: "
                         "save state_dict() of every rank")  # fmt: skip

    def restore(self, path, timeout):
        raise ValueError("the moments of this mode are in no snapshot: load_state_dict()")

    def settle(self):
        self._kept.copy_(self._next)

    def load(self, states, loaded):
        copy_states(states, loaded)
