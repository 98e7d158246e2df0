"""FabricSampler: global batches of one permutation, cut between ranks by live shares."""

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from ._exchange import Exchange, part_of
from ._shares import cut, equal_shares


class Plan:
    """Which cut holds from which global batch on.

    A change is entered for a batch that no rank has drawn yet, so what a DataLoader prefetched
    stays as it was cut.
    """

    def __init__(self, world):
        self._entries = [(0, (equal_shares(world), None))]

    def change(self, batch, shares, work_units=None):
        """The cut from global batch `batch` on."""
        self._entries = [entry for entry in self._entries if entry[0] < batch]
        self._entries.append((batch, (list(shares), list(work_units) if work_units else None)))

    def at(self, batch):
        """(shares, work units or None) of a global batch."""
        return next(held for since, held in reversed(self._entries) if since <= batch)

    def since(self, batch):
        """From which global batch on the cut of `batch` has held."""
        return next(since for since, _ in reversed(self._entries) if since <= batch)

    @property
    def latest(self):
        return self._entries[-1][1]

    def restart(self):
        """Only the latest cut is left, for all batches."""
        self._entries = [(0, self.latest)]

    def forget_before(self, batch):
        """Drops what no batch from `batch` on needs."""
        needed = [i for i, (since, _) in enumerate(self._entries) if since <= batch][-1]
        self._entries = self._entries[needed:]

    def state(self):
        return [[since, shares, units] for since, (shares, units) in self._entries]

    def load(self, state):
        self._entries = [(since, (shares, units)) for since, shares, units in state]


class FabricSampler(Sampler):
    """A batch sampler, as DataLoader(dataset, batch_sampler=...) takes it, with live shares.

    Every epoch is one permutation, from `seed` and the epoch, of the whole data set. Global batch n
    is the n-th run of `batch_size` of its samples; each rank gets a piece of it, by the shares in
    force. So every sample is drawn once per epoch, whatever the shares and however they change, and
    which samples make up a step never depends on them.

    batch_size    samples of a step over all ranks; the shares never change it
    num_replicas, rank, shuffle, seed, drop_last, set_epoch()    as in DistributedSampler, but
                  nothing is repeated to fill up: the last global batch is smaller
    unit          ranks get multiples of so many samples (micro-batches), but for a tail
    exchange      after each step a rank swaps this share of the samples that it has still to draw
                  with one neighbour, inside each batch: which samples make up a step stays the same
    group         the ranks; the default group

    A rank without samples in a step (drained) is given one of another rank's, so that its model and
    DistributedDataParallel run; with weight 0 in the gradient. See counts().

    Control moves the sampler on and changes its shares. Without one, call advance() after each step;
    the shares stay equal.
    """

    def __init__(self, dataset, batch_size, *, num_replicas=None, rank=None, shuffle=True, seed=0,
                 drop_last=False, unit=1, exchange=0.0, group=None):
        if num_replicas is None:
            num_replicas = dist.get_world_size(group)
        if rank is None:
            rank = dist.get_rank(group)
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank is {rank}; there are {num_replicas} ranks, counted from 0")
        if batch_size < 1 or unit < 1:
            raise ValueError(f"batch_size is {batch_size}, unit is {unit}; both are at least 1")
        self.num_replicas = num_replicas
        self.rank = rank
        self.batch_size = batch_size
        self.unit = unit
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.exchange = exchange
        self.plan = Plan(num_replicas)
        self._exchange = Exchange(part_of(exchange))
        self._length = len(dataset)
        # Of fabricshm.data.Dataset: the order of each epoch is announced to the data service.
        self._announce = getattr(dataset, "_fabricshm_plan", None)
        self._first = 0  # where the next iteration begins, after load_state_dict()
        self._done = 0  # steps finished in this epoch
        self._drawn = 0  # global batches cut in this epoch: a DataLoader draws ahead of the steps

    def __len__(self):
        """Global batches of an epoch, which is steps, on every rank."""
        whole, rest = divmod(self._length, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch):
        """The epoch of the next iteration. The same on every rank, as everything here."""
        if epoch != self.epoch:
            self._first = 0
        self.epoch = epoch

    def counts(self, batch):
        """Samples per rank of a global batch of this epoch."""
        total = min(self.batch_size, self._length - batch * self.batch_size)
        shares, work_units = self.plan.at(batch)
        return cut(total, self.unit, shares, work_units)

    @property
    def step_counts(self):
        """Samples per rank of the step that is being computed."""
        return self.counts(min(self._done, len(self) - 1))

    @property
    def position(self):
        """Samples of this epoch that come before what is drawn next, over all ranks."""
        return min(self._drawn * self.batch_size, self._length)

    @property
    def drawn(self):
        """Global batches of this epoch that were cut so far, the prefetched ones included."""
        return self._drawn

    def advance(self):
        """A step has been finished, on all ranks."""
        self._done += 1
        self.plan.forget_before(self._done)

    def _order(self):
        if not self.shuffle:
            return torch.arange(self._length)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self._length, generator=generator)

    def __iter__(self):
        # Not in the generator below: that begins with the first batch that is drawn.
        first, self._first = self._first, 0
        self._done = self._drawn = first
        if first == 0:
            self.plan.restart()
        if self._announce is not None:
            self._announce(self)
        return self._batches(first, self._order())

    def _batches(self, first, order):
        for batch in range(first, len(self)):
            counts = self.counts(batch)
            before = sum(counts[: self.rank])
            begin = batch * self.batch_size + before
            if self._exchange.part and counts[self.rank]:
                places = self._exchange.places(
                    self.seed, self.epoch, self.plan.since(batch), batch, counts)
                mine = places[before : before + counts[self.rank]]
                mine = order[batch * self.batch_size + torch.tensor(mine)].tolist()
            else:
                # A drained rank borrows a sample: empty batches are more than most models can take.
                begin = min(begin, self._length - 1)
                mine = order[begin : begin + max(counts[self.rank], 1)].tolist()
            self._drawn = batch + 1
            yield mine

    def state_dict(self):
        """Where the training is: steps finished, not batches prefetched. The same on all ranks."""
        return {
            "epoch": self.epoch,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "exchange": self.exchange,
            "step": self._done,
            "world": self.num_replicas,
            "plan": self.plan.state(),
        }

    def load_state_dict(self, state):
        """The next iteration goes on there. With another number of ranks the shares become equal."""
        if state["batch_size"] != self.batch_size:
            raise ValueError(
                f"the state is of global batches of {state['batch_size']}, not {self.batch_size}")
        self.seed, self.epoch = state["seed"], state["epoch"]
        self.exchange = state.get("exchange", 0.0)  # states of before had none
        self._exchange = Exchange(part_of(self.exchange))
        self._first = self._done = self._drawn = state["step"]
        if state["world"] == self.num_replicas:
            self.plan.load(state["plan"])
        else:
            self.plan = Plan(self.num_replicas)
