"""Data sets for torch.utils.data.DataLoader."""

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data import Dataset as _MapStyle
from torch.utils.data import IterableDataset as _Iterable

from . import _prepared
from ._errors import FabricError

# A batch of samples in the pool leaves a worker as their numbers.
default_collate_fn_map[_prepared.Reference] = _prepared.collate


class _Samples:
    def __init__(self, files, transform=None, target=None, *, prep=None, prep_name=None,
                 prep_at="/prepared"):  # fmt: skip
        self.files = files
        self.transform = transform
        self.target = target
        self.prepared = None if prep is None else _prepared.Prepared(files, prep, prep_at, prep_name)

    def _sample(self, index):
        sample = self._content(index) if self.prepared is None else self._prepared(index)
        return sample if self.target is None else (sample, self.target(self.files.names[index]))

    def _prepared(self, index):
        if self.transform is not None:
            return self.transform(self.prepared[index])
        # The loader's own process looks where it is; what a worker sends is its number.
        in_worker = get_worker_info() is not None
        return self.prepared.reference(index) if in_worker else self.prepared[index]

    def _content(self, index):
        view = self.files[index]
        try:
            return bytes(view) if self.transform is None else self.transform(view)
        finally:
            try:
                view.release()
            except BufferError:
                pass  # the sample lies on it: it is let go with the sample

    def announce(self, sampler=None, **plan):
        """DataSet.plan(), whose failure ends no training: the files are fetched when they are read then."""
        try:
            self.files.plan(sampler, **plan)
        except FabricError as error:
            warnings.warn(f"fabricshm.data: the order is not announced: {error}", stacklevel=2)

    # Found by FabricSampler, which announces each of its epochs.
    _fabricshm_plan = announce


class Dataset(_Samples, _MapStyle):
    """Map-style: `Dataset(files, transform)[17]`.

    files: a DataSet. transform: called with a read-only memoryview of the file, in the pool, and what it
    returns is the sample; it is called in the worker processes of a DataLoader if there are any. None: the
    sample is the file as bytes. target: called with the file's name; the sample is a pair then.

    prep: a function, called once for each file of the host with such a memoryview, whatever ranks, workers
    and epochs there are. What it makes, one NumPy array or CPU tensor, is kept in the folder prep_at, and a
    sample is a read-only view of it; transform, if there is one, is called with that instead. It has to
    make the same of a file each time. prep_name says what it makes where its code does not (docs/data.md).

    FabricSampler(dataset, ...) announces its epochs by itself; with a DistributedSampler call
    `dataset.announce(sampler)` after each `sampler.set_epoch()`.
    """

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self._sample(index)


def _place():
    """(rank, number of ranks) of this process."""
    wrap = sys.modules.get("fabricshm.torch.wrap")
    if wrap is not None and wrap.is_on():
        return 0, 1  # a script for one process, of which each rank computes the whole
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(found):
        return 0, 1
    if not all(text.isdecimal() for text in found):
        raise ValueError(f"RANK is {found[0]!r} and WORLD_SIZE {found[1]!r}: give num_replicas and rank")
    return int(found[0]), int(found[1])


class IterableDataset(_Samples, _Iterable):
    """Iterable: this rank's part of each epoch, divided between the workers of the DataLoader.

    The order is that of DistributedSampler with the same arguments; it is announced when an epoch begins.
    Call set_epoch() before each.

    num_replicas, rank: by default those of the process group; before there is one, WORLD_SIZE and RANK of
    the environment (torchrun, fabricrun); without either, and in a script under `fabricrun --wrap`, 1 and 0.
    1 and 0 give each rank the whole set.
    """

    def __init__(self, files, transform=None, target=None, *, num_replicas=None, rank=None, shuffle=True,
                 seed=0, drop_last=False, **prep):  # fmt: skip
        super().__init__(files, transform, target, **prep)
        if num_replicas is None or rank is None:
            its, of = _place()
            rank = its if rank is None else rank
            num_replicas = of if num_replicas is None else num_replicas
        # Shared with workers that stay: they would not hear of another epoch.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._sampler = DistributedSampler(range(len(files)), num_replicas, rank, shuffle, seed, drop_last)

    def set_epoch(self, epoch):
        self._epoch[0] = epoch

    def __len__(self):
        return len(self._sampler)

    def __iter__(self):
        self._sampler.set_epoch(int(self._epoch[0]))
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if number == 0:
            self.announce(self._sampler)
        return map(self._sample, list(self._sampler)[number::count])
