"""Control with a model on a GPU: two ranks on one device, over gloo. Needs a torch with a CUDA device, and no
module of this build: scripts/gpu-check runs it from the sources."""

import os
import statistics
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    fabric_test.skip(error)

# Asked in another process: one that has asked may not fork ranks that use the device.
if subprocess.run([sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]).returncode:
    fabric_test.skip(f"torch {torch.__version__} of {sys.executable} has no CUDA device")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from fabricshm.torch import Control, FabricSampler  # noqa: E402

SPIN_MS = (10, 40)  # what each rank's device does in a step


class Told:
    def __init__(self):
        self.compute_ms = []

    def read(self):
        return None

    def report(self, *, compute_ns, **_figures):
        self.compute_ms.append(compute_ns / 1e6)


def make_model():
    torch.manual_seed(7)
    layers = [torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)]
    return torch.nn.Sequential(*layers).double().cuda()


def trained(rank, world, path, wrapped):
    """The largest relative difference of a gradient from that of one process on whole batches."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(96, 20, generator=generator, dtype=torch.float64).cuda()
    targets = (torch.arange(96) % 3).cuda()
    with fabric_test.process_group("gloo", path, rank, world):
        model, single = make_model(), make_model()
        model = DistributedDataParallel(model) if wrapped else model
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, single)]
        sampler = FabricSampler(inputs, 32, seed=2)
        sampler.plan.change(0, [0.75, 0.25])
        control = Control(model, sampler, norm_every=1, session=Told())
        function = torch.nn.CrossEntropyLoss()
        order = torch.randperm(96, generator=torch.Generator().manual_seed(2))
        apart, counts = 0.0, []
        for step, mine in enumerate(sampler):
            counts.append(sampler.step_counts)
            whole = order[step * 32 : (step + 1) * 32]
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = function(model(inputs[mine]), targets[mine])
            loss.backward()
            if not wrapped:
                control.merge_gradients()
            function(single(inputs[whole]), targets[whole]).backward()
            for ours, theirs in zip(model.parameters(), single.parameters()):
                apart = max(apart, ((ours.grad - theirs.grad).norm() / theirs.grad.norm()).item())
            for optimizer in optimizers:
                optimizer.step()
            control.step(loss)
        return apart, counts


def cycles_of_a_ms(rank, world):
    """Ranks measure one after the other: they share the device."""
    found = 0
    for turn in range(world):
        if turn == rank:
            torch.cuda._sleep(1000)
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            torch.cuda._sleep(20_000_000)
            ended.record()
            ended.synchronize()
            found = 20_000_000 / began.elapsed_time(ended)
        dist.barrier()
    return found


def measured(rank, world, path):
    """Medians in ms: what this rank reported, and the time of a step."""
    steps, told = 20, Told()
    with fabric_test.process_group("gloo", path, rank, world):
        cycles = int(cycles_of_a_ms(rank, world) * SPIN_MS[rank])
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler = FabricSampler(range(8 * steps), 8)
        control = Control(model, sampler, norm_every=0, session=told)
        moments = []
        for mine in sampler:
            optimizer.zero_grad()
            output = model(torch.ones(len(mine), 20, dtype=torch.float64, device="cuda"))
            torch.cuda._sleep(cycles)
            output.sum().backward()
            optimizer.step()
            control.step()  # without a loss, which would be waited for
            moments.append(time.monotonic())
        periods = [later - earlier for earlier, later in zip(moments[5:], moments[6:])]
        return statistics.median(told.compute_ms[5:]), 1000 * statistics.median(periods), len(told.compute_ms)


class OnTheDevice(unittest.TestCase):
    def test_training_with_uneven_shares_is_that_of_one_process(self):
        for wrapped in (True, False):
            with self.subTest(wrapped=wrapped):
                for apart, counts in fabric_test.run_ranks(trained, 2, fabric_test.store_path(), wrapped):
                    self.assertEqual(counts, [[24, 8]] * 3)
                    self.assertLess(apart, 1e-9)

    def test_the_loop_sees_what_a_rank_computed_and_not_what_it_waited(self):
        results = fabric_test.run_ranks(measured, 2, fabric_test.store_path())
        for rank, (figure, period, told) in enumerate(results):
            print(f"rank {rank}: {SPIN_MS[rank]} ms of work, reported {figure:.1f} ms of {period:.1f} ms a step")
            self.assertGreaterEqual(told, 18)
            self.assertGreater(figure, 0.8 * SPIN_MS[rank])
        # Processes take turns on a device, so that the short one's work may take twice its time.
        self.assertGreater(results[1][0], 1.3 * results[0][0])
        self.assertLess(results[0][0], 0.8 * results[0][1])


if __name__ == "__main__":
    fabric_test.main()
