"""Parameters that exist once for all ranks of a group. docs/optimisers.md."""

import collections.abc
import math
import operator

import numpy

from . import _fabricshm, _snapshots
from ._arrays import milliseconds, storage, type_code, type_name
from ._errors import ClosedError, FabricError, FabricTimeoutError, NotFoundError

HYPER = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "momentum", "dampening",
          "nesterov", "maximize")  # fmt: skip


def optimiser_code(name):
    if name not in _fabricshm.OPTIMISERS:
        known = ", ".join(_fabricshm.OPTIMISERS)
        raise ValueError(f"there is no optimiser {name!r}; there are {known}")
    return _fabricshm.OPTIMISERS[name][0]


def hyper(**values):
    """What moves a parameter: learning_rate, beta1, beta2, epsilon, weight_decay; of sgd also
    momentum, dampening, nesterov; maximize. The defaults are PyTorch's."""
    made = _fabricshm.Hyper()
    for name, value in values.items():
        if name not in HYPER:
            raise TypeError(f"a step has no {name!r}; it has {', '.join(HYPER)}")
        setattr(made, name, int(value) if name in ("nesterov", "maximize") else float(value))
    return made


def _listed(shapes, options):
    unknown = set(options) - set(shapes)
    if unknown:
        raise ValueError(f"options: there is no parameter {sorted(map(str, unknown))[0]!r}")
    for name, shape in shapes.items():
        if not isinstance(name, str) or "\0" in name:
            raise TypeError(f"the name of a parameter is text, not {name!r}")
        whole = shape if isinstance(shape, collections.abc.Sequence) else (shape,)
        try:
            lengths = [operator.index(length) for length in whole]
        except TypeError:
            raise TypeError(f"the shape of {name!r} is whole numbers, not {shape!r}") from None
        yield name, lengths, operator.index(options.get(name, 0))


def _chosen(group, name, listed, kind, arenas, timeout):
    """The arena that the set is in already, else the one in which a step is the fastest; the same on all
    ranks."""
    if not arenas or not all(hasattr(arena, "free_parameters") for arena in arenas):
        raise TypeError("arena: a fabricshm.Arena, or a list of them")
    if len(arenas) == 1:
        return arenas[0]
    found = numpy.array([_place_of(name, arenas) if group.rank == 0 else 0], "int32")
    group.broadcast(found, root=0, timeout=timeout)
    return arenas[found[0]] if found[0] >= 0 else _fastest(group, listed, kind, arenas, timeout)


def _place_of(name, arenas):
    for index, arena in enumerate(arenas):
        try:
            # Long enough for a daemon that is busy: a set that is overlooked would be made again.
            arena._handle.open_tensor(name, 500)
            return index
        except (NotFoundError, FabricTimeoutError):
            continue
    return -1


def _fastest(group, listed, kind, arenas, timeout):
    best, least, failure = None, math.inf, None
    for arena in arenas:
        try:
            takes = _fabricshm.Parameters.estimate(
                group._handle, listed, *kind, arena._handle, milliseconds(timeout))  # fmt: skip
        except FabricError as problem:
            if problem.name not in ("FABRICSHM_EUNSUPPORTED", "FABRICSHM_ENOMEM"):
                raise
            failure = problem  # on all ranks alike
            continue
        if takes < 0.95 * least:
            best, least = arena, takes
    if least == math.inf:
        raise failure
    return best


class _Views(collections.abc.Mapping):
    """Arrays by name. Written into (`set.values["w"][...] = x`), never exchanged."""

    def __init__(self):
        self._arrays = {}

    def __getitem__(self, name):
        if self._arrays is None:
            raise ClosedError("the set of parameters is closed")
        return self._arrays[name]

    def __iter__(self):
        return iter(self._arrays or ())

    def __len__(self):
        return len(self._arrays or ())


class Parameters:
    """The set `name`: made by all ranks of `group`, or found as another group has left it.

        set = fabricshm.Parameters(group, "model", {"w": (784, 10), "b": 10}, optimiser="adamw")
        set.gradients["w"][...] = ...
        set.step(learning_rate=1e-3)         # by all ranks
        set.values["w"]                      # moved, the same memory in every process

    shapes: of each parameter, by name. optimiser: sgd, adam, adamw, adabelief or max_adabelief.
    gradients: float32, float16 or bfloat16. copy: float16 or bfloat16 to keep the parameters in that
    type, too. slots: the most ranks that will ever share it (default: the group's). options: which of
    the hyperparameters of a step moves a parameter, by name (default 0). arena: where the set lies, by
    default where the group is; or a list of arenas: the one that has the set already, else the fastest, as
    it is measured (by less than a twentieth: the first).
    Arrays are NumPy views of shared memory (uint16 for bfloat16), until close().
    """

    def __init__(self, group, name, shapes, optimiser="adamw", gradients="float32", copy=None,
                 slots=0, options=None, timeout=None, arena=None):  # fmt: skip
        if not hasattr(group, "_handle"):
            raise TypeError(f"group is a fabricshm.Group, not {type(group).__name__}")
        self.name = name
        self.optimiser = optimiser
        self._options = dict(options or {})
        listed = list(_listed(shapes, self._options))
        types = [type_name(gradients), "float32" if copy is None else type_name(copy)]
        kind = (optimiser_code(optimiser), type_code(types[0]), type_code(types[1]))
        if arena is not None:
            several = arena if isinstance(arena, (list, tuple)) else [arena]
            arena = _chosen(group, name, listed, kind, several, timeout)
        self.arena = arena
        self._handle = _fabricshm.Parameters(
            group._handle, name, listed, *kind, slots, arena and arena._handle,
            milliseconds(timeout))  # fmt: skip
        self.values, self.gradients, self.copies, self.states = _Views(), _Views(), _Views(), _Views()
        for index, (each, shape, _) in enumerate(listed):
            values, copied, gradient, states = self._handle.view(index)
            self.values._arrays[each] = values.view("float32").reshape(shape)
            self.gradients._arrays[each] = gradient.view(storage(types[0])).reshape(shape)
            self.states._arrays[each] = [state.view("float32").reshape(shape) for state in states]
            if copied is not None:
                self.copies._arrays[each] = copied.view(storage(types[1])).reshape(shape)

    @staticmethod
    def bytes(shapes, world, optimiser="adamw", gradients="float32", copy=None):
        """What such a set takes of an arena."""
        types = [type_name(gradients), "float32" if copy is None else type_name(copy)]
        return _fabricshm.Parameters.bytes(
            list(_listed(shapes, {})), optimiser_code(optimiser), type_code(types[0]),
            type_code(types[1]), world)  # fmt: skip

    @property
    def steps(self):
        """Steps that were applied so far. Assigned by all ranks alike after values and states were
        written (a checkpoint): as many as led to them."""
        return self._handle.steps

    @steps.setter
    def steps(self, count):
        self._handle.set_steps(count)

    def step(self, options=None, weight=None, scale=1.0, clip_norm=None, skip_nonfinite=False,
             timeout=None, **values):  # fmt: skip
        """Adds up the gradients of all ranks and moves the parameters; by all ranks. Returns a report:
        .step, .skipped, .norm (of the merged gradient, before clipping; NaN when it is not needed),
        .waited and .computed in seconds.

        **values: the hyperparameters of all, or `options`: a list of fabricshm.optim.hyper(), by the
        number that a parameter's options say. weight: of this rank's gradient in the sum, by default
        1 / world. clip_norm: the gradient of the whole set is scaled down to it. skip_nonfinite: an
        infinity or a NaN in any rank's gradient skips the step on all.

        PeerError: a rank died. Leave gradients and parameters alone, shrink the group, recover().
        """
        if options is not None and values:
            raise TypeError("give either options or hyperparameters")
        chosen = [hyper(**values)] * (1 + max(self._options.values(), default=0))
        return self._handle.step(
            list(options) if options is not None else chosen,
            math.nan if weight is None else float(weight), float(scale),
            0.0 if clip_norm is None else float(clip_norm), bool(skip_nonfinite),
            milliseconds(timeout))  # fmt: skip

    def push(self, options, weight=None, scale=1.0, timeout=None):
        """This rank's gradient moves the parameters by itself, as soon as it may; by this rank alone. Until
        finish() nothing that is by all ranks may be called. docs/parameter_server.md."""
        return self._handle.push(
            list(options), math.nan if weight is None else float(weight), float(scale), milliseconds(timeout))  # fmt: skip

    def pull(self, addresses, timeout=None):
        """Copies the parameters to float32 arrays of this process, one address for each."""
        self._handle.pull(list(addresses), milliseconds(timeout))

    def advance(self, staleness, timeout=None):
        """After a push: begins the next version, once no rank is more than `staleness` versions behind it."""
        return self._handle.advance(staleness, milliseconds(timeout))

    def finish(self, timeout=None):
        """By all ranks: ends what push() began."""
        self._handle.finish(milliseconds(timeout))

    def share(self, shares):
        """How much of the set each rank steps from now on, by rank; the same on all ranks."""
        self._handle.share([float(share) for share in shares])

    def recover(self, group, timeout=None):
        """Goes on with `group`, which a shrink has made; by all of its ranks. True: the step that failed
        has happened, with the gradients of all ranks; False: it has not, on any rank."""
        return self._handle.recover(group._handle, milliseconds(timeout))

    def snapshot(self, directory, keep=3, file_bytes=None, plain_writes=False, timeout=None):
        """Begins to write parameters and state as they are now to directory/step-NNNNNN, as safetensors,
        while steps go on; by all ranks, between two steps. Returns a Snapshot, to wait() for before the
        next one. The newest `keep` are left (0: all). file_bytes: a file is not longer (default 4 GiB),
        unless one tensor alone is. plain_writes: without io_uring."""
        return _snapshots.begin(self._handle, directory, keep, file_bytes, plain_writes, timeout)

    def restore(self, path, timeout=None):
        """The set becomes what the snapshot in the directory `path` holds; by all ranks, as many as there
        are now. Returns its number of steps. MismatchError: it is one of another set."""
        return self._handle.restore(_snapshots.path_text(path), milliseconds(timeout))

    def close(self):
        """This rank's part ends. The set stays until Arena.free_parameters(), or as long as the
        arena is open in any process."""
        for views in (self.values, self.gradients, self.copies, self.states):
            views._arrays = None
        self._handle.close()
