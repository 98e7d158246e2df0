"""Neighbour exchange: every sample is drawn once, as a simulation with lists of samples says, and the
cache's rule in C++ gives the same order. Argument: the module with that rule."""

import ctypes
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
except ImportError as error:
    fabric_test.skip(error)

from fabricshm._random import numbers_of  # noqa: E402
from fabricshm.torch import FabricSampler  # noqa: E402
from fabricshm.torch._exchange import part_of  # noqa: E402
from fabricshm.torch._shares import cut, equal_shares, valid_shares  # noqa: E402

RULES = ctypes.CDLL(sys.argv.pop()) if len(sys.argv) > 1 else None


def random_shares(generator, world):
    """Some ranks drained, never all."""
    shares = [generator.choice([0.0, generator.random(), 5.0]) for _ in range(world)]
    shares[generator.randrange(world)] += 0.1
    return valid_shares(shares, world)


def order_of(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(length, generator=generator).tolist()


class Case:
    """An epoch: its sizes, and from which batch on which shares hold."""

    def __init__(self, generator, seed):
        self.world = generator.randrange(1, 8)
        self.length, self.size = generator.randrange(1, 300), generator.randrange(1, 64)
        self.unit = generator.choice([1, 1, 4])
        self.drop_last = generator.random() < 0.5
        self.exchange = generator.choice([0.0, 0.05, 0.3, 1.0])
        self.seed, self.epoch = seed, generator.randrange(3)
        self.batches = self.length // self.size + (
            self.length % self.size > 0 and not self.drop_last)
        self.cuts = {0: equal_shares(self.world)}
        for batch in range(1, self.batches):
            if generator.random() < 0.15:
                self.cuts[batch] = random_shares(generator, self.world)
        # Where a run is interrupted and restored, and how far loaders are ahead.
        self.stops = {batch for batch in range(self.batches) if generator.random() < 0.1}
        self.generator = generator

    def total(self, batch):
        return min(self.size, self.length - batch * self.size)

    def sampler(self, rank):
        made = FabricSampler(range(self.length), self.size, num_replicas=self.world, rank=rank,
                             seed=self.seed, drop_last=self.drop_last, unit=self.unit,
                             exchange=self.exchange)
        made.set_epoch(self.epoch)
        return made

    def drawn_by(self, rank):
        """Batches of a rank, without borrowed samples; across interruptions."""
        sampler, batches = self.sampler(rank), []
        iterator = iter(sampler)
        for batch in range(self.batches):
            # A change is entered before the batch is drawn, not earlier.
            if batch in self.cuts and batch > 0:
                sampler.plan.change(batch, self.cuts[batch])
            if batch in self.stops:
                state = sampler.state_dict()
                sampler = self.sampler(rank)
                sampler.load_state_dict(state)
                iterator = iter(sampler)
            count = sampler.counts(batch)[rank]
            batches.append(next(iterator)[:count])
            sampler.advance()
        assert next(iterator, None) is None
        return batches


def simulated(case):
    """Lists of what each rank has still to draw of each batch; neighbours swap samples of them after
    each step. Another way to the same: a list for each batch, samples and not places, and sets of what
    was taken."""
    order = order_of(case.length, case.seed + case.epoch)
    hands, drawn = {}, [[] for _ in range(case.world)]
    part = part_of(case.exchange)
    for step in range(case.batches):
        if step in case.cuts:
            for batch in range(step, case.batches):
                left = order[batch * case.size : batch * case.size + case.total(batch)]
                counts = cut(case.total(batch), case.unit, case.cuts[step])
                hands[batch] = []
                for count in counts:
                    hands[batch].append(left[:count])
                    left = left[count:]
        for rank in range(case.world):
            drawn[rank].append(hands[step][rank])
        for batch in range(step + 1, case.batches):
            swap(hands[batch], part, numbers_of(case.seed, case.epoch, step))
    return drawn


def swap(hands, part, numbers):
    world = len(hands)
    if world < 2:
        return
    first = next(numbers) % world
    for pair in range(world // 2):
        pair = [(first + 2 * pair + side) % world for side in (0, 1)]
        exact = part * min(len(hands[rank]) for rank in pair)
        picks, rest = divmod(exact, 1 << 32)
        picks += (next(numbers) >> 32) < rest
        given = [[], []]
        for _ in range(picks):
            for side, rank in enumerate(pair):
                # What is picked goes, and the first of what is left takes its place.
                place = next(numbers) % len(hands[rank])
                given[side].append(hands[rank][place])
                hands[rank][place] = hands[rank][0]
                del hands[rank][0]
        hands[pair[0]][:0] = given[1]
        hands[pair[1]][:0] = given[0]


class Epochs(unittest.TestCase):
    def test_ranks_draw_what_a_simulation_with_hands_says_and_each_sample_once(self):
        generator = random.Random(1)
        moved = 0
        for seed in range(150):
            case = Case(generator, seed)
            expected = simulated(case)
            steps = [[] for _ in range(case.batches)]
            for rank in range(case.world):
                drawn = case.drawn_by(rank)
                self.assertEqual(drawn, expected[rank], vars(case))
                for batch, samples in enumerate(drawn):
                    steps[batch] += samples
            order = order_of(case.length, case.seed + case.epoch)
            for batch, samples in enumerate(steps):
                whole = order[batch * case.size : batch * case.size + case.total(batch)]
                # Which samples make up a step depends on neither shares nor exchange.
                self.assertEqual(sorted(samples), sorted(whole))
                moved += samples != whole
        self.assertGreater(moved, 300)

    def test_after_a_step_a_rank_has_given_its_share_to_one_neighbour(self):
        for seed in range(20):
            plain = [list(r) for r in self.ranks(8, seed, 0.0)]
            swapped = [list(r) for r in self.ranks(8, seed, 0.05)]
            for rank in range(8):
                lost = set(plain[rank][1]) - set(swapped[rank][1])
                takers = {other for other in range(8) if lost & set(swapped[other][1])}
                self.assertEqual(len(lost), 5)
                self.assertEqual(len(takers), 1)
                self.assertIn((rank - takers.pop()) % 8, (1, 7))
            self.assertEqual(plain[0][0], swapped[0][0])

    @staticmethod
    def ranks(world, seed, exchange):
        return [FabricSampler(range(1600), 800, num_replicas=world, rank=rank, seed=seed,
                              exchange=exchange) for rank in range(world)]

    def test_another_number_of_ranks_takes_over_without_losing_a_sample(self):
        before = [FabricSampler(range(100), 10, num_replicas=2, rank=rank, exchange=0.3)
                  for rank in range(2)]
        seen = []
        for rank in before:
            iterator = iter(rank)
            for _ in range(4):
                seen += next(iterator)
                rank.advance()
        after = [FabricSampler(range(100), 10, num_replicas=5, rank=rank) for rank in range(5)]
        for rank in after:
            rank.load_state_dict(before[0].state_dict())
            self.assertEqual(rank.exchange, 0.3)
            seen += sum(rank, [])
        self.assertEqual(sorted(seen), list(range(100)))

    def test_a_state_of_before_there_was_an_exchange_has_none(self):
        sampler = FabricSampler(range(100), 10, num_replicas=2, rank=0, exchange=0.3)
        state = sampler.state_dict()
        del state["exchange"]
        sampler.load_state_dict(state)
        self.assertEqual(sampler.exchange, 0.0)

    def test_a_share_is_from_0_to_1(self):
        for bad in (-0.1, 1.1, float("nan")):
            with self.assertRaisesRegex(ValueError, "exchange is"):
                FabricSampler(range(9), 3, num_replicas=1, rank=0, exchange=bad)


@unittest.skipIf(RULES is None, "without the module of the cache's rules")
class Cache(unittest.TestCase):
    def test_the_cache_knows_the_order_of_each_rank(self):
        generator = random.Random(2)
        for seed in range(150):
            case = Case(generator, seed)
            case.stops = set()
            cuts = sorted(case.cuts)
            flat = lambda total: [count for since in cuts  # noqa: E731
                                  for count in cut(total, case.unit, case.cuts[since])]
            numbers = lambda values: (ctypes.c_uint32 * len(values))(*values)  # noqa: E731
            for rank in range(case.world):
                share = (ctypes.c_uint32 * (case.length + 1))()
                found = RULES.plan_share(
                    case.length, ctypes.c_uint64(case.seed + case.epoch), case.size,
                    int(case.drop_last), case.world, rank, ctypes.c_uint64(case.seed),
                    ctypes.c_uint64(case.epoch), ctypes.c_uint64(part_of(case.exchange)),
                    len(cuts), numbers(cuts), numbers(flat(case.size)),
                    numbers(flat(case.length % case.size)), share)
                self.assertEqual(list(share[:found]), sum(case.drawn_by(rank), []))

    def test_equal_shares_are_cut_alike(self):
        generator = random.Random(3)
        for _ in range(2000):
            total, unit = generator.randrange(300), generator.randrange(1, 9)
            world = generator.randrange(1, 60)
            counts = (ctypes.c_uint32 * world)()
            RULES.plan_equal_cut(total, unit, world, counts)
            self.assertEqual(list(counts), cut(total, unit, equal_shares(world)))


if __name__ == "__main__":
    fabric_test.main()
