"""The tensors of a PyTorch module in a set of parameters that all ranks share. docs/optimisers.md."""

import torch

from ._parameters import Parameters

TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class SharedParameters:
    """The tensors of a module in a set: `share()` makes it, an optimiser steps it."""

    has_views = True  # `states` is memory that steps change

    def __init__(self, tensors, group, rule, name, options, timeout, arena=None, names=None):
        types = {tensor.dtype for tensor in tensors}
        if len(types) != 1 or not types <= set(TYPES):
            found = ", ".join(sorted(str(each) for each in types)) or "none"
            raise TypeError(f"parameters of one type are shared, of {', '.join(TYPES.values())}; "
                            f"these are {found}")  # fmt: skip
        if any(tensor.device.type != "cpu" for tensor in tensors):
            raise TypeError("parameters on the CPU are shared")
        self.rule = rule
        self.group = group
        self.tensors = list(tensors)
        kind = TYPES[self.tensors[0].dtype]
        # As files of snapshots have them.
        names = names or [f"p{index}" for index in range(len(self.tensors))]
        self.set = Parameters(
            group, name, dict(zip(names, (tensor.shape for tensor in self.tensors))),
            optimiser=self._stepped_by(), gradients=self._gradient_type(kind),
            copy=None if kind == "float32" else kind, options=dict(zip(names, options)),
            timeout=timeout, arena=arena)  # fmt: skip
        fresh = self.set.steps == 0
        self.gradients, self.masters, self.states = [], [], []
        for each, tensor in zip(names, self.tensors):
            self._take(each, tensor, fresh)
        group.barrier()

    def _stepped_by(self):
        """The optimiser of the set in the pool."""
        return self.rule

    def _gradient_type(self, kind):
        """Of the gradients in the pool, for parameters of type `kind`."""
        return kind

    def _take(self, name, tensor, fresh):
        master = torch.from_numpy(self.set.values[name])
        view = master
        if self.set.copies:
            view = torch.from_numpy(self.set.copies[name].view("int16")).view(tensor.dtype)
        gradient = self._gradient_of(name, tensor)
        # One rank's values are everyone's; a set that was there has its own.
        if fresh and self.group.rank == 0:
            master.copy_(tensor.data)
            if view is not master:
                view.copy_(tensor.data)
        tensor.data = view
        tensor.grad = gradient
        self.masters.append(master)
        self.gradients.append(gradient)
        self.states.append([torch.from_numpy(state) for state in self.set.states[name]])

    def _gradient_of(self, name, tensor):
        """What autograd adds this rank's gradient to."""
        gradient = self.set.gradients[name]
        if gradient.dtype == "uint16":
            gradient = gradient.view("int16")
        return torch.from_numpy(gradient).view(tensor.dtype)

    def gather_gradients(self):
        """What autograd or the program has put elsewhere goes to where the other ranks read it."""
        for tensor, gradient in zip(self.tensors, self.gradients):
            if tensor.grad is None:
                gradient.zero_()
            elif tensor.grad.data_ptr() != gradient.data_ptr():
                gradient.copy_(tensor.grad)
            tensor.grad = gradient

    def step(self, options, weight, scale, clip_norm, skip_nonfinite, timeout):
        """One attempt, by all ranks. PeerError: it may be repeated once the set is recovered."""
        return self.set.step(options, weight, scale, clip_norm, skip_nonfinite, timeout)

    @property
    def steps(self):
        """Steps that were applied so far."""
        return self.set.steps

    @steps.setter
    def steps(self, count):
        self.set.steps = count

    def recover(self, group, timeout):
        """True: the step that failed has happened."""
        return self.set.recover(group, timeout)

    def snapshot(self, directory, keep, **options):
        return self.set.snapshot(directory, keep, **options)

    def restore(self, path, timeout):
        return self.set.restore(path, timeout)

    def settle(self):
        """The step that was attempted last has been applied."""

    def load_all(self, loaded):
        """What a checkpoint has for each tensor."""
        for states, values in zip(self.states, loaded):
            self.load(states, values)

    def load(self, states, loaded):
        """What a checkpoint has for one tensor goes into its state: None where it has nothing. By all
        ranks, before a barrier."""
        if self.group.rank == 0:
            copy_states(states, loaded)


def copy_states(states, loaded):
    for state, values in zip(states, loaded):
        if values is not None:
            state.copy_(values)
