"""The PyTorch backend of the fabric.

Importing this module registers the c10d backend "fabricshm":

    import torch.distributed as dist
    import fabricshm.torch
    dist.init_process_group("fabricshm")

The environment chooses where and how much:

    FABRIC_SOCKET           where fabricd listens; the library's default otherwise
    FABRIC_ARENA            name of the arena; a new one per job otherwise
    FABRIC_ARENA_BYTES      its size (1073741824, 512M, 2G); the daemon's default otherwise
    FABRIC_TORCH_ALLOCATOR  0: tensors never move to the arena; auto (default): the buckets of
                            DistributedDataParallel do, and what use_arena_allocator() covers;
                            all: every large tensor does
    FABRIC_TORCH_THRESHOLD  bytes from which a tensor is large (default 65536)

FabricSampler and Control let a training loop follow the directives of fabricd.
"""

import atexit
import contextlib
import functools
import importlib
import inspect
import os

import torch
import torch.distributed as dist

__all__ = [
    "Control",
    "Directives",
    "FabricSampler",
    "abort",
    "arena_name",
    "in_arena",
    "is_registered",
    "share",
    "shutdown",
    "use_arena_allocator",
]

NAME = "fabricshm"
# Loaded when they are asked for: fabricrun imports this module while `import torch` is under way, and
# the training loop's side needs all of torch.
_HOMES = {"Control": "_control", "Directives": "_session", "FabricSampler": "_sampler",
          "share": ".optim"}  # fmt: skip
_MODES = {"0": "off", "off": "off", "auto": "scoped", "1": "scoped", "all": "all"}


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


@functools.lru_cache(maxsize=None)
def _load():
    """The extension. Loaded on first use: registering must not cost importers of torch anything."""
    from . import _backend

    # A callback that ran while the interpreter ends would abort the process: a program may end
    # without destroy_process_group(), and DDP has its gradients before its last callback returns.
    atexit.register(_backend.end_callbacks)
    return _backend


def _configure_allocator(backend):
    choice = os.environ.get("FABRIC_TORCH_ALLOCATOR", "auto").lower()
    if choice not in _MODES:
        raise ValueError(f"FABRIC_TORCH_ALLOCATOR is {choice!r}; expected 0, auto or all")
    threshold = os.environ.get("FABRIC_TORCH_THRESHOLD", "65536")
    if not threshold.isdigit():
        raise ValueError(f"FABRIC_TORCH_THRESHOLD is {threshold!r}; expected a number of bytes")
    if _MODES[choice] != "off":
        backend.set_allocator(_MODES[choice], int(threshold))


def _wrap_for_debugging(group, store, rank, size, timeout):
    # When TORCH_DISTRIBUTED_DEBUG is DETAIL a gloo group next to ours compares what the ranks call before it is
    # called. Torch before 2.4 wraps its own backends alone and leaves this to others.
    c10d = dist.distributed_c10d
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4):
        return group
    if dist.get_debug_level() != dist.DebugLevel.DETAIL:
        return group
    if not dist.is_gloo_available():
        return group
    return c10d._create_process_group_wrapper(
        wrapped_pg=group,
        store_prefix=f"{NAME}_wrapper",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timeout,
    )


def _create(store, rank, size, timeout):
    backend = _load()
    _configure_allocator(backend)
    group = backend.create(store, rank, size, timeout)
    return _wrap_for_debugging(group, store, rank, size, timeout)


def is_registered():
    """Whether torch.distributed knows the backend."""
    return hasattr(dist, "Backend") and hasattr(dist.Backend, NAME.upper())


def _register():
    parameters = inspect.signature(dist.Backend.register_backend).parameters
    options = {"devices": ["cpu", "cuda"]} if "devices" in parameters else {}
    dist.Backend.register_backend(NAME, _create, **options)


class _Scope(contextlib.ContextDecorator):
    def __init__(self):
        self._scopes = []

    def __enter__(self):
        self._scopes.append(_load().ArenaScope())
        return self

    def __exit__(self, *_):
        self._scopes.pop()


def use_arena_allocator():
    """Context manager (and decorator): large CPU tensors made by this thread go to the arena.

    Collectives read and write such tensors in place. Use it around building a model, or around
    backward() when gradients are reduced by hand. Without a live process group, with a full arena,
    or with FABRIC_TORCH_ALLOCATOR=0 tensors go to the heap as ever. A process forked while they
    live shares them with its parent, rather than getting its own copy.
    """
    return _Scope()


def in_arena(tensor):
    """Whether the memory of `tensor` lies in an arena, where collectives need no copy."""
    return _load().in_arena(tensor)


def arena_name():
    """Name of the arena of the live process groups; empty when there are none."""
    return _load().arena_name()


def abort(group=None):
    """Ends `group` (None: the default one) at once: what is outstanding on this rank fails, what the others need
    this rank for fails there with its number, and so does all that is called later. Waits for nothing, and may
    be called by any thread; again it does nothing. Torch from 2.6 on calls it `group.abort()`, too."""
    _end("abort", group)


def shutdown(group=None):
    """Waits until all that is outstanding in `group` (None: the default one) has ended, and leaves it. What is
    called later fails. RuntimeError when the group's timeout passes first: what was outstanding has failed then.
    Torch from 2.6 on calls it `group.shutdown()`, too."""
    _end("shutdown", group)


def _end(how, group):
    from ._session import unwrapped

    group = dist.distributed_c10d._get_default_group() if group is None else group
    getattr(_load(), how)(unwrapped(group))


def _keep_buckets_in_arena():
    """Makes DistributedDataParallel allocate its buckets in the arena."""
    original = dist.Reducer
    if getattr(original, "_fabricshm", False):
        return

    class Reducer(original):
        _fabricshm = True

        def __init__(self, *arguments, **options):
            with _bucket_scope():
                super().__init__(*arguments, **options)

        def _rebuild_buckets(self):
            with _bucket_scope():
                return super()._rebuild_buckets()

    Reducer.__name__ = Reducer.__qualname__ = "Reducer"
    dist.Reducer = Reducer


def _bucket_scope():
    # Other backends' users do not pay for ours: no process group, no scope.
    if not _group_is_ours():
        return contextlib.nullcontext()
    return use_arena_allocator()


def _group_is_ours():
    return dist.is_initialized() and any(
        str(backend).lower().find(NAME) >= 0
        for backend, _ in dist.distributed_c10d._pg_map.values()
    )


def _is_of_the_cpu(group):
    """Whether CPU tensors of `group` are ours: all are of torch 1, and those of `cpu:fabricshm,cuda:nccl`, too."""
    names = str(dist.get_backend(group)).split(",")
    return NAME in names or f"cpu:{NAME}" in names


def _monitored_barrier(original):
    def monitored_barrier(group=dist.GroupMember.WORLD, timeout=None, wait_all_ranks=False):
        chosen = dist.distributed_c10d._get_default_group() if group is None else group
        if dist.distributed_c10d._rank_not_in_group(chosen) or not _is_of_the_cpu(chosen):
            return original(group=group, timeout=timeout, wait_all_ranks=wait_all_ranks)
        timeout = dist.distributed_c10d.default_pg_timeout if timeout is None else timeout
        return chosen.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    monitored_barrier.__doc__ = original.__doc__
    return monitored_barrier


def _extend_torch():
    # torch.distributed.monitored_barrier() refuses every backend but gloo by name.
    patched = _monitored_barrier(dist.monitored_barrier)
    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = patched
    _keep_buckets_in_arena()


def _autoload():
    """Entry point `torch.backends` of torch 2.5 and later: `import torch` calls it."""


if dist.is_available() and not is_registered():
    _register()
    _extend_torch()
