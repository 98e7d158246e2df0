"""[data] cache of a job file, for a wrapped script: what the script reads from a mount of the data cache is fetched ahead
of its use. docs/jobs.md."""

import os
import types

from . import data
from ._errors import FabricError

_MOUNT = " - fuse.fabric "


class JobDataError(RuntimeError):
    """The data are not where the job file says."""


def opened():
    """The JobData of this rank's environment; None: its job file names no path in the data cache."""
    cache = os.environ.get("FABRIC_JOB_CACHE")
    return JobData(cache, os.environ.get("FABRIC_JOB_DATA", "")) if cache else None


class JobData:
    """The files of a job in the data cache. JobDataError, with one sentence: there is no cache, or no mount of it."""

    def __init__(self, cache, path):
        if not _is_mounted(path):
            raise JobDataError(f"the job's data are to come from the data cache, and {path} is not below a mount of it")
        try:
            self._files = data.open(cache)
        except (FabricError, OSError) as error:
            raise JobDataError(f"the job's data, {cache} of the data cache: {error}") from None
        self._epoch = 0

    def __len__(self):
        return len(self._files)

    def prefetch(self):
        """All of it, in the order of its names: the script has not begun to read."""
        self._announce(types.SimpleNamespace(shuffle=False, drop_last=False, seed=0, epoch=0, rank=0, num_replicas=1))

    def announce(self, seed, rank, world):
        """A loop over it begins, in the order of torch.randperm() with this seed; None: in the order of its names."""
        self._epoch += 1
        # The service adds the epoch to the seed; loops are other plans by both.
        self._announce(types.SimpleNamespace(shuffle=seed is not None, drop_last=False, epoch=self._epoch, rank=rank,
                                             seed=((seed or 0) - self._epoch) % (1 << 64), num_replicas=world,
                                             advance=None, position=0))  # fmt: skip

    def _announce(self, sampler):
        try:
            self._files.plan(sampler)
        except FabricError:
            pass  # advice: what is not fetched ahead is fetched when it is read


def _is_mounted(path):
    try:
        device = os.stat(path).st_dev
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as mounts:
        return any(line.split()[2] == wanted and _MOUNT in line for line in mounts)
