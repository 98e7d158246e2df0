"""Collectives and training of CUDA tensors over the fabric, on a GPU: ranks that share the first one. Needs a torch
with a CUDA device and this build's extension for it; scripts/gpu-check runs it where there are both."""

import os
import subprocess
import sys
import unittest
from datetime import timedelta

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
if subprocess.run([sys.executable, "-c", "import fabricshm.torch._backend"], capture_output=True).returncode:
    fabric_test.skip(f"no extension fabricshm.torch for torch {torch.__version__} of {sys.executable}")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def in_group(function):
    def in_rank(rank, world, path):
        torch.cuda.set_device(0)
        with fabric_test.process_group("fabricshm", path, rank, world):
            return function(rank, world)

    return in_rank


def made(rank, count, dtype):
    return ((torch.arange(count) * 7 + rank * 31) % 4).to(dtype)


@in_group
def collectives(rank, world):
    """Against the same in a process group of gloo, on the CPU."""
    gloo = dist.new_group(backend="gloo")
    for dtype in (torch.float32, torch.float16, torch.int64, torch.uint8):
        for count in (1, 1000, 3_000_001):
            ours, theirs = made(rank, count, dtype).cuda(), made(rank, count, dtype)
            dist.all_reduce(ours)
            dist.all_reduce(theirs, group=gloo)
            assert torch.equal(ours.cpu(), theirs), (dtype, count)
            ours = [torch.empty(count, dtype=dtype, device="cuda") for _ in range(world)]
            dist.all_gather(ours, made(rank, count, dtype).cuda())
            for source, got in enumerate(ours):
                assert torch.equal(got.cpu(), made(source, count, dtype)), (dtype, count)
            whole = torch.cat([made(rank + part, count, dtype) for part in range(world)]).cuda()
            part = torch.empty(count, dtype=dtype, device="cuda")
            dist.reduce_scatter(part, list(whole.chunk(world)))
            wanted = sum(made(source + rank, count, dtype).to(torch.int64) for source in range(world))
            assert torch.equal(part.cpu(), wanted.to(dtype)), (dtype, count)
            value = made(rank, count, dtype).cuda()
            dist.broadcast(value, world - 1)
            assert torch.equal(value.cpu(), made(world - 1, count, dtype))
    dist.barrier()


@in_group
def order(rank, world):
    """The operation comes after what its stream has to do, and before what comes behind its wait()."""
    dist.all_reduce(torch.ones(1).cuda())
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for stream in streams:
        with torch.cuda.stream(stream):
            for step in range(20):
                value = torch.zeros(100_000, device="cuda")
                torch.cuda._sleep(20_000_000)
                value.fill_(step + rank)
                work = dist.all_reduce(value, async_op=True)
                if step == 0:
                    assert not work.is_completed()
                work.wait()
                value.add_(1)
                wanted = sum(step + r for r in range(world)) + 1
                assert (value == wanted).all().item(), (step, value[:3].tolist())
    assert dist.all_reduce(value, async_op=True).wait(timedelta(seconds=60))


@in_group
def graphs(rank, world):
    value = torch.full((100_000,), 1.0, device="cuda")
    dist.all_reduce(torch.ones(1, device="cuda"))  # the ranks have joined
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(value)
    for replay in range(3):
        value.fill_(rank + replay)
        graph.replay()
        assert (value == sum(r + replay for r in range(world))).all().item(), replay


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.Tanh(), torch.nn.Linear(300, 10)).double()


def trained(model, rank, group):
    model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(10):
        inputs = torch.randn(16, 40, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model(inputs.to(next(model.parameters()).device)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])


@in_group
def training(rank, world):
    gloo = dist.new_group(backend="gloo")
    ours, theirs = trained(network().cuda(), rank, None), trained(network(), rank, gloo)
    return (ours - theirs).abs().max().item()


class OnTheDevice(unittest.TestCase):
    def test_collectives_are_those_of_the_cpu(self):
        for world in (1, 2, 4):
            fabric_test.run_ranks(collectives, world, fabric_test.store_path())

    def test_streams_wait(self):
        fabric_test.run_ranks(order, 2, fabric_test.store_path())

    def test_a_graph_is_replayed(self):
        fabric_test.run_ranks(graphs, 2, fabric_test.store_path())

    def test_a_training_is_that_of_the_cpu(self):
        for apart in fabric_test.run_ranks(training, 2, fabric_test.store_path()):
            self.assertLess(apart, 1e-9)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip(pool_bytes=2 << 30):
        os.environ["FABRIC_ARENA_BYTES"] = "512M"
        fabric_test.main()
