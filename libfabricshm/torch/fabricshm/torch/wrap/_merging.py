"""Gradients of all ranks, merged at the end of each backward(): what .grad has then is of the whole batch.

It hangs on the parameters and not on a module's forward(), as DistributedDataParallel does: so it does not matter
which method of the model computes, how often, in how many models, or how many batches are accumulated. ADR 35.
"""

import zlib

import torch
import torch.distributed as dist

from .. import use_arena_allocator


class Gradients:
    """Of the parameters that optimisers have."""

    def __init__(self):
        self.parameters = []
        self._known = {}  # id -> position
        self._hooked = set()
        self._before = None  # by position: what .grad was before this backward; None: no backward runs
        self._buffers = {}  # (type, positions) -> where these gradients are summed

    def add(self, tensors):
        """Those that are new."""
        fresh = [tensor for tensor in tensors if id(tensor) not in self._known]
        for tensor in fresh:
            if tensor.device.type != "cpu":
                raise RuntimeError(f"a parameter is on {tensor.device}: fabricrun --wrap merges gradients of CPU tensors")
            self._known[id(tensor)] = len(self.parameters)
            self.parameters.append(tensor)
        return fresh

    def has(self, tensor):
        return id(tensor) in self._known

    def position(self, tensor):
        return self._known[id(tensor)]

    def begin(self):
        """A backward begins."""
        for position, tensor in enumerate(self.parameters):
            # Frozen ones may be trained later.
            if tensor.requires_grad and position not in self._hooked:
                self._hooked.add(position)
                tensor.register_hook(self._arrival_at(position))
        self._before = {}

    def _arrival_at(self, position):
        tensor = self.parameters[position]

        def arrive(_gradient):
            # Before autograd adds to .grad: what was accumulated before has been merged already.
            if self._before is not None and position not in self._before:
                self._before[position] = tensor.grad
                tensor.grad = None

        return arrive

    def cancel(self):
        """The backward has failed."""
        self._before = None

    def arrived(self):
        """(positions of the parameters that got gradients, their checksum)."""
        positions = sorted(self._before)
        return positions, zlib.crc32(repr(positions).encode())

    def union(self, positions):
        """Of all ranks."""
        mask = torch.zeros(len(self.parameters), dtype=torch.uint8)
        mask[positions] = 1
        dist.all_reduce(mask, op=dist.ReduceOp.MAX)
        return mask.nonzero().flatten().tolist()

    def merge(self, positions, weight, sums=True):
        """.grad of these parameters becomes the sum over ranks of weight * .grad, on top of what was accumulated
        before. sums: False leaves the sum to the parameter server, and weights alone."""
        before, self._before = self._before, None
        types = {}
        for position in positions:
            tensor = self.parameters[position]
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            if tensor.grad.is_sparse:
                raise RuntimeError("a gradient is sparse: fabricrun --wrap merges dense ones (Embedding(sparse=False))")
            types.setdefault(tensor.dtype, []).append(position)
        for kind in sorted(types, key=str):
            self._sum(types[kind], weight, sums)
        for position in positions:
            old, tensor = before.get(position), self.parameters[position]
            if old is not None:
                tensor.grad = old.add_(tensor.grad)

    def _sum(self, positions, weight, sums):
        gradients = [self.parameters[position].grad for position in positions]
        if weight == 0:  # of a borrowed sample, which may be anything: 0 * inf is NaN
            torch._foreach_zero_(gradients)
        elif weight != 1:
            torch._foreach_mul_(gradients, weight)
        if not sums:
            return
        flat, views = self._buffer(positions, gradients)
        for view, gradient in zip(views, gradients):
            view.copy_(gradient)
        dist.all_reduce(flat)
        for view, gradient in zip(views, gradients):
            gradient.copy_(view)

    def _buffer(self, positions, gradients):
        key = gradients[0].dtype, tuple(positions)
        if key not in self._buffers:
            if len(self._buffers) > 16:  # sets that change all the time
                self._buffers.clear()
            with use_arena_allocator():
                flat = torch.zeros(sum(each.numel() for each in gradients), dtype=gradients[0].dtype)
            views, offset = [], 0
            for gradient in gradients:
                views.append(flat[offset : offset + gradient.numel()].view(gradient.shape))
                offset += gradient.numel()
            self._buffers[key] = flat, views
        return self._buffers[key]
