"""The integration's side of the session: what is reported to fabricd, and what it directs."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class Directives:
    """What the control loop of fabricd wants of a group. Empty lists and 0: not set."""

    serial: int = 0
    decision: int = 0
    sync_interval: int = 0
    batch_share: list = field(default_factory=list)
    work_units: list = field(default_factory=list)


class NoSession:
    """Another backend than the fabric's: no directives, no reports."""

    def read(self):
        """The directives in force; None: there are none."""
        return None

    def report(self, **_figures):
        """One step. See fabricshm_step() for the figures."""


class GroupSession:
    """The session of a process group of the fabric. Nothing here waits for fabricd."""

    def __init__(self, backend, group):
        self._backend, self._group = backend, group

    def read(self):
        found = self._backend.directives(self._group)
        return None if found is None else Directives(*found)

    def report(self, **figures):
        self._backend.step(self._group, **figures)


def unwrapped(group):
    """The backend's own object: 2.x has one per kind of device, TORCH_DISTRIBUTED_DEBUG wraps it."""
    if hasattr(group, "_get_backend"):
        group = group._get_backend(torch.device("cpu"))
    return getattr(group, "wrapped_pg", group)


def words_device(group, device):
    """Where small tensors of the host have to be for collectives of `group`, whose model is on
    `device`: NCCL by itself takes none of the host."""
    return device if dist.get_backend(group) in ("nccl", "cuda:nccl") else torch.device("cpu")


def open_session(group=None):
    """The session of `group` (None: the default one) when it is the fabric's, for the host's tensors
    at least ("cpu:fabricshm,cuda:nccl")."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    if "fabricshm" not in str(dist.get_backend(group)):
        return NoSession()
    from . import _backend

    group = unwrapped(group)
    return GroupSession(_backend, group) if _backend.is_ours(group) else NoSession()
