"""fabricshm: shared memory of a host as arrays, and collectives over it.

    import fabricshm

    with fabricshm.Session() as session:
        arena = session.arena("job", bytes=1 << 30)
        group = arena.join("workers", rank, world)
        gradient = arena.zeros(1_000_000, "float32")
        group.all_reduce(gradient)

fabricshm.torch has the PyTorch backend, which is registered with PyTorch as soon as both are
imported. docs/python.md has the details.
"""

import importlib
import pkgutil

from ._lazy import after_import as _after_import

# fabricshm.torch may be installed elsewhere, by another package.
__path__ = pkgutil.extend_path(__path__, __name__)

# Loaded when they are asked for: `import torch` imports this package when it is installed, and must
# not pay for NumPy and the library, or fail because of them.
_HOMES = {
    "_arrays": ("Tensor", "bfloat16_from", "bfloat16_to", "from_dlpack", "located"),
    "_errors": (
        "BrokenGroupError",
        "ClosedError",
        "DaemonError",
        "DeniedError",
        "ExistsError",
        "FabricError",
        "FabricTimeoutError",
        "FileChangedError",
        "InvalidArgumentError",
        "MismatchError",
        "NotFoundError",
        "OutOfMemoryError",
        "PeerError",
        "PoisonedError",
    ),
    "_fabricshm": ("Request", "version"),
    "_session": ("Arena", "Group", "Session", "launch"),
    "_parameters": ("Parameters", "hyper"),
    "_server": ("ParameterServer",),
    "_snapshots": ("Snapshot", "latest_snapshot"),
    "_shards": ("ChangedError", "Shard"),
    "_symmetric": ("SymmetricSum",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def _register_backend():
    """torch.distributed.init_process_group("fabricshm") works without an import of fabricshm.torch."""
    try:
        importlib.import_module(".torch", __name__)
    except ImportError:
        pass  # built without PyTorch, or for another one: that import itself says so


_after_import("torch.distributed", _register_backend)


def __getattr__(name):
    if name == "__version__":
        return __getattr__("version")()
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
