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

import functools
import time
import weakref

import torch

from ._errors import PeerError
from ._moment import MomentParameters
from ._overlap import BucketedParameters
from ._parameters import hyper
from ._shared import SharedParameters
from ._shared_cuda import CudaParameters

__all__ = ["SGD", "Adam", "AdamW", "AdaBelief", "MaxAdaBelief", "SharedOptimiser", "hyper", "share"]

# By id of a tensor, which its SharedParameters keeps; the module keeps those.
_shared = weakref.WeakValueDictionary()


def are_on_cuda(tensors):
    return any(tensor.device.type == "cuda" for tensor in tensors)


def share(module, group, optimiser="adamw", name="module", timeout=None, arena=None):
    """Moves parameters and gradients of `module` into the arena of `group`: one copy of the
    parameters for all ranks, with rank 0's values, and a gradient for each. By all ranks. An optimiser
    of this module that is made of module.parameters() afterwards steps them; `optimiser` says which it
    will be, since its state is made as well. Returns the module.

    Of a module on a CUDA device each rank keeps the parameters there, and a part of the state: what is
    in the arena is what a step exchanges."""
    named = {each: tensor for each, tensor in module.named_parameters() if tensor.requires_grad}
    tensors = list(named.values())
    kind = CudaParameters if are_on_cuda(tensors) else SharedParameters
    made = kind(tensors, group, optimiser, name, [0] * len(tensors), timeout, arena, list(named))
    for tensor in tensors:
        _shared[id(tensor)] = made
    module._fabricshm_shared = made
    return module


class SharedOptimiser(torch.optim.Optimizer):
    """What the optimisers have in common. Beyond PyTorch's interface:

    group: whose ranks share the parameters; None when share() has moved them already. name: of the set
    in `arena` (one, or several to choose the fastest of; by default the group's). clip_norm,
    skip_nonfinite: as for fabricshm.Parameters.step(). survive: when a rank dies the others shrink the
    group and go on; the step in which it died is finished or tried again.
    overlap: a thread steps the parameters in buckets of `bucket_bytes`, last ones first, while backward goes
    on; sets NAME.0, NAME.1 and so on. One backward per step; from its first gradient until step() returns
    the group is the optimiser's, and no hyperparameter changes. exposed_ms: how long step() took after all.
    """

    rule = ""
    state_names = ()
    parameters_class = SharedParameters

    def __init__(self, params, defaults, group=None, name="optimiser", clip_norm=None,
                 skip_nonfinite=False, survive=False, timeout=None, arena=None, overlap=False,
                 bucket_bytes=4 << 20):  # fmt: skip
        if overlap and (clip_norm is not None or skip_nonfinite):
            raise ValueError("with overlap nothing can be clipped or skipped: the norm is that of all buckets")
        if overlap and self.parameters_class is not SharedParameters:
            raise ValueError("overlap is not for this mode")
        if overlap:
            self.parameters_class = functools.partial(BucketedParameters, bucket_bytes=bucket_bytes)
        super().__init__(params, defaults)
        # Frozen ones are left alone, as PyTorch leaves what has no gradient.
        chosen = [(t, i) for i, g in enumerate(self.param_groups) for t in g["params"] if t.requires_grad]
        if not chosen:
            raise ValueError("all parameters are frozen: none has requires_grad")
        tensors, options = [t for t, _ in chosen], [i for _, i in chosen]
        if are_on_cuda(tensors) and self.parameters_class is SharedParameters:
            self.parameters_class = CudaParameters
        if are_on_cuda(tensors) and (overlap or survive):
            raise ValueError("parameters on a device: neither overlap nor survive")
        self._frozen = [t for g in self.param_groups for t in g["params"] if not t.requires_grad]
        self.shared = self._find(tensors, group, name, options, timeout, arena)
        self.clip_norm = clip_norm
        self.skip_nonfinite = skip_nonfinite
        self.survive = survive
        self.timeout = timeout
        self.report = None  # of the last step; with overlap, of its last bucket
        self.exposed_ms = None  # of the last step(), without its closure
        self.overlap = overlap
        if overlap:
            self.shared.start(self._options)
        self._show_state()

    def _find(self, tensors, group, name, options, timeout, arena):
        found = {id(_shared[id(t)]): _shared[id(t)] for t in tensors if id(t) in _shared}
        if not found:
            if group is None:
                raise TypeError("group: whose ranks share the parameters? Or share() the module first")
            return self.parameters_class(tensors, group, self.rule, name, options, timeout, arena)
        if self.parameters_class not in (SharedParameters, CudaParameters):
            raise ValueError("this mode needs group=, and no share() before")
        shared = next(iter(found.values()))
        if len(found) != 1 or [id(t) for t in shared.tensors] != [id(t) for t in tensors]:
            raise ValueError("an optimiser steps all parameters that share() has moved, and no others")
        if shared.rule != self.rule:
            raise ValueError(f"the module was shared for {shared.rule!r}, not {self.rule!r}")
        if len(self.param_groups) != 1:
            raise ValueError("several groups of parameters: give group= instead of share() before")
        return shared

    # PyTorch's own state, as views of the shared one: state_dict() has it. Of parameters on a device there
    # are no views, and state_dict() brings the ranks' parts together.
    def _show_state(self, gathered=()):
        all_states = self.shared.states if self.shared.has_views else gathered or [()] * len(self.shared.tensors)
        self.state.clear()
        for tensor, states in zip(self.shared.tensors, all_states):
            entry = self.state[tensor]
            entry["step"] = torch.tensor(float(self.shared.steps))
            entry.update(zip(self.state_names, states))

    def state_dict(self):
        """As PyTorch's. Of parameters on a device by all ranks, with copies of the state."""
        if self.shared.has_views:
            return super().state_dict()
        self._show_state(self.shared.states)
        made = super().state_dict()
        self._show_state()
        return made

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
        if self.overlap and self.shared.is_begun:
            raise RuntimeError("backward has begun a step: step() first")
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
        if self.overlap and (weight is not None or scale != 1.0):
            raise ValueError("with overlap gradients are summed before step() is called: no weight, no scale")
        begun = time.perf_counter()
        self._check_frozen()
        options = self._options()
        if self.overlap:
            self.shared.check(options)
        self.shared.gather_gradients()
        while True:
            try:
                self.report = self.shared.step(
                    options, weight, scale, self.clip_norm, self.skip_nonfinite, self.timeout)  # fmt: skip
                break
            except PeerError:
                # Tried again with the survivors' gradients, unless it was too late to stop it.
                if not self.survive:
                    raise
                if self._recover():
                    break
        self.shared.settle()
        for entry in self.state.values():
            entry["step"].fill_(self.shared.steps)
        self.exposed_ms = 1000 * (time.perf_counter() - begun)
        return loss

    def _check_frozen(self):
        # Silently they would stay where they are, or go on by their momentum and decay.
        if any(t.requires_grad for t in self._frozen):
            raise ValueError("a parameter was frozen when the optimiser was made, and is not any more: make "
                             "another optimiser, after this one is closed, under another name")  # fmt: skip
        if not all(t.requires_grad for t in self.shared.tensors):
            raise ValueError("a parameter was frozen after the optimiser was made: make another optimiser of "
                             "those that are left, under another name")  # fmt: skip

    def _options(self):
        return [hyper(**self.hyper_of(group)) for group in self.param_groups]

    def _recover(self):
        old = self.shared.group
        while True:
            smaller = old.shrink(self.timeout)
            try:
                applied = self.shared.recover(smaller, self.timeout)
            except PeerError:  # one more died meanwhile
                old = smaller
                continue
            self.shared.group = smaller
            return applied

    def snapshot(self, directory, keep=3, **options):
        """Parameters and state to disk while steps go on, as fabricshm.Parameters.snapshot(); by all
        ranks. Learning rates and the like are the program's to keep."""
        return self.shared.snapshot(directory, keep, **options)

    def restore(self, path, timeout=None):
        """Parameters, state and number of steps from a snapshot; by all ranks. Gradients stay."""
        steps = self.shared.restore(path, timeout)
        for entry in self.state.values():
            entry["step"].fill_(steps)
        return steps

    def load_state_dict(self, state_dict):
        """By all ranks, with the same: of this class, or of PyTorch's for sgd, adam and adamw."""
        super().load_state_dict(state_dict)
        steps, loaded = 0, []
        for tensor in self.shared.tensors:
            entry = self.state[tensor]
            # PyTorch's SGD counts no steps: with a momentum, the first one is behind it.
            counted = entry.get("step", 1 if entry.get(self.state_names[0]) is not None else 0)
            steps = max(steps, int(counted))
            loaded.append([entry.get(name) for name in self.state_names])
        self.shared.load_all(loaded)
        self.shared.group.barrier()
        self.shared.steps = steps
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
    """mode "gradient": of the mean of the ranks' gradients, as all other optimisers. "moment": each rank
    keeps the moments of its own gradient, in private memory; the means of m and of the maximum of s over
    the ranks move the parameters. Nothing can be clipped or skipped in it."""

    rule = "max_adabelief"
    state_names = ("exp_avg", "exp_avg_var", "max_exp_avg_var")

    def __init__(self, params, *args, mode="gradient", **shared):
        if mode not in ("gradient", "moment"):
            raise ValueError(f"mode is 'gradient' or 'moment', not {mode!r}")
        self.mode = mode
        if mode == "moment":
            if shared.get("clip_norm") is not None or shared.get("skip_nonfinite"):
                raise ValueError("mode 'moment' merges no gradients that could be clipped or skipped")
            self.rule = "max_adabelief, by moments"
            self.parameters_class = MomentParameters
        super().__init__(params, *args, **shared)
