"""Optimisers of PyTorch's interface over parameters that all ranks share. docs/optimisers.md.

    from fabricshm import optim

    group = session.arena("job", bytes=4 << 30).join("train", rank, world)
    optimiser = optim.AdamW(model.parameters(), lr=1e-3, group=group)
    for batch in batches:
        optimiser.zero_grad()
        loss(model(batch)).backward()      # this rank's own gradient: no DistributedDataParallel
        optimiser.step()                   # the mean of all ranks' gradients moves the one copy

The parameters of the module become views of shared memory, with rank 0's values; so do their
gradients, one for each rank. Without PyTorch: fabricshm.Parameters.
"""

import itertools
import weakref

import torch

from ._errors import PeerError
from ._parameters import Parameters, hyper

__all__ = ["SGD", "Adam", "AdamW", "AdaBelief", "MaxAdaBelief", "SharedOptimiser", "hyper", "share"]

_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class SharedParameters:
    """The tensors of a module in a set: `share()` makes it, an optimiser steps it."""

    def __init__(self, tensors, group, rule, name, options, timeout, names=None):
        types = {tensor.dtype for tensor in tensors}
        if len(types) != 1 or not types <= set(_TYPES):
            found = ", ".join(sorted(str(each) for each in types)) or "none"
            raise TypeError(f"parameters of one type are shared, of {', '.join(_TYPES.values())}; "
                            f"these are {found}")  # fmt: skip
        if any(tensor.device.type != "cpu" for tensor in tensors):
            raise TypeError("parameters on the CPU are shared")
        self.rule = rule
        self.group = group
        self.tensors = list(tensors)
        kind = _TYPES[self.tensors[0].dtype]
        # As files of snapshots have them.
        names = names or [f"p{index}" for index in range(len(self.tensors))]
        self.set = Parameters(
            group, name, dict(zip(names, (tensor.shape for tensor in self.tensors))), rule,
            gradients=kind, copy=None if kind == "float32" else kind,
            options=dict(zip(names, options)), timeout=timeout)  # fmt: skip
        fresh = self.set.steps == 0
        self.gradients, self.masters, self.states = [], [], []
        for each, tensor in zip(names, self.tensors):
            self._take(each, tensor, fresh)
        group.barrier()

    def _take(self, name, tensor, fresh):
        master = torch.from_numpy(self.set.values[name])
        view = master
        if self.set.copies:
            view = torch.from_numpy(self.set.copies[name].view("int16")).view(tensor.dtype)
        gradient = self.set.gradients[name]
        if gradient.dtype == "uint16":
            gradient = gradient.view("int16")
        gradient = torch.from_numpy(gradient).view(tensor.dtype)
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

    def gather_gradients(self):
        """What autograd or the program has put elsewhere goes to where the other ranks read it."""
        for tensor, gradient in zip(self.tensors, self.gradients):
            if tensor.grad is None:
                gradient.zero_()
            elif tensor.grad.data_ptr() != gradient.data_ptr():
                gradient.copy_(tensor.grad)
            tensor.grad = gradient


# By id of a tensor, which its SharedParameters keeps; the module keeps those.
_shared = weakref.WeakValueDictionary()


def share(module, group, optimiser="adamw", name="module", timeout=None):
    """Moves parameters and gradients of `module` into the arena of `group`: one copy of the
    parameters for all ranks, with rank 0's values, and a gradient for each. By all ranks. An optimiser
    of this module that is made of module.parameters() afterwards steps them; `optimiser` says which it
    will be, since its state is made as well. Returns the module."""
    named = {each: tensor for each, tensor in module.named_parameters() if tensor.requires_grad}
    tensors = list(named.values())
    made = SharedParameters(tensors, group, optimiser, name, [0] * len(tensors), timeout, list(named))
    for tensor in tensors:
        _shared[id(tensor)] = made
    module._fabricshm_shared = made
    return module


class SharedOptimiser(torch.optim.Optimizer):
    """What the optimisers have in common. Beyond PyTorch's interface:

    group: whose ranks share the parameters; None when share() has moved them already. name: of the set
    in the group's arena. clip_norm, skip_nonfinite: as for fabricshm.Parameters.step(). survive: when a
    rank dies the others shrink the group and go on; the step in which it died is finished or tried again.
    """

    rule = ""
    state_names = ()

    def __init__(self, params, defaults, group=None, name="optimiser", clip_norm=None,
                 skip_nonfinite=False, survive=False, timeout=None):  # fmt: skip
        super().__init__(params, defaults)
        tensors = list(itertools.chain.from_iterable(g["params"] for g in self.param_groups))
        options = [i for i, g in enumerate(self.param_groups) for _ in g["params"]]
        self.shared = self._find(tensors, group, name, options, timeout)
        self.clip_norm = clip_norm
        self.skip_nonfinite = skip_nonfinite
        self.survive = survive
        self.timeout = timeout
        self.report = None  # of the last step
        self._show_state()

    def _find(self, tensors, group, name, options, timeout):
        found = {id(_shared[id(t)]): _shared[id(t)] for t in tensors if id(t) in _shared}
        if not found:
            if group is None:
                raise TypeError("group: whose ranks share the parameters? Or share() the module first")
            return SharedParameters(tensors, group, self.rule, name, options, timeout)
        shared = next(iter(found.values()))
        if len(found) != 1 or [id(t) for t in shared.tensors] != [id(t) for t in tensors]:
            raise ValueError("an optimiser steps all parameters that share() has moved, and no others")
        if shared.rule != self.rule:
            raise ValueError(f"the module was shared for {shared.rule!r}, not {self.rule!r}")
        if len(self.param_groups) != 1:
            raise ValueError("several groups of parameters: give group= instead of share() before")
        return shared

    # PyTorch's own state, as views of the shared one: state_dict() has it.
    def _show_state(self):
        for tensor, states in zip(self.shared.tensors, self.shared.states):
            entry = self.state[tensor]
            entry["step"] = torch.tensor(float(self.shared.set.steps))
            entry.update(zip(self.state_names, states))

    @property
    def group(self):
        """Whose ranks step together; another one after a rank has died (survive)."""
        return self.shared.group

    def add_param_group(self, param_group):
        if hasattr(self, "shared"):
            raise NotImplementedError("parameters are shared when the optimiser is made, not later")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none=False):
        """set_to_none: autograd makes new gradients, which step() copies; otherwise it adds to those
        that the ranks share."""
        for tensor, gradient in zip(self.shared.tensors, self.shared.gradients):
            if set_to_none:
                tensor.grad = None
            else:
                gradient.zero_()
                tensor.grad = gradient

    def hyper_of(self, group):
        """The hyperparameters of a group of parameters, as hyper() takes them."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure=None, weight=None, scale=1.0):
        """One step, by all ranks. weight: of this rank's gradient in the sum, by default 1 / world.
        scale: of the sum, 1 / loss scale say. self.report has what it did."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.shared.gather_gradients()
        options = [hyper(**self.hyper_of(group)) for group in self.param_groups]
        while True:
            try:
                self.report = self.shared.set.step(
                    options, weight, scale, self.clip_norm, self.skip_nonfinite, self.timeout)  # fmt: skip
                break
            except PeerError:
                # Tried again with the survivors' gradients, unless it was too late to stop it.
                if not self.survive:
                    raise
                if self._recover():
                    break
        for entry in self.state.values():
            entry["step"].fill_(self.shared.set.steps)
        return loss

    def _recover(self):
        old = self.shared.group
        while True:
            smaller = old.shrink(self.timeout)
            try:
                applied = self.shared.set.recover(smaller, self.timeout)
            except PeerError:  # one more died meanwhile
                old = smaller
                continue
            self.shared.group = smaller
            return applied

    def snapshot(self, directory, keep=3, **options):
        """Parameters and state to disk while steps go on, as fabricshm.Parameters.snapshot(); by all
        ranks. Learning rates and the like are the program's to keep."""
        return self.shared.set.snapshot(directory, keep, **options)

    def restore(self, path, timeout=None):
        """Parameters, state and number of steps from a snapshot; by all ranks. Gradients stay."""
        steps = self.shared.set.restore(path, timeout)
        for entry in self.state.values():
            entry["step"].fill_(steps)
        return steps

    def load_state_dict(self, state_dict):
        """By all ranks, with the same: of this class, or of PyTorch's for sgd, adam and adamw."""
        super().load_state_dict(state_dict)
        steps = 0
        for tensor, states in zip(self.shared.tensors, self.shared.states):
            entry = self.state[tensor]
            # PyTorch's SGD counts no steps: with a momentum, the first one is behind it.
            counted = entry.get("step", 1 if entry.get(self.state_names[0]) is not None else 0)
            steps = max(steps, int(counted))
            for name, state in zip(self.state_names, states):
                if self.shared.group.rank == 0 and entry.get(name) is not None:
                    state.copy_(entry[name])
        self.shared.group.barrier()
        self.shared.set.steps = steps
        self.state.clear()
        self._show_state()


class SGD(SharedOptimiser):
    rule = "sgd"
    state_names = ("momentum_buffer",)

    def __init__(self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
                 *, maximize=False, **shared):  # fmt: skip
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                                      nesterov=nesterov, maximize=maximize), **shared)  # fmt: skip

    def hyper_of(self, group):
        names = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return {"learning_rate": group["lr"], **{name: group[name] for name in names}}


class _Moments(SharedOptimiser):
    state_names = ("exp_avg", "exp_avg_sq")
    decay = 0.0

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=None, *,
                 maximize=False, **shared):  # fmt: skip
        decay = self.decay if weight_decay is None else weight_decay
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=decay,
                                      maximize=maximize), **shared)  # fmt: skip

    def hyper_of(self, group):
        return {"learning_rate": group["lr"], "beta1": group["betas"][0], "beta2": group["betas"][1],
                "epsilon": group["eps"], "weight_decay": group["weight_decay"],
                "maximize": group["maximize"]}  # fmt: skip


class Adam(_Moments):
    rule = "adam"


class AdamW(_Moments):
    rule = "adamw"
    decay = 1e-2


class AdaBelief(_Moments):
    rule = "adabelief"
    state_names = ("exp_avg", "exp_avg_var")


class MaxAdaBelief(_Moments):
    rule = "max_adabelief"
    state_names = ("exp_avg", "exp_avg_var", "max_exp_avg_var")
