"""Control: the trainer's side of fabricd's control loop."""

import collections
import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._averaging import LossTrend, state_tensors, weighted_mean
from ._clocks import HostClock, Span, clock_for
from ._gradients import GradientMerge
from ._session import open_session, words_device
from ._shares import largest_remainder, valid_shares

HOLD_STEPS = 100  # after a worsened loss, replicas do not part again before so many steps
LATE_STEPS = 2  # that wait for their device before they are reported; the oldest is waited for then


class Control:
    """Makes a training loop follow the directives of fabricd, and reports to it how the steps go.

        sampler = FabricSampler(dataset, batch_size=256)
        loader = DataLoader(dataset, batch_sampler=sampler)
        model = DistributedDataParallel(network)
        control = Control(model, sampler, optimizer)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = function(model(inputs), targets)
                loss.backward()
                optimizer.step()
                control.step(loss)

    Gradients are merged so that the result is the gradient of the whole global batch. A model
    that is not wrapped calls merge_gradients() after backward().

    optimizer   needed for sync intervals above 1 (local SGD); without one the interval stays 1
    every       steps between two readings of the directives, which cost one small all_reduce
    reduction   of the loss: "mean" over this rank's samples, or their "sum"
    norm_every  steps between two measured gradient norms; 0: never
    max_interval  the largest sync interval that is obeyed
    session     where directives come from and figures go: by default the session of the backend

    Directives of rank 0 count, on all ranks from the same step. Nothing here waits for fabricd: when
    it is gone, the last directives stay in force.
    """

    def __init__(self, model, sampler, optimizer=None, *, every=1, reduction="mean", norm_every=10,
                 max_interval=64, group=None, session=None):
        if every < 1 or norm_every < 0 or max_interval < 1:
            raise ValueError(
                f"every is {every}, norm_every {norm_every}, max_interval {max_interval}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f'reduction is {reduction!r}; expected "mean" or "sum"')
        self._model, self._sampler, self._optimizer = model, sampler, optimizer
        self._every, self._reduction, self._norm_every = every, reduction, norm_every
        self._max_interval, self._group = max_interval, group
        self._session = open_session(group) if session is None else session
        self._world = sampler.num_replicas
        parameters = list(model.parameters())
        self._clock = clock_for(parameters)
        self._late = collections.deque()  # steps to be reported: figures, Span
        device = next((p.device for p in parameters), torch.device("cpu"))
        self._words_device = words_device(group, device)
        self._merge = GradientMerge(self._gradient_weight, group, self._clock)
        self._trend = LossTrend()
        self.sync_interval = 1
        self.serial = 0  # of the directives in force
        self.steps = 0
        self.last_loss = math.nan  # of the whole batch, over the steps between two readings
        self._held_until = 0
        self._apart = [0, 0]  # since replicas were last alike: steps, this rank's samples
        self._losses = [0.0, 0]  # since the last reading: sum over samples, samples
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(self._merge, GradientMerge.hook)
        self._began = self._clock.mark()
        self._begin_step()

    @property
    def weight(self):
        """What this rank's samples count for in the step that is being computed."""
        counts = self._sampler.step_counts
        return counts[self._sampler.rank] / sum(counts)

    def units(self, *tensors):
        """Cuts this rank's batch into work units, for gradient accumulation.

        Yields (tensors of the unit, its share of this rank's samples); the loss of the unit, a
        mean, is to be multiplied by the share. Only the last unit's backward() communicates.
        """
        size = len(tensors[0])
        starts = range(0, size, self._sampler.unit)
        wrapped = isinstance(self._model, DistributedDataParallel)
        try:
            for start in starts:
                if wrapped:
                    self._model.require_backward_grad_sync = start == starts[-1]
                part = [tensor[start : start + self._sampler.unit] for tensor in tensors]
                yield part, len(part[0]) / size
        finally:
            if wrapped:
                self._model.require_backward_grad_sync = True

    def merge_gradients(self):
        """For models without DistributedDataParallel: between backward() and optimizer.step().

        A rank whose weight is 0 may come here without having computed anything.
        """
        self._merge.merge(self._model.parameters())

    def step(self, loss=None, compute_s=None):
        """After optimizer.step(), on every rank. `loss` is this rank's, as its criterion gave it.

        compute_s: seconds that this rank computed, from a trainer that measures them where they
        are spent. Without it, Control measures: by events on the current stream when the parameters
        were on one CUDA device as it was made, else by the host's clock. Steps that a device has not
        done yet are reported later, up to LATE_STEPS; those at the end of training may not be.
        """
        if compute_s is not None and not 0 <= compute_s < math.inf:
            raise ValueError(f"compute_s is {compute_s}; expected seconds")
        ended = self._clock.mark()  # before the loss is read, and replicas are averaged
        samples = self._sampler.step_counts[self._sampler.rank]
        value = self._note_loss(loss, samples)
        meets = self._average_when_due(samples)
        self.steps += 1
        span = Span(self._clock, self._began, ended, self._merge.asked_at, self._merge.merged_at)
        if compute_s is not None:
            span = Span(HostClock(), 0, round(compute_s * 1e9))
        self._began = self._clock.mark()
        self._report(samples, value, span)
        self._sampler.advance()
        if meets:
            self._look()
        if self._clock.on_device:
            self._began = self._clock.mark()  # while the host waits for the others, the device has no work
        self._begin_step()

    # ---- one step ----

    def _begin_step(self):
        measures = self._norm_every > 0 and self.steps % self._norm_every == 0
        self._merge.begin(self.sync_interval > 1, measures)

    def _gradient_weight(self):
        """What this rank's gradient is to be multiplied by."""
        counts = self._sampler.step_counts
        mine = counts[self._sampler.rank]
        # Apart, each rank trains on the mean over its own samples.
        whole = mine if self.sync_interval > 1 else sum(counts)
        if mine == 0:
            return 0.0
        return mine / whole if self._reduction == "mean" else 1.0 / whole

    def _note_loss(self, loss, samples):
        """The mean over this rank's samples; NaN when it is not given or no sample is its own."""
        if loss is None or samples == 0:
            return math.nan
        value = float(loss.detach() if torch.is_tensor(loss) else loss)
        value = value / samples if self._reduction == "sum" else value
        self._losses[0] += value * samples
        self._losses[1] += samples
        return value

    def _report(self, samples, loss, span):
        norms = (math.nan, math.nan)
        if self._merge.measures:
            norms = (self._own_norm(), self._merged_norm())
        # The daemon moves work units between ranks that have some.
        queue = -(-samples // self._sampler.unit) if self._sampler.unit > 1 else 0
        figures = {"samples": samples, "loss": loss, "gradient_norm": norms[0],
                   "mean_gradient_norm": norms[1], "queue": queue}  # fmt: skip
        self._late.append((figures, span))
        # A host that waited for its device in each step would leave it without work.
        while self._late and (self._late[0][1].is_over() or len(self._late) > LATE_STEPS):
            figures, span = self._late.popleft()
            self._session.report(compute_ns=span.compute_ns(), **figures)

    def _own_norm(self):
        """Of the mean gradient over this rank's samples; NaN without any."""
        counts = self._sampler.step_counts
        mine = counts[self._sampler.rank]
        if mine == 0:
            return math.nan
        norm = math.sqrt(self._merge.squares)
        return norm / mine if self._reduction == "sum" else norm

    def _merged_norm(self):
        if self._merge.apart:
            return math.nan
        gradients = [p.grad.norm() for p in self._model.parameters() if p.grad is not None]
        return torch.stack(gradients).norm().item() if gradients else math.nan

    # ---- replicas that part (local SGD) ----

    def _average_when_due(self, samples):
        """Whether the ranks merge after this step."""
        if self.sync_interval == 1:
            return (self.steps + 1) % self._every == 0
        self._apart[0] += 1
        self._apart[1] += samples
        if self._apart[0] < self.sync_interval:
            return False
        self._average()
        return True

    def _average(self):
        total = self._sum(torch.tensor([float(self._apart[1])], dtype=torch.float64))[0]
        weight = self._apart[1] / total
        module = self._model
        if isinstance(module, DistributedDataParallel):
            module = module.module
        weighted_mean(state_tensors(module, self._optimizer), weight, self._group)
        self._apart = [0, 0]

    def _sum(self, words):
        """Of a small tensor over the ranks, as a list."""
        words = words.to(self._words_device)
        dist.all_reduce(words, group=self._group)
        return words.tolist()

    def _set_interval(self, interval):
        if isinstance(self._model, DistributedDataParallel):
            # Buffers are merged with the parameters; a broadcast in each forward() would be a
            # barrier.
            if not hasattr(self, "_broadcasts"):
                self._broadcasts = self._model.broadcast_buffers
            self._model.broadcast_buffers = self._broadcasts and interval == 1
        self.sync_interval = interval

    # ---- directives ----

    def _look(self):
        """All ranks learn what rank 0 is directed to, how far each has drawn, and the loss.

        One sum of float64: rank 0 fills the directives and the others add zero; each rank fills its
        own place of the drawn batches. Sums are in rank order, so all ranks hold the same bits.
        """
        world, rank = self._world, self._sampler.rank
        told = torch.zeros(2 + 3 * world + 2, dtype=torch.float64)
        # The others read, too, for their sessions report to fabricd which directives have arrived.
        directed = self._directed()
        if rank == 0:
            told[: 2 + 2 * world] = directed
        told[2 + 2 * world + rank] = self._sampler.drawn
        told[-2], told[-1] = self._losses
        self._losses = [0.0, 0]
        values = self._sum(told)
        drawn = int(max(values[2 + 2 * world : 2 + 3 * world]))
        self._follow(values[: 2 + 2 * world], drawn)
        self._guard(values[-2], values[-1])

    def _directed(self):
        """Serial, interval, shares, work units of the session; serial 0 when nothing is directed."""
        world = self._world
        blank = torch.zeros(2 + 2 * world, dtype=torch.float64)
        directives = self._session.read()
        if directives is None or directives.serial == 0:
            return blank
        blank[0], blank[1] = directives.serial, directives.sync_interval
        shares = valid_shares(directives.batch_share, world)
        if shares is not None:
            blank[2 : 2 + world] = torch.tensor(shares, dtype=torch.float64)
        units = directives.work_units[:world]
        if len(units) == world and sum(units) > 0:
            blank[2 + world :] = torch.tensor(units, dtype=torch.float64)
        return blank

    def _follow(self, values, drawn):
        serial, interval = int(values[0]), int(values[1])
        if serial in (0, self.serial):
            return
        self.serial = serial
        world = self._world
        shares, units = values[2 : 2 + world], [int(u) for u in values[2 + world :]]
        held, _ = self._sampler.plan.latest
        shares = shares if sum(shares) > 0 else held
        self._sampler.plan.change(drawn, shares, units if sum(units) > 0 else None)
        if interval > 0 and self._optimizer is not None and self.steps >= self._held_until:
            self._set_interval(min(interval, self._max_interval))

    def _guard(self, loss_sum, samples):
        """Back to merging every step when the loss has begun to rise, before fabricd notices."""
        if samples == 0:
            return
        self.last_loss = loss_sum / samples
        if not self._trend.worsened(self.last_loss) or self.sync_interval == 1:
            return
        self._set_interval(1)
        self._trend.restart()
        self._held_until = self.steps + HOLD_STEPS
