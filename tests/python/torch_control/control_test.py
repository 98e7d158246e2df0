"""Control: uneven ranks train as one would on the whole batch, and do what rank 0 is directed to."""

import contextlib
import math
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    fabric_test.skip(error)

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from fabricshm.torch import Control, Directives, FabricSampler  # noqa: E402
from fabricshm.torch._averaging import LossTrend  # noqa: E402

NAN = float("nan")


class Script:
    """A session of tests: directives by the number of polls, and the figures that were reported."""

    def __init__(self, *directives):
        self.directives = list(directives)
        self.told = []

    def read(self):
        return self.directives.pop(0) if len(self.directives) > 1 else self.directives[0]

    def report(self, **figures):
        self.told.append(figures)


def directed(serial, **fields):
    return Directives(serial=serial, **fields)


def flat(module, gradients=False):
    return torch.cat([(p.grad if gradients else p).detach().flatten()
                      for p in module.parameters()])


def same_everywhere(value):
    """Whether all ranks hold the same bits."""
    others = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(others, value)
    return all(torch.equal(value, other) for other in others)


# ---- gradients ----

def whole_numbers(rank, world, path, shares, reduction, wrapped):
    """The merged gradient, and the whole batch's, of a model whose arithmetic is exact."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    # Sixteenths of whole numbers are exact, and so are means over a power of two of them.
    data = torch.randint(-50, 50, (16, 6), generator=generator).float()
    with fabric_test.process_group("fabricshm", path, rank, world):
        linear = torch.nn.Linear(6, 1, bias=False)
        model = DistributedDataParallel(linear) if wrapped else linear
        sampler = FabricSampler(data, 16, seed=1)
        sampler.plan.change(0, shares)
        control = Control(model, sampler, reduction=reduction, session=Script(None))
        own = data[next(iter(sampler))]
        if sampler.step_counts[rank] == 0:
            own = own * NAN  # what a drained rank computes must not matter
        if wrapped or sampler.step_counts[rank]:  # without DDP a drained rank may leave it out
            getattr(model(own), reduction)().backward()
        if not wrapped:
            control.merge_gradients()
        return sampler.step_counts, linear.weight.grad, data.mean(0, keepdim=True)


def make_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 200), torch.nn.Tanh(), torch.nn.Linear(200, 100), torch.nn.Tanh(),
        torch.nn.Linear(100, 3))


def trained(rank, world, path):
    """Trains under changing directives, in work units; for comparison one process on whole batches."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(4)
    inputs, targets = torch.randn(150, 20, generator=generator), torch.arange(150) % 3
    script = Script(
        None, directed(1, batch_share=[0.5, 0.3, 0.2]), directed(2, batch_share=[0.9, 0.1, 0.0]),
        directed(2, batch_share=[0, 0, 1]), directed(3, work_units=[1, 2, 5]))
    with fabric_test.process_group("fabricshm", path, rank, world):
        model = DistributedDataParallel(make_model(), bucket_cap_mb=0.02)  # several buckets
        single = make_model()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, single)]
        sampler = FabricSampler(inputs, 32, unit=4, seed=2)
        control = Control(model, sampler, optimizers[0], norm_every=1, session=script)
        function = torch.nn.CrossEntropyLoss()
        counts, alike, apart, losses = [], True, 0.0, []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            order = torch.randperm(150, generator=torch.Generator().manual_seed(2 + epoch))
            for step, mine in enumerate(sampler):
                counts.append(sampler.step_counts)
                optimizers[0].zero_grad()
                value = 0.0
                for (x, y), share in control.units(inputs[mine], targets[mine]):
                    loss = function(model(x), y) * share
                    loss.backward()
                    value += loss.item()
                whole = order[step * 32 : (step + 1) * 32]
                optimizers[1].zero_grad()
                reference = function(single(inputs[whole]), targets[whole])
                reference.backward()
                alike = alike and same_everywhere(flat(model, True))
                difference = (flat(model, True) - flat(single, True)).norm()
                apart = max(apart, (difference / flat(single, True).norm()).item())
                for optimizer in optimizers:
                    optimizer.step()
                control.step(value)
                losses.append((control.last_loss, reference.item()))
        return counts, alike, apart, losses, script.told, sampler.step_counts


class Gradients(unittest.TestCase):
    def test_the_merged_gradient_is_that_of_the_whole_batch_to_the_last_bit(self):
        for counts, reduction, wrapped in (
                ([8, 4, 4], "mean", True), ([5, 6, 5], "sum", True), ([0, 14, 2], "sum", True),
                ([0, 8, 8], "mean", True), ([4, 8, 4], "mean", False), ([0, 3, 13], "sum", False)):
            with self.subTest(counts=counts, reduction=reduction, wrapped=wrapped):
                shares = [count / 16 for count in counts]
                for cut, gradient, whole in fabric_test.run_ranks(
                        whole_numbers, 3, fabric_test.store_path(), shares, reduction, wrapped):
                    self.assertEqual(cut, counts)
                    self.assertTrue(torch.equal(gradient, whole), (gradient, whole))

    def test_training_under_changing_shares_is_that_of_one_process(self):
        results = fabric_test.run_ranks(trained, 3, fabric_test.store_path())
        counts, _, _, losses, _, _ = results[0]
        # Directives hold from the step after the poll that brought them; the tail follows too.
        self.assertEqual(counts[:2], [[12, 12, 8], [12, 12, 8]])
        self.assertEqual(counts[2], [16, 8, 8])
        self.assertEqual(counts[3], [28, 4, 0])
        self.assertEqual(counts[4], [20, 2, 0])
        self.assertEqual(counts[5:9], [[4, 8, 20]] * 4)
        self.assertEqual(sum(counts[9]), 22)
        for rank, (others, alike, apart, _, told, _) in enumerate(results):
            self.assertEqual(others, counts)
            self.assertTrue(alike)
            self.assertLess(apart, 1e-4)
            self.assertEqual([t["samples"] for t in told], [c[rank] for c in counts])
        for ours, reference in losses:
            self.assertAlmostEqual(ours, reference, delta=1e-4)
        self._figures(results)

    def _figures(self, results):
        told = [rank[4] for rank in results]
        for step in range(10):
            merged = {figures[step]["mean_gradient_norm"] for figures in told}
            self.assertEqual(len(merged), 1)
            self.assertGreater(merged.pop(), 0)
            for figures in (rank[step] for rank in told):
                self.assertGreater(figures["compute_ns"], 0)
                drained = figures["samples"] == 0
                self.assertEqual(math.isnan(figures["gradient_norm"]), drained)
                self.assertEqual(math.isnan(figures["loss"]), drained)


# ---- directives ----

def follows(rank, world, path):
    """Rank 1's own directives are nonsense: rank 0's count, every third step."""
    with fabric_test.process_group("fabricshm", path, rank, world):
        sampler = FabricSampler(range(120), 10)
        model = torch.nn.Linear(1, 1)
        script = Script(directed(5, batch_share=[0.7, 0.3], sync_interval=9),
                        directed(6, batch_share=[NAN, 1.0]), directed(7, batch_share=[0.1, 0.9]))
        if rank == 1:
            script = Script(directed(99, batch_share=[0, 1]))
        control = Control(model, sampler, every=3, norm_every=0, session=script)
        counts = []
        for _ in sampler:
            counts.append(sampler.step_counts)
            control.merge_gradients()
            control.step(compute_s=0.25 + rank)
        times = {figures["compute_ns"] for figures in script.told}
        with contextlib.suppress(ValueError):
            control.step(compute_s=NAN)
            times.add(NAN)
        return counts, control.sync_interval, control.serial, times


class Following(unittest.TestCase):
    def test_all_ranks_do_what_rank_0_is_directed_to_from_the_same_step(self):
        for rank, (counts, interval, serial, times) in enumerate(fabric_test.run_ranks(
                follows, 2, fabric_test.store_path())):
            self.assertEqual(
                counts, [[5, 5]] * 3 + [[7, 3]] * 6 + [[1, 9]] * 3)  # no number is no share
            self.assertEqual(interval, 1)  # there is no optimizer, whose state would have to be averaged
            self.assertEqual(serial, 7)
            self.assertEqual(times, {250_000_000 + rank * 1_000_000_000})  # as the trainer said


# ---- local SGD ----

def intervals(rank, world, path):
    """Whether replicas are alike after each step, under an interval of 3 and a loss that rises."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(400, 20, generator=generator), torch.arange(400) % 3
    with fabric_test.process_group("fabricshm", path, rank, world):
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        sampler = FabricSampler(inputs, 8)
        sampler.plan.change(0, [0.75, 0.25])
        script = Script(directed(1, sync_interval=3), directed(1, sync_interval=3))
        control = Control(model, sampler, optimizer, session=script)
        alike, held = [], []
        for step, mine in enumerate(sampler):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[mine]), targets[mine]).backward()
            optimizer.step()
            # Rising by hand: what the trainer says is what counts.
            control.step(1.0 if step < 40 else 2.0 + step)
            alike.append(same_everywhere(flat(model)))
            held.append(control.sync_interval)
        return alike, held


def apart_and_averaged(rank, world, path):
    """Parameters after one merged step and two apart, and what training on all the data gives."""
    generator = torch.Generator().manual_seed(6)
    data = torch.randint(-9, 9, (24, 6), generator=generator).float() * 12
    with fabric_test.process_group("fabricshm", path, rank, world):
        model = DistributedDataParallel(torch.nn.Linear(6, 1, bias=False))
        torch.nn.init.ones_(model.module.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        sampler = FabricSampler(data, 8)
        sampler.plan.change(0, [0.5, 0.25, 0.25])
        control = Control(
            model, sampler, optimizer, session=Script(directed(1, sync_interval=2)))
        for mine in sampler:
            optimizer.zero_grad()
            model(data[mine]).mean().backward()
            optimizer.step()
            control.step()
        return model.module.weight.detach().clone(), 1 - 0.25 * data.view(3, 8, 6).mean(1).sum(0)


class Intervals(unittest.TestCase):
    def test_replicas_meet_every_third_step_and_every_step_once_the_loss_rises(self):
        for alike, held in fabric_test.run_ranks(intervals, 2, fabric_test.store_path()):
            self.assertEqual(alike[:10], [True] + [False, False, True] * 3)
            self.assertEqual(held[:40], [3] * 40)
            back = held.index(1)
            self.assertTrue(40 < back < 49, back)  # soon after the rise
            self.assertEqual(held[back:], [1] * (50 - back))
            self.assertTrue(all(alike[back:]))

    def test_the_mean_is_weighted_by_the_samples(self):
        # The gradient of this model is the same wherever it stands, so nothing is lost by parting.
        for weight, expected in fabric_test.run_ranks(
                apart_and_averaged, 3, fabric_test.store_path()):
            self.assertTrue(torch.equal(weight[0], expected), (weight, expected))


class Trend(unittest.TestCase):
    def noisy(self, level, noise, seed=1):
        generator = torch.Generator().manual_seed(seed)
        return lambda step: level(step) + noise * torch.randn(1, generator=generator).item()

    def test_noise_and_a_falling_loss_are_no_rise(self):
        for level in (lambda step: 1.0, lambda step: 2.3 * 0.99**step, lambda step: -step):
            trend, loss = LossTrend(), self.noisy(level, 0.1)
            self.assertEqual([s for s in range(1000) if trend.worsened(loss(s))], [])

    def test_a_rise_is_noticed_within_some_steps(self):
        for seed in range(20):
            trend = LossTrend()
            loss = self.noisy(lambda step: 1.0 + 0.05 * max(step - 200, 0), 0.1, seed)
            first = next(step for step in range(400) if trend.worsened(loss(step)))
            self.assertTrue(200 < first < 240, first)

    def test_no_number_is_the_worst_of_trends(self):
        self.assertTrue(LossTrend().worsened(NAN))
        self.assertTrue(LossTrend().worsened(float("inf")))


if __name__ == "__main__":
    with fabric_test.daemon_or_skip(pool_bytes=256 << 20):
        fabric_test.main()
