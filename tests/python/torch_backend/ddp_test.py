"""DistributedDataParallel over the fabric: the same numbers as gloo, overlap, buckets in place."""

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


def make_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300), torch.nn.ReLU(),
        torch.nn.Linear(300, 10))


def trained(rank, group, steps=5, **options):
    """Parameters after some steps on data of this rank."""
    model = DistributedDataParallel(make_model(), process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        inputs = torch.randn(16, 40, generator=generator)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def compares_with_gloo(rank, world, path, options):
    torch.set_num_threads(1)
    with fabric_test.process_group("fabricshm", path, rank, world):
        gloo = dist.new_group(backend="gloo")
        ours = trained(rank, None, **options)
        theirs = trained(rank, gloo, **options)
        gathered = [torch.empty_like(ours) for _ in range(world)]
        dist.all_gather(gathered, ours)
        identical = all(torch.equal(ours, other) for other in gathered)
        return identical, torch.equal(ours, theirs), (ours - theirs).abs().max().item()


def buckets_in_arena(rank, world, path, choice):
    os.environ["FABRIC_TORCH_ALLOCATOR"] = choice
    import fabricshm.torch as fabric

    with fabric_test.process_group("fabricshm", path, rank, world):
        seen = []

        def hook(state, bucket):
            seen.append(fabric.in_arena(bucket.buffer()))
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda future: future.value()[0] / world)

        model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
        model.register_comm_hook(None, hook)
        for _ in range(3):  # the buckets are rebuilt after the first step
            model(torch.ones(2, 40)).sum().backward()
        return seen, fabric.in_arena(model.module[2].weight.grad)


def fp16_hook(rank, world, path):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    with fabric_test.process_group("fabricshm", path, rank, world):
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        model(torch.ones(2, 40) * (rank + 1)).sum().backward()
        gradient = model.module[4].bias.grad.clone()
        dist.all_reduce(gradient, dist.ReduceOp.MAX)
        return torch.equal(gradient, model.module[4].bias.grad)


def overlaps(rank, world, path):
    """A reduction proceeds while this thread computes: it is done before the first wait for it."""
    import time

    with fabric_test.process_group("fabricshm", path, rank, world):
        for count in (1000, 4_000_000):
            work = dist.all_reduce(torch.ones(count), async_op=True)
            work.get_future()  # as DDP does, and never calls wait() on the work itself
            limit = time.monotonic() + 60
            while not work.get_future().done():
                torch.ones(64, 64).mm(torch.ones(64, 64))
                if time.monotonic() > limit:
                    return "not done without a wait"
        # Without a future nothing hurries the worker; it starts by itself all the same.
        value = torch.ones(1000)
        dist.all_reduce(value, async_op=True)
        while (value != world).any():
            if time.monotonic() > limit:
                return "not started without a wait"
            time.sleep(0)
        return "overlapped"


def allocator_life(rank, world, path):
    import fabricshm.torch as fabric

    torch.set_num_threads(1)  # a forked child that adds up waits for OpenMP threads that only its parent has
    with fabric_test.process_group("fabricshm", path, rank, world):
        with fabric.use_arena_allocator():
            large = torch.zeros(1 << 20)
            small = torch.zeros(16)
            grown = torch.ones(1 << 18) + 1
        outside = torch.zeros(1 << 20)
        placed = [fabric.in_arena(t) for t in (large, small, grown, outside)]
        dist.all_reduce(grown)
        # A full arena is no error.
        with fabric.use_arena_allocator():
            hoard = [torch.empty(1 << 24, dtype=torch.uint8) for _ in range(16)]
        in_arena = [fabric.in_arena(t) for t in hoard]
        del hoard
        # A forked child may read, allocate and free; the parent's accounting stays as it is.
        pid = os.fork()
        if pid == 0:
            try:
                with fabric.use_arena_allocator():
                    fine = large.sum().item() == 0 and not fabric.in_arena(torch.zeros(1 << 20))
                    copy = large
                del copy
                os._exit(0 if fine else 1)
            finally:
                os._exit(2)
        child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        kept = torch.nn.Parameter(large)
    # The process group is gone; what lives in the arena does not notice.
    kept.data.add_(1)
    total = kept.sum().item()
    name = fabric.arena_name()
    del kept, large, grown
    return placed, in_arena, child, total, name


def loader_workers(rank, world, path):
    from torch.utils.data import DataLoader, TensorDataset

    import fabricshm.torch as fabric

    with fabric_test.process_group("fabricshm", path, rank, world):
        with fabric.use_arena_allocator():
            inputs = torch.arange(100_000.0).reshape(1000, 100)
        loader = DataLoader(TensorDataset(inputs), batch_size=100, num_workers=2)
        total = torch.zeros(1, dtype=torch.float64)
        for (batch,) in loader:
            total += batch.sum(dtype=torch.float64)
            dist.all_reduce(torch.ones(10))
        return total.item()


class Training(unittest.TestCase):
    def test_two_ranks_end_with_the_parameters_of_gloo_to_the_last_bit(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1},
                        {"static_graph": True}):
            with self.subTest(options):
                path = fabric_test.store_path()
                for identical, equal, difference in fabric_test.run_ranks(
                        compares_with_gloo, 2, path, options):
                    self.assertTrue(identical)
                    self.assertTrue(equal, f"differs by {difference}")

    def test_three_ranks_are_alike_and_near_gloo(self):
        path = fabric_test.store_path()
        for identical, _, difference in fabric_test.run_ranks(compares_with_gloo, 3, path, {}):
            self.assertTrue(identical)
            self.assertLess(difference, 1e-5)

    def test_communication_proceeds_beside_computation(self):
        for text in fabric_test.run_ranks(overlaps, 2, fabric_test.store_path()):
            self.assertEqual(text, "overlapped")

    def test_a_compression_hook_sums_halves(self):
        self.assertEqual(fabric_test.run_ranks(fp16_hook, 2, fabric_test.store_path()), [True] * 2)


class Allocator(unittest.TestCase):
    def test_buckets_and_gradients_live_in_the_arena_unless_told_not_to(self):
        for choice, expected in (("auto", True), ("0", False)):
            for seen, gradient in fabric_test.run_ranks(
                    buckets_in_arena, 2, fabric_test.store_path(), choice):
                self.assertEqual(set(seen), {expected}, choice)
                self.assertEqual(gradient, expected, choice)

    def test_tensors_come_from_the_arena_in_scope_and_outlive_the_group(self):
        for placed, in_arena, child, total, name in fabric_test.run_ranks(
                allocator_life, 2, fabric_test.store_path()):
            self.assertEqual(placed, [True, False, True, False])
            self.assertIn(False, in_arena)  # more than the arena holds
            self.assertEqual(child, 0)
            self.assertEqual(total, 1 << 20)
            self.assertEqual(name, "")

    def test_loader_workers_read_tensors_of_the_arena(self):
        results = fabric_test.run_ranks(loader_workers, 2, fabric_test.store_path())
        self.assertEqual(results, [sum(range(100_000))] * 2)


if __name__ == "__main__":
    os.environ["FABRIC_ARENA_BYTES"] = "160M"
    with fabric_test.daemon_or_skip():
        fabric_test.main()
