"""ParameterServer: the parameters of a PyTorch model, served to the ranks of a group. docs/parameter_server.md.

PyTorch is imported when a server is made, and not before.
"""

import os

import numpy

from ._errors import ClosedError, MismatchError
from ._parameters import Parameters, hyper
from ._session import Session, launch

# What PyTorch's optimisers, and programs, call the hyperparameters.
_BY_PYTORCH = {"lr": "learning_rate", "eps": "epsilon"}
_OF_SGD = ("weight_decay", "momentum", "dampening", "nesterov", "maximize")


def rule_of(optimizer):
    """Which of our rules does what an optimiser of PyTorch does; ValueError: none."""
    import torch

    rules = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
    rule = rules.get(type(optimizer))
    if rule is None:
        known = ", ".join(each.__name__ for each in rules)
        raise ValueError(f"a parameter server does the steps of {known}, not of {type(optimizer).__name__}")
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        raise ValueError("a parameter server has no amsgrad; max_adabelief keeps a maximum, too")
    return rule


def _hyper_of(rule, group):
    values = {"learning_rate": group["lr"]}
    if rule == "sgd":
        return hyper(**values, **{name: group[name] for name in _OF_SGD})
    beta1, beta2 = group["betas"]
    return hyper(**values, beta1=beta1, beta2=beta2, epsilon=group["eps"], weight_decay=group["weight_decay"],
                 maximize=group["maximize"])  # fmt: skip


def _own_group(needs, name, timeout):
    """(session, group) of the ranks that a launcher has started, in an arena of their own."""
    place = launch()
    if place.local_world not in (None, place.world):
        raise ValueError(f"a parameter server is of one host; {place.local_world} of {place.world} ranks are on this one")
    job = os.environ.get("TORCHELASTIC_RUN_ID", "job")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    session = Session(timeout=timeout or 30.0)
    arena = session.arena(f"{name}-{job}-{attempt}", bytes=needs(place.world) + (64 << 20))
    return session, arena.join(name, place.rank, place.world)


def _compare_staleness(group, staleness, timeout):
    """MismatchError, on all ranks, where they have different ones."""
    found = numpy.zeros(group.world, "int64")
    found[group.rank] = staleness
    group.all_reduce(found, timeout=timeout)
    for rank, other in enumerate(found.tolist()):
        if other != found[0]:
            raise MismatchError(f"staleness is {other} on rank {rank}, and {found[0]} on rank 0", rank=rank)


class ParameterServer:
    """Serves `parameters` to the ranks of `group`: by all of them, with rank 0's values.

        server = fabricshm.ParameterServer(model.parameters(), optimizer="adamw", lr=1e-3, staleness=2)
        for batch in batches:
            server.zero_grad()
            loss(model(batch)).backward()
            server.step()
        server.close()

    optimizer: sgd, adam, adamw, adabelief or max_adabelief, whose hyperparameters are `values` (as PyTorch
    names them, or as hyper() does); or an SGD, Adam or AdamW of PyTorch, whose groups of parameters are read in
    each step, so that schedulers work. staleness 0: a step waits for all ranks and moves the parameters by the
    mean of their gradients, with the bits of an allreduce and an optimiser. staleness s: each rank's gradient moves
    them by itself when it comes, and no rank is more than s versions ahead of another one that computes; not
    reproducible. group: by default one of the ranks that a launcher has started. timeout: seconds, of every wait.

    A parameter whose gradient is None on all ranks is not stepped. The parameters, and the memory that they are in, stay
    those that the server was made with: a group that is added to the optimiser, or `p.data = ...`, is a ValueError.

    A rank that dies is a PeerError that names it, on all ranks that wait for it.
    """

    def __init__(self, parameters=None, optimizer="sgd", staleness=0, group=None, name="server", timeout=None,
                 arena=None, **values):  # fmt: skip
        if staleness < 0 or int(staleness) != staleness:
            raise ValueError(f"staleness is {staleness}; it counts versions, from 0")
        self.staleness = int(staleness)
        self.timeout = timeout
        self.report = None  # of the last step
        self.version = 0  # steps of this rank; with a staleness: where it is among the others
        self._session = None
        self._optimizer = None if isinstance(optimizer, str) else optimizer
        self._choose(parameters, optimizer, values)
        if group is None:
            self._session, group = _own_group(self._needs, name, timeout)
        self.group = group
        _compare_staleness(group, self.staleness, timeout)
        place = self.tensors, group, self.rule, name, self._options, timeout, arena
        self._held = _Apart(*place, self.staleness) if self.staleness else _Together(*place)
        self._addresses = [tensor.data_ptr() for tensor in self.tensors]

    def _choose(self, parameters, optimizer, values):
        if isinstance(optimizer, str):
            named = {_BY_PYTORCH.get(key, key): value for key, value in values.items()}
            if "betas" in named:
                named["beta1"], named["beta2"] = named.pop("betas")
            fixed = [hyper(**named)]
            self.rule, self._hyper = optimizer, lambda: fixed
            chosen = [(tensor, 0) for tensor in parameters or () if tensor.requires_grad]
        else:
            if values:
                raise TypeError(f"{', '.join(values)}: the optimiser has its own hyperparameters")
            self.rule = rule_of(optimizer)
            self._hyper = lambda: [_hyper_of(self.rule, group) for group in optimizer.param_groups]
            chosen = [(t, i) for i, g in enumerate(optimizer.param_groups) for t in g["params"] if t.requires_grad]
            # Those that are given say which, if any are: an optimiser has all that it was made with.
            given = None if parameters is None else {id(tensor) for tensor in parameters}
            if given is not None and given != {id(tensor) for tensor, _ in chosen}:
                raise ValueError("parameters are those of the optimiser that require a gradient, or left out")
        if not chosen:
            raise ValueError("there are no parameters that require a gradient")
        self.tensors = [tensor for tensor, _ in chosen]
        self._options = [option for _, option in chosen]
        self._groups = dict(zip(map(id, self.tensors), self._options))
        if len(self._groups) != len(chosen):
            raise ValueError("a parameter is there twice")

    def _check(self):
        """What a program may have changed since: it would be without effect."""
        if self._held is None:
            raise ClosedError("the parameter server is closed")
        if any(tensor.data_ptr() != address for tensor, address in zip(self.tensors, self._addresses)):
            raise ValueError("a parameter has other memory than the server gave it (p.data = ...): copy into it instead "
                             "(p.data.copy_(...)), and assign()")  # fmt: skip
        for index, group in enumerate(self._optimizer.param_groups if self._optimizer is not None else ()):
            for tensor in group["params"]:
                if tensor.requires_grad and self._groups.get(id(tensor)) != index:
                    raise ValueError("the optimiser has parameters that the server was not made with (add_param_group(), "
                                     "or requires_grad_() since then): close it and make another one")  # fmt: skip

    def _needs(self, world):
        shapes = {f"p{i}": tuple(tensor.shape) for i, tensor in enumerate(self.tensors)}
        return Parameters.bytes(shapes, world, self.rule)

    def zero_grad(self, set_to_none=False):
        """Before backward(); gradients stay where the server reads them, unless set_to_none."""
        self._held.zero_grad(set_to_none)

    def step(self, weight=None, scale=1.0):
        """After backward(): hands over this rank's gradient, and has the parameters of the next version when it
        returns. weight: of the gradient, by default 1 / ranks, or 1 with a staleness. scale: of all."""
        self._check()
        self.report, self.version = self._held.step(self._hyper(), weight, scale, self.timeout)
        if hasattr(self._optimizer, "_step_count"):  # by which schedulers see that it steps
            self._optimizer._step_count += 1

    def pull(self):
        """With a staleness: the parameters as they are now, at any time. Without one they always are."""
        self._check()
        self._held.pull(self.timeout)

    def synchronise(self):
        """By all ranks, before an evaluation say: all have the same parameters on return. No rank waits any more
        for the next version of one that has come here. Ranks may take unequal numbers of steps in between."""
        self._check()
        self._held.synchronise(self.timeout)

    def assign(self):
        """By all ranks, after each of them has changed its parameters by itself (load_state_dict(), say): they become
        what rank 0's are. Without a staleness there is one copy, which no rank may read while another one changes it:
        a barrier before that is the program's. The optimiser's state stays."""
        self._check()
        self._held.assign(self.timeout)

    @property
    def steps(self):
        """That have moved the parameters; with a staleness, until synchronise() or close()."""
        return self._held.steps

    def close(self):
        """By all ranks, at the end: all have the same parameters then, in memory of their own. Waits for ranks
        that still compute."""
        if self._held is None:
            return
        held, self._held = self._held, None
        held.close(self.timeout)
        if self._session is not None:
            self.group.barrier(timeout=self.timeout)
            self.group.leave()
            self._session.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        # After a failure the others do not come to a barrier.
        if kind is None:
            self.close()


class _Together:
    """staleness 0: one copy of the parameters, and steps by all ranks."""

    def __init__(self, tensors, group, rule, name, options, timeout, arena):
        from ._shared import SharedParameters

        self._shared = SharedParameters(tensors, group, rule, name, options, timeout, arena)
        self._group = group

    def zero_grad(self, set_to_none):
        for tensor, gradient in zip(self._shared.tensors, self._shared.gradients):
            if not set_to_none:
                gradient.zero_()
            tensor.grad = None if set_to_none else gradient

    def step(self, options, weight, scale, timeout):
        empty = [index for index, tensor in enumerate(self._shared.tensors) if tensor.grad is None]
        skipped = self._empty_on_all(empty, timeout)
        # The pool steps all. Nothing moves before rank 0 is in the step, and it has copied by then.
        kept = [(each, each.clone()) for index in skipped for each in self._of(index)] if self._group.rank == 0 else ()
        self._shared.gather_gradients()
        report = self._shared.step(options, weight, scale, None, False, timeout)
        for index in empty:
            self._shared.tensors[index].grad = None
        if skipped:
            for each, before in kept:
                each.copy_(before)
            self._group.barrier(timeout=timeout)
        return report, report.step

    def _empty_on_all(self, empty, timeout):
        """Positions of the parameters that have no gradient on any rank."""
        found = numpy.zeros(len(self._shared.tensors), "int32")
        found[empty] = 1
        self._group.all_reduce(found, timeout=timeout)
        return numpy.flatnonzero(found == self._group.world).tolist()

    def _of(self, index):
        """Where a parameter and its state are."""
        return self._shared.tensors[index].data, self._shared.masters[index], *self._shared.states[index]

    def pull(self, timeout):
        """The parameters are the one copy."""

    synchronise = pull

    def assign(self, timeout):
        self._group.barrier(timeout=timeout)

    @property
    def steps(self):
        return self._shared.steps

    def close(self, timeout):
        for tensor in self._shared.tensors:
            tensor.data, tensor.grad = tensor.data.clone(), None
        self._group.barrier(timeout=timeout)
        self._shared.set.close()


class _Apart:
    """With a staleness: each rank computes with a copy of its own, and its gradient is in the pool."""

    def __init__(self, tensors, group, rule, name, options, timeout, arena, staleness):
        import torch

        if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in tensors):
            raise TypeError("with a staleness, parameters are float32 on the CPU")
        self._tensors, self._staleness, self._group = tensors, staleness, group
        self._numbers, self._moving = options, set()  # positions of parameters that may have momentum
        self._has_moments = rule != "sgd"
        shapes = {f"p{i}": tuple(tensor.shape) for i, tensor in enumerate(tensors)}
        self._set = Parameters(group, name, shapes, optimiser=rule, options=dict(zip(shapes, options)),
                               timeout=timeout, arena=arena)  # fmt: skip
        if group.rank == 0 and self._set.steps == 0:
            for each, tensor in zip(shapes, tensors):
                self._set.values[each][...] = tensor.detach().numpy()
        group.barrier(timeout=timeout)
        self._gradients = [torch.from_numpy(self._set.gradients[each]) for each in shapes]
        for tensor in tensors:
            tensor.data = tensor.data.contiguous()
        # Pulls write there, also when a program has given a parameter other memory, of another size say.
        self._own = [tensor.data for tensor in tensors]
        self.zero_grad(False)
        self.pull(timeout)

    def zero_grad(self, set_to_none):
        for tensor, gradient in zip(self._tensors, self._gradients):
            if not set_to_none:
                gradient.zero_()
            tensor.grad = None if set_to_none else gradient

    def step(self, options, weight, scale, timeout):
        for index, (tensor, gradient) in enumerate(zip(self._tensors, self._gradients)):
            if tensor.grad is None:
                self._check_skipped(index, options[self._numbers[index]])
                gradient.zero_()
                continue
            self._moving.add(index)
            if tensor.grad.data_ptr() != gradient.data_ptr():
                gradient.copy_(tensor.grad)
                tensor.grad = gradient
        report = self._set.push(options, weight, scale, timeout)
        version = self._set.advance(self._staleness, timeout)
        self.pull(timeout)
        return report, version

    def _check_skipped(self, index, values):
        """A gradient of zeros has to leave a parameter that has none as it is."""
        moves = index in self._moving and (self._has_moments or values.momentum)
        if values.weight_decay or moves:
            raise ValueError(f"parameter {index} has no gradient (None), and with a staleness weight decay and momentum "
                             "would move it: leave it out, or zero_grad(set_to_none=False)")  # fmt: skip

    def pull(self, timeout):
        self._set.pull([tensor.data_ptr() for tensor in self._own], timeout)

    @property
    def steps(self):
        return self._set.steps

    def synchronise(self, timeout):
        self._set.finish(timeout)
        self.pull(timeout)
        # No rank pushes before all have pulled.
        self._group.barrier(timeout=timeout)

    def assign(self, timeout):
        self._set.finish(timeout)
        if self._group.rank == 0:
            for each, tensor in zip(self._set.values, self._tensors):
                self._set.values[each][...] = tensor.detach().numpy()
        self._group.barrier(timeout=timeout)
        self.synchronise(timeout)

    def close(self, timeout):
        self.synchronise(timeout)
        for tensor in self._tensors:
            tensor.grad = None
        self._gradients = []
        self._set.close()
