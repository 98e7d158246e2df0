"""A DataLoader's batches, cut between ranks: each rank reads its piece of the batch that one process would read."""

import collections
import os
import zlib

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from .._exchange import Exchange, part_of
from .._sampler import Plan
from .._shares import cut, valid_shares

Batch = collections.namedtuple("Batch", "counts crc")  # samples per rank; of the whole batch's indices
Order = collections.namedtuple("Order", "seed")  # of torch.randperm(); None: samples come as they are numbered


def first_shares(world):
    """Those of a job's schedule, the same on all ranks; None: there are none for so many ranks."""
    words = os.environ.get("FABRIC_JOB_SHARES", "").split(",")
    try:
        shares = [float(word) for word in words]
    except ValueError:
        return None
    return valid_shares(shares, world) if len(shares) == world else None


def order_of(loader):
    """In which order the loader is about to draw its samples, without drawing; None: not one that a seed says."""
    sampler = loader.batch_sampler.sampler if type(loader.batch_sampler) is BatchSampler else None
    if type(sampler) is SequentialSampler:
        return Order(None)
    plain = type(sampler) is RandomSampler and sampler.generator is None and not sampler.replacement
    if not plain or sampler.num_samples != len(loader.dataset):
        return None
    # RandomSampler's first draw, given back.
    state = torch.get_rng_state()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.set_rng_state(state)
    return Order(seed)


def job_exchange():
    """Which part of its samples a rank swaps after each step, by the job file."""
    try:
        return part_of(float(os.environ.get("FABRIC_JOB_PASS_ON", "0")))
    except ValueError:
        return 0


class Shares:
    """Which share of a batch each rank has. Batches are numbered over the whole run, as they are cut."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.plan = Plan(world)
        given = first_shares(world)
        if given:
            self.plan.change(0, given)
        self.drawn = 0
        self._exchange = Exchange(job_exchange())
        self._loop, self._first = 0, 0  # the loop's number, and its first batch

    def begin_loop(self):
        """What ranks have swapped in a loop ends with it."""
        self._loop, self._first = self._loop + 1, self.drawn

    def cut(self, indices):
        """(this rank's piece, the Batch) of one batch."""
        shares, units = self.plan.at(self.drawn)
        counts = cut(len(indices), 1, shares, units)
        drawn = Batch(counts, zlib.crc32(repr(indices).encode()))
        if self._exchange.part and self.world > 1:
            since = max(self.plan.since(self.drawn) - self._first, 0)
            places = self._exchange.places(0, self._loop, since, self.drawn - self._first, counts)
            indices = [indices[place] for place in places]
        self.plan.forget_before(self.drawn)
        self.drawn += 1
        before = sum(counts[: self.rank])
        # A rank without samples borrows one, which counts nothing: models can't take empty batches.
        begin = min(before, len(indices) - 1)
        mine = indices[begin : begin + max(counts[self.rank], 1)]
        return mine, drawn


class CutBatches:
    """Stands for a loader's batch sampler during one iteration. `draws_first` is called before the first batch is drawn,
    and `drawn_first` after that: until then all ranks need the same random numbers."""

    def __init__(self, batches, shares, draws_first, drawn_first):
        self._batches, self._shares = batches, shares
        self._draws_first, self._drawn_first = draws_first, drawn_first
        self.ahead = collections.deque()  # cut, but not given to the script yet: a loader draws ahead

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        first = True
        self._draws_first()
        for indices in self._batches:
            if first:
                self._drawn_first()
                first = False
            mine, batch = self._shares.cut(list(indices))
            self.ahead.append(batch)
            yield mine


class PieceIterator:
    """What iter(loader) gives to the script."""

    def __init__(self, iterator, batches, taken, finished):
        self._iterator, self._batches = iterator, batches
        self._taken, self._finished = taken, finished

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._batches)

    def __next__(self):
        try:
            data = next(self._iterator)
        except StopIteration:
            self._finished()
            raise
        self._taken(self._batches.ahead.popleft())
        return data
