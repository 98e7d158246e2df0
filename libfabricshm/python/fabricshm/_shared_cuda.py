"""The tensors of a PyTorch module on a CUDA device, whose optimiser step is one kernel of all ranks.
docs/optimisers.md."""

import math
import threading
import types
import weakref

import torch

from . import _fabricshm
from ._arrays import milliseconds, type_code
from ._errors import FabricError
from ._shared import TYPES

UNIT = 128  # elements: each rank's range is whole lines of every type
WATCH_EVERY = 0.1  # seconds


def _watch(on_device, stopped):
    """A program that waits for its device alone would hear of a dead rank at the timeout."""
    while not stopped.wait(WATCH_EVERY):
        try:
            on_device.status()
        except FabricError:
            return  # it stays so, and the next step says it


class CudaParameters:
    """As SharedParameters, for parameters on a device. Each rank has them and its gradient there, one
    behind the other, and of the master copies in float32 and the optimiser's state an equal part. A step
    adds up the ranks' gradients, moves this rank's part and gives the new parameters to all ranks, on
    the current stream and without waiting for it."""

    has_views = False  # the state of a tensor is in parts on the ranks

    def __init__(self, tensors, group, rule, name, options, timeout, arena=None, names=None):
        self.rule = rule
        self.group = group
        self.tensors = list(tensors)
        self.device = self._check(options, arena)
        self._code, state_count = _fabricshm.OPTIMISERS[rule]
        self._kind = TYPES[self.tensors[0].dtype]
        self.steps = 0
        count = sum(tensor.numel() for tensor in self.tensors)
        self._part = math.ceil(count / (group.world * UNIT)) * UNIT
        self._total = self._part * group.world
        made = {"dtype": self.tensors[0].dtype, "device": self.device}
        with torch.no_grad():
            self._values = torch.zeros(self._total, **made)
            self._gradient = torch.zeros(self._total, **made)
            for view, tensor in zip(self._views(self._values), self.tensors):
                view.copy_(tensor)
        # Half of it has room for all gradients, or for all parameters: neither is cut.
        stage = 2 * self._values.numel() * self._values.element_size()
        self._on_device = _fabricshm.CudaGroup(
            group._handle, self.device.index, max(stage, 1 << 16), milliseconds(timeout))  # fmt: skip
        stopped = threading.Event()
        weakref.finalize(self, stopped.set)
        threading.Thread(target=_watch, args=(self._on_device, stopped), name="fabricshm-cuda", daemon=True).start()
        # One rank's values are everyone's.
        self._on_device.broadcast(
            self._values.data_ptr(), self._total, type_code(self._kind), 0, self._stream())  # fmt: skip
        with torch.no_grad():
            self._master = self._own(self._values).float().clone()
            self._state = [torch.zeros_like(self._master) for _ in range(state_count)]
        self.gradients = self._views(self._gradient)
        for tensor, view, gradient in zip(self.tensors, self._views(self._values), self.gradients):
            tensor.data = view
            tensor.grad = gradient

    def _check(self, options, arena):
        devices = {tensor.device for tensor in self.tensors}
        kinds = {tensor.dtype for tensor in self.tensors}
        if len(devices) != 1:
            raise TypeError(f"parameters on one device are shared; these are on {sorted(map(str, devices))}")
        if len(kinds) != 1 or not kinds <= set(TYPES):
            raise TypeError(f"parameters of one type are shared, of {', '.join(TYPES.values())}")
        if len(set(options)) != 1:
            raise ValueError("parameters on a device are one group, with the same hyperparameters")
        if arena is not None:
            raise ValueError("parameters on a device lie there, and in no arena")
        return devices.pop()

    def _views(self, row):
        """Of each tensor's part of `row`, in its shape."""
        parts = torch.split(row[: sum(t.numel() for t in self.tensors)], [t.numel() for t in self.tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors)]

    def _own(self, row):
        return row[self.group.rank * self._part : (self.group.rank + 1) * self._part]

    def _stream(self):
        return torch._C._cuda_getCurrentRawStream(self.device.index)

    @property
    def states(self):
        """Of each tensor; whole, so this is an operation of all ranks."""
        wholes = [self._views(self._gathered(state)) for state in self._state]
        return [list(states) for states in zip(*wholes)] or [[] for _ in self.tensors]

    def _gathered(self, part):
        whole = torch.empty(self._total, dtype=torch.float32, device=self.device)
        self._on_device.all_gather(
            part.data_ptr(), whole.data_ptr(), self._part, type_code("float32"), self._stream())  # fmt: skip
        return whole

    def gather_gradients(self):
        """What autograd or the program has put elsewhere goes to where the step reads it."""
        for tensor, gradient in zip(self.tensors, self.gradients):
            if tensor.grad is None:
                gradient.zero_()
            elif tensor.grad.data_ptr() != gradient.data_ptr():
                gradient.copy_(tensor.grad)
            tensor.grad = gradient

    def step(self, options, weight, scale, clip_norm, skip_nonfinite, timeout):
        if clip_norm is not None or skip_nonfinite:
            raise ValueError("on a device no step is clipped or skipped: the norm would have to be waited for")
        if weight is not None:
            self._gradient.mul_(weight)
        else:
            scale = scale / self.group.world
        wanted = _fabricshm.CudaStep()
        wanted.optimiser = self._code
        wanted.gradient_dtype = wanted.publish_dtype = type_code(self._kind)
        wanted.scale = scale
        wanted.total = self._total
        wanted.begin, wanted.count = self.group.rank * self._part, self._part
        # Memory of the current stream: it lives until the kernel has run.
        factors = torch.frombuffer(
            bytearray(_fabricshm.CudaGroup.factors(self._code, options[0], self.steps + 1)), dtype=torch.uint8
        ).to(self.device)  # fmt: skip
        wanted.factors = factors.data_ptr()
        wanted.parameters = self._master.data_ptr()
        for name, state in zip(("first", "second", "maximum"), self._state):
            setattr(wanted, name, state.data_ptr())
        wanted.gradient, wanted.publish = self._gradient.data_ptr(), self._values.data_ptr()
        self._on_device.step(wanted, self._stream())
        self.steps += 1
        # What a step measures is on the device, and is not waited for.
        return types.SimpleNamespace(
            step=self.steps, skipped=False, norm=math.nan, waited=math.nan, computed=math.nan)  # fmt: skip

    def wait(self, timeout=None):
        """Until the current stream has nothing to do; raises when a rank has died or did not come."""
        self._on_device.wait(self._stream(), milliseconds(timeout))

    def settle(self):
        """The step that was attempted last is on the stream."""

    def load_all(self, loaded):
        """What a checkpoint has for each tensor; by all ranks, with the same. The parameters are as they
        are now, and the same on all ranks."""
        with torch.no_grad():
            self._master.copy_(self._own(self._values))
            for number, state in enumerate(self._state):
                whole = torch.zeros(self._total, dtype=torch.float32, device=self.device)
                for view, values in zip(self._views(whole), loaded):
                    if values[number] is not None:
                        view.copy_(values[number])
                state.copy_(self._own(whole))

    def recover(self, group, timeout):
        raise NotImplementedError("a rank that dies ends the training of parameters on a device")

    def snapshot(self, directory, keep, **options):
        raise NotImplementedError("parameters on a device have state_dict(), and no snapshots")

    def restore(self, path, timeout):
        raise NotImplementedError("parameters on a device have load_state_dict(), and no snapshots")
