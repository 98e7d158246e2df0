"""Data sets for torch.utils.data.DataLoader."""

import warnings

import torch
from torch.utils.data import DistributedSampler, get_worker_info
from torch.utils.data import Dataset as _MapStyle
from torch.utils.data import IterableDataset as _Iterable

from ._errors import FabricError


class _Samples:
    def __init__(self, files, transform=None, target=None):
        self.files = files
        self.transform = transform
        self.target = target

    def _sample(self, index):
        view = self.files[index]
        try:
            sample = bytes(view) if self.transform is None else self.transform(view)
        finally:
            try:
                view.release()
            except BufferError:
                pass  # the sample lies on it: it is let go with the sample
        return sample if self.target is None else (sample, self.target(self.files.names[index]))

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

    FabricSampler(dataset, ...) announces its epochs by itself; with a DistributedSampler call
    `dataset.announce(sampler)` after each `sampler.set_epoch()`.
    """

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self._sample(index)


class IterableDataset(_Samples, _Iterable):
    """Iterable: this rank's part of each epoch, divided between the workers of the DataLoader.

    The order is that of DistributedSampler with the same arguments; it is announced when an epoch begins.
    Call set_epoch() before each.
    """

    def __init__(self, files, transform=None, target=None, *, num_replicas=1, rank=0, shuffle=True, seed=0,
                 drop_last=False):
        super().__init__(files, transform, target)
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
