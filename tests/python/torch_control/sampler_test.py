"""FabricSampler: no sample is lost or repeated, however shares change and loaders draw ahead."""

import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    from torch.utils.data import DataLoader, TensorDataset
except ImportError as error:
    fabric_test.skip(error)

from fabricshm.torch import FabricSampler  # noqa: E402
from fabricshm.torch._shares import cut, largest_remainder, valid_shares  # noqa: E402


def samplers(length, batch_size, world, **options):
    return [FabricSampler(range(length), batch_size, num_replicas=world, rank=rank, **options)
            for rank in range(world)]


def order_of(length, seed, epoch):
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(length, generator=generator).tolist()


def random_shares(generator, world):
    """Some ranks drained, never all."""
    shares = [generator.choice([0.0, generator.random(), 5.0]) for _ in range(world)]
    shares[generator.randrange(world)] += 0.1
    return valid_shares(shares, world)


class Loaders:
    """Ranks in lockstep: each has drawn some batches ahead of the step, as loaders do."""

    def __init__(self, ranks, depths):
        self.ranks = ranks
        self.depths = depths
        self.queues = [[] for _ in ranks]
        self.iterators = [iter(rank) for rank in ranks]

    def step(self):
        """The batches of one step; None after the last."""
        for iterator, queue, depth in zip(self.iterators, self.queues, self.depths):
            while len(queue) <= depth:
                batch = next(iterator, None)
                if batch is None:
                    break
                queue.append(batch)
        if not self.queues[0]:
            return None
        return [queue.pop(0) for queue in self.queues]

    def change(self, shares, units=None):
        """As Control does it between two steps."""
        drawn = max(rank.drawn for rank in self.ranks)
        for rank in self.ranks:
            rank.plan.change(drawn, shares, units)


def own(sampler, batch):
    """The batch without the sample that a drained rank borrows."""
    return batch[: sampler.step_counts[sampler.rank]]


class Arithmetic(unittest.TestCase):
    def test_parts_sum_up_and_are_within_one_of_exact(self):
        generator = random.Random(1)
        for _ in range(2000):
            world = generator.randrange(1, 9)
            shares, total = random_shares(generator, world), generator.randrange(0, 400)
            parts = largest_remainder(total, shares)
            self.assertEqual(sum(parts), total)
            for part, share in zip(parts, shares):
                self.assertLess(abs(part - share * total), 1 + 1e-9)
                self.assertTrue(share > 0 or part == 0)

    def test_a_cut_keeps_units_whole_but_for_one_tail(self):
        generator = random.Random(2)
        for _ in range(1000):
            world, unit = generator.randrange(1, 6), generator.randrange(1, 9)
            total = generator.randrange(1, 200)
            counts = cut(total, unit, random_shares(generator, world))
            self.assertEqual(sum(counts), total)
            self.assertTrue(all(count >= 0 for count in counts))
            self.assertLessEqual(sum(count % unit != 0 for count in counts), 1)

    def test_work_units_are_taken_as_they_are(self):
        self.assertEqual(cut(80, 10, [0.25] * 4, [5, 0, 1, 2]), [50, 0, 10, 20])
        self.assertEqual(cut(75, 10, [0.25] * 4, [5, 0, 1, 2]), [50, 0, 10, 15])
        self.assertEqual(cut(40, 10, [0.25] * 4, [4, 0, 2, 2]), [20, 0, 10, 10])  # proportions

    def test_shares_that_are_none_are_refused(self):
        nan, infinity = float("nan"), float("inf")
        for bad in ([0, 0], [nan, 1], [-1, 2], [infinity, 1], [1], [1e308, 1e308]):
            self.assertIsNone(valid_shares(bad, 2), bad)
        self.assertEqual(valid_shares([3, 1, 99], 2), [0.75, 0.25])


class Epochs(unittest.TestCase):
    def test_every_sample_is_drawn_once_while_shares_change_and_loaders_draw_ahead(self):
        generator = random.Random(3)
        for case in range(120):
            world = generator.randrange(1, 6)
            length, size = generator.randrange(1, 300), generator.randrange(1, 64)
            unit = generator.choice([1, 1, 4])
            ranks = samplers(length, size, world, seed=case, unit=unit)
            loaders = Loaders(ranks, [generator.randrange(0, 7) for _ in range(world)])
            for epoch in range(2):
                for rank in ranks:
                    rank.set_epoch(epoch)
                loaders.__init__(ranks, loaders.depths)
                seen = []
                for step in range(len(ranks[0])):
                    pieces = [own(r, piece) for r, piece in zip(ranks, loaders.step())]
                    self.assertTrue(all(r.step_counts == ranks[0].step_counts for r in ranks))
                    seen += sum(pieces, [])
                    for rank in ranks:
                        rank.advance()
                    if generator.random() < 0.3:
                        units = [generator.randrange(3) for _ in range(world)]
                        loaders.change(
                            random_shares(generator, world),
                            units if sum(units) and generator.random() < 0.5 else None)
                self.assertIsNone(loaders.step())
                # Not only the same samples: the same order, so steps never depend on the shares.
                self.assertEqual(seen, order_of(length, case, epoch))

    def test_a_change_holds_from_the_first_batch_that_nobody_has_drawn(self):
        ranks = samplers(100, 10, 2)
        loaders = Loaders(ranks, [1, 4])
        loaders.step()
        for rank in ranks:
            rank.advance()
        loaders.change([0.8, 0.2])  # rank 1 has drawn batches 0 to 4
        sizes = []
        while (pieces := loaders.step()) is not None:
            sizes.append([len(piece) for piece in pieces])
            for rank in ranks:
                rank.advance()
        self.assertEqual(sizes, [[5, 5]] * 4 + [[8, 2]] * 5)

    def test_a_tail_is_cut_by_the_shares_or_dropped(self):
        ranks = samplers(25, 10, 2)
        for rank in ranks:
            rank.plan.change(0, [0.8, 0.2])
        self.assertEqual([len(batch) for batch in ranks[0]], [8, 8, 4])
        self.assertEqual([len(batch) for batch in ranks[1]], [2, 2, 1])
        self.assertEqual(len(samplers(25, 10, 2, drop_last=True)[0]), 2)

    def test_a_drained_rank_borrows_one_sample_and_counts_none(self):
        ranks = samplers(20, 10, 2)
        for rank in ranks:
            rank.plan.change(0, [1.0, 0.0])
        self.assertEqual([len(batch) for batch in ranks[1]], [1, 1])
        self.assertEqual(ranks[1].counts(0), [10, 0])

    def test_shares_outlive_the_epoch(self):
        rank = samplers(20, 10, 2)[0]
        list(rank)
        rank.plan.change(rank.drawn, [0.9, 0.1])
        rank.set_epoch(1)
        self.assertEqual([len(batch) for batch in rank], [9, 9])

    def test_without_shuffling_the_order_is_that_of_the_data(self):
        self.assertEqual(list(samplers(6, 4, 2, shuffle=False)[1]), [[2, 3], [5]])

    def test_arguments_out_of_range_are_refused(self):
        for options in ({"rank": 2}, {"batch_size": 0}, {"unit": 0}, {"rank": -1}):
            with self.assertRaises(ValueError):
                FabricSampler(range(9), **{
                    "batch_size": 3, "num_replicas": 2, "rank": 0, **options})


class Resume(unittest.TestCase):
    def run_to(self, rank, loaders, steps):
        taken = []
        for _ in range(steps):
            taken.append(own(rank, loaders.step()[0]))
            rank.advance()
        return taken

    def test_a_restored_sampler_goes_on_as_the_original_would_prefetched_batches_included(self):
        original = samplers(200, 10, 3, seed=5)[0]
        original.set_epoch(2)
        loaders = Loaders([original], [3])
        self.run_to(original, loaders, 4)
        loaders.change([0.6, 0.2, 0.2])
        self.run_to(original, loaders, 1)  # between the change and where it holds
        state = original.state_dict()
        rest = self.run_to(original, loaders, 15)
        restored = samplers(200, 10, 3)[0]
        restored.load_state_dict(state)
        restored.set_epoch(2)  # as a loop over epochs does
        self.assertEqual(self.run_to(restored, Loaders([restored], [0]), 15), rest)

    def test_another_number_of_ranks_takes_over_without_losing_a_sample(self):
        before = samplers(100, 10, 2, seed=1)
        loaders = Loaders(before, [2, 0])
        seen = []
        for _ in range(4):
            seen += sum((own(r, p) for r, p in zip(before, loaders.step())), [])
            for rank in before:
                rank.advance()
        after = samplers(100, 10, 5, seed=1)
        for rank in after:
            rank.load_state_dict(before[0].state_dict())
        loaders = Loaders(after, [1] * 5)
        while (pieces := loaders.step()) is not None:
            seen += sum((own(r, p) for r, p in zip(after, pieces)), [])
            for rank in after:
                rank.advance()
        self.assertEqual(seen, order_of(100, 1, 0))

    def test_a_state_of_other_batches_is_refused(self):
        state = samplers(100, 10, 2)[0].state_dict()
        with self.assertRaisesRegex(ValueError, "global batches of 10, not 20"):
            samplers(100, 20, 2)[0].load_state_dict(state)


class Workers(unittest.TestCase):
    def test_worker_processes_get_the_batches_that_the_plan_says(self):
        data = TensorDataset(torch.arange(120))
        ranks = samplers(120, 10, 2, seed=9)
        loaders = [DataLoader(data, batch_sampler=ranks[0], num_workers=2),
                   DataLoader(data, batch_sampler=ranks[1])]
        seen, sizes = [], []
        for step, pieces in enumerate(zip(*loaders)):
            pieces = [own(r, piece[0].tolist()) for r, piece in zip(ranks, pieces)]
            seen += sum(pieces, [])
            sizes.append([len(piece) for piece in pieces])
            for rank in ranks:
                rank.advance()
            if step == 2:
                drawn = max(rank.drawn for rank in ranks)
                for rank in ranks:
                    rank.plan.change(drawn, [0.3, 0.7])
        self.assertEqual(seen, order_of(120, 9, 0))
        # Two workers with two batches each are ahead of the steps.
        self.assertEqual(sizes, [[5, 5]] * 7 + [[3, 7]] * 5)


if __name__ == "__main__":
    fabric_test.main()
