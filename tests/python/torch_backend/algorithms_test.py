"""PyTorch's distributed algorithms end with the parameters that they end with over gloo."""

import logging
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

from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402
    default_hooks, post_localSGD_hook, powerSGD_hook)
from torch.distributed.algorithms.join import Join  # noqa: E402
from torch.distributed.algorithms.model_averaging import averagers  # noqa: E402
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def make_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 4))


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def with_hook(hook, make_state=lambda group: None, steps=6, **options):
    def algorithm(group):
        model = DistributedDataParallel(make_model(), process_group=group, **options)
        model.register_comm_hook(make_state(group), hook)
        return train(model, torch.optim.SGD(model.parameters(), lr=0.05), steps)

    return algorithm


def power_state(group):
    # A rank low enough that the weights are compressed, with everything that it remembers.
    return powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)


def batched_power_sgd(state, bucket):
    """PyTorch 1.13 orthogonalizes batches of matrices only, and its own batched hook has none."""
    original = powerSGD_hook._orthogonalize

    def orthogonalize(matrix, epsilon=0):
        original(matrix.unsqueeze(0) if matrix.dim() == 2 else matrix, epsilon)

    # Callbacks find it, too: it stays.
    if original.__name__ != "orthogonalize":
        powerSGD_hook._orthogonalize = orthogonalize
    return powerSGD_hook.batched_powerSGD_hook(state, bucket)


def alone(group):
    """A group of this rank alone, with the backend of `group`."""
    made = [dist.new_group([rank], backend=dist.get_backend(group)) for rank in range(dist.get_world_size())]
    return made[dist.get_rank()]


def post_local(group):
    model = DistributedDataParallel(make_model(), process_group=group)
    state = post_localSGD_hook.PostLocalSGDState(
        process_group=group, subgroup=alone(group), start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2, process_group=group)
    local = torch.optim.SGD(model.parameters(), lr=0.05)
    return train(model, PostLocalSGDOptimizer(optim=local, averager=averager), 7)


def zero(group):
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01)
    result = train(model, optimizer, 5)
    optimizer.consolidate_state_dict(to=0)
    return result


def uneven(group):
    """Join: ranks have different numbers of batches."""
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        return train(model, optimizer, 3 + 2 * dist.get_rank()).clone()


def uneven_zero(group):
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, process_group=group, lr=0.05)
    with Join([model, optimizer]):
        train(model, optimizer, 3 + 2 * dist.get_rank())
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


ALGORITHMS = {
    "allreduce": with_hook(default_hooks.allreduce_hook, lambda group: group),
    "fp16": with_hook(default_hooks.fp16_compress_hook, lambda group: group),
    "powerSGD": with_hook(powerSGD_hook.powerSGD_hook, power_state),
    "batched powerSGD": with_hook(batched_power_sgd, power_state),
    "fp16 around allreduce": with_hook(
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), lambda group: group),
    "post-local SGD": post_local,
    "ZeRO": zero,
    "join": uneven,
    "join with ZeRO": uneven_zero,
}


def comparable(gloo):
    """Names of ALGORITHMS that gloo can run: that of some builds of torch 2 has no float16."""
    try:
        dist.all_reduce(torch.ones(1, dtype=torch.float16), group=gloo)
    except RuntimeError as error:
        if "Invalid scalar type" not in str(error):
            raise
        return [name for name in ALGORITHMS if "fp16" not in name]
    return list(ALGORITHMS)


def compare(rank, world, path):
    """{algorithm: largest difference from gloo}; equal is 0."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # PowerSGD speaks of its state
    differences = {}
    with fabric_test.process_group("fabricshm", path, rank, world):
        ours, gloo = dist.new_group(), dist.new_group(backend="gloo")
        names = comparable(gloo)
        for name, algorithm in ALGORITHMS.items():
            torch.manual_seed(1)
            mine = algorithm(ours)
            torch.manual_seed(1)
            theirs = algorithm(gloo) if name in names else mine
            differences[name] = (mine - theirs).abs().max().item()
            dist.monitored_barrier(ours)
    return differences


def many_buckets(rank, world, path):
    """PowerSGD where buckets overlap: callbacks of one call collectives while the next is begun."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with fabric_test.process_group("fabricshm", path, rank, world):
        algorithm = with_hook(powerSGD_hook.powerSGD_hook, power_state, steps=20, bucket_cap_mb=0.01)
        mine = algorithm(dist.group.WORLD)
        gathered = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(gathered, mine)
        return bool(mine.isfinite().all()), all(torch.equal(mine, other) for other in gathered)


def in_bfloat16(state, bucket):
    """By a name of its own: DDP takes PyTorch's hook for NCCL alone, by its name."""
    return default_hooks.bf16_compress_hook(state, bucket)


def bfloat16(rank, world, path):
    """gloo refuses bfloat16: compared with sums that are not compressed."""
    torch.set_num_threads(1)
    with fabric_test.process_group("fabricshm", path, rank, world):
        group = dist.group.WORLD
        rounded = with_hook(in_bfloat16, lambda group: group)(group)
        exact = with_hook(default_hooks.allreduce_hook, lambda group: group)(group)
        return (rounded - exact).abs().max().item()


class Algorithms(unittest.TestCase):
    def test_two_ranks_end_as_over_gloo_to_the_last_bit(self):
        for differences in fabric_test.run_ranks(compare, 2, fabric_test.store_path()):
            self.assertEqual(differences, {name: 0 for name in ALGORITHMS})

    def test_three_ranks_end_near_gloo(self):
        for differences in fabric_test.run_ranks(compare, 3, fabric_test.store_path()):
            for name, difference in differences.items():
                # Sums of another order; a compressed gradient is a coarser one.
                self.assertLess(difference, 1e-2 if "SGD" in name or "fp16" in name else 1e-5, name)

    def test_powersgd_with_many_buckets_keeps_replicas_alike(self):
        for outcome in fabric_test.run_ranks(many_buckets, 2, fabric_test.store_path()):
            self.assertEqual(outcome, (True, True))

    def test_bfloat16_compression_is_near_the_uncompressed(self):
        for difference in fabric_test.run_ranks(bfloat16, 2, fabric_test.store_path()):
            self.assertLess(difference, 1e-2)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
