"""A module on a CUDA device that all ranks step together, against the same module on the CPU. On the device of the
tests (mock_torch): nothing here ran on a GPU."""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
except ImportError as error:
    fabric_test.skip(error)

import mock_cuda  # noqa: E402

gpu = mock_cuda.load(sys.argv.pop(1))

import fabricshm  # noqa: E402
import fabricshm.torch as fabric  # noqa: E402
from fabricshm import optim  # noqa: E402

STEPS = 6
RULES = {
    "SGD": dict(lr=0.1),
    "SGD with momentum": dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": dict(lr=0.01, weight_decay=0.1),
    "AdamW": dict(lr=0.01, betas=(0.8, 0.99)),
    "AdaBelief": dict(lr=0.01),
    "MaxAdaBelief": dict(lr=0.01),
}


def network(dtype):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5)).to(dtype)


def train(model, optimiser, rank, steps=range(STEPS), **options):
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    for step in steps:
        random = torch.Generator().manual_seed(1000 * rank + step)
        inputs = torch.randn(8, 20, generator=random).to(dtype).to(device)
        optimiser.zero_grad(set_to_none=step % 2 == 0)
        model(inputs).square().mean().backward()
        optimiser.step(**options)


def row(tensors):
    return torch.cat([tensor.detach().cpu().flatten().float() for tensor in tensors])


def distance(model, other):
    return (row(model.parameters()) - row(other.parameters())).abs().max().item()


def like_the_cpu(rank, world):
    torch.set_num_threads(1)
    found = {}
    with fabric_test.group_of(rank, world) as (arena, group):
        for index, (name, options) in enumerate(RULES.items()):
            for dtype in (torch.float32, torch.bfloat16) if name == "AdamW" else (torch.float32,):
                make = getattr(optim, name.split()[0])
                ours, theirs = network(dtype).cuda(), network(dtype)
                if rank != 0:
                    for tensor in ours.parameters():
                        tensor.data.add_(1)  # rank 0's values are everyone's
                on_cpu = make(theirs.parameters(), group=group, name=f"set{index}{dtype}", **options)
                with arena.join(f"gpu{index}{dtype}", rank, world) as other:
                    on_gpu = make(ours.parameters(), group=other, **options)
                    weight = None if index % 2 else 0.5 / (rank + 1)
                    train(theirs, on_cpu, rank, weight=weight)
                    train(ours, on_gpu, rank, weight=weight)
                    assert on_gpu.report.step == STEPS
                    on_gpu.shared.wait()
                    assert distance(theirs, network(dtype)) > 0.01
                    found[name, str(dtype)] = distance(ours, theirs)
                    # State by the names of PyTorch, whole on every rank.
                    state = on_gpu.state_dict()["state"]
                    wanted = on_cpu.state_dict()["state"]
                    assert state.keys() == wanted.keys()
                    for key in wanted:
                        assert state[key].keys() == wanted[key].keys(), name
                        for each in wanted[key]:
                            assert torch.equal(row([state[key][each]]), row([wanted[key][each]])), (name, each)
    return found


def on_the_host(state):
    """As torch.load(map_location="cpu") gives it."""
    if isinstance(state, dict):
        return {key: on_the_host(value) for key, value in state.items()}
    return state.cpu().clone() if torch.is_tensor(state) else state


def shared_module(rank, world):
    """share() first, then an optimiser that finds the module; and a checkpoint that goes on elsewhere."""
    with fabric_test.group_of(rank, world) as (arena, group):
        model = fabric.share(network(torch.float32).cuda(), group, "adamw")
        optimiser = optim.AdamW(model.parameters(), lr=0.01)
        train(model, optimiser, rank, range(3))
        saved = {"model": on_the_host(model.state_dict()), "optimiser": on_the_host(optimiser.state_dict())}
        train(model, optimiser, rank, range(3, 6))
        with arena.join("again", rank, world) as other:
            resumed = network(torch.float32).cuda()
            goes_on = optim.AdamW(resumed.parameters(), lr=0.01, group=other)
            resumed.load_state_dict(saved["model"])
            goes_on.load_state_dict(saved["optimiser"])
            assert goes_on.shared.steps == 3
            train(resumed, goes_on, rank, range(3, 6))
            return distance(model, resumed)


def refusals(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        texts = []

        def refused(kind, function):
            try:
                function()
            except kind as error:
                texts.append(str(error))

        model = network(torch.float32).cuda()
        refused(ValueError, lambda: optim.SGD(model.parameters(), lr=1, group=group, overlap=True))
        refused(ValueError, lambda: optim.SGD(model.parameters(), lr=1, group=group, survive=True))
        refused(ValueError, lambda: optim.SGD([{"params": [p]} for p in model.parameters()], lr=1, group=group))
        model[0].cpu()
        refused(TypeError, lambda: optim.SGD(model.parameters(), lr=1, group=group))
        model.cuda()
        made = optim.SGD(model.parameters(), lr=1, group=group, clip_norm=1.0)
        refused(ValueError, made.step)
        refused(NotImplementedError, lambda: made.snapshot("/tmp/none"))
        return texts


def killed(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        model = network(torch.float32).cuda()
        optimiser = optim.SGD(model.parameters(), lr=0.1, group=group)
        train(model, optimiser, rank, range(2))
        optimiser.shared.wait()
        group.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            train(model, optimiser, rank, range(2, 4))
            optimiser.shared.wait()
        except fabricshm.PeerError as error:
            return error.rank


class OnADevice(unittest.TestCase):
    def test_steps_are_those_of_the_cpu_to_the_last_bit(self):
        for world in (1, 2, 3):
            for found in fabric_test.run_ranks(like_the_cpu, world):
                for what, apart in found.items():
                    self.assertEqual(apart, 0, (world, what))

    def test_a_shared_module_goes_on_from_a_checkpoint(self):
        self.assertEqual(fabric_test.run_ranks(shared_module, 2), [0.0, 0.0])

    def test_what_a_device_does_not_do_is_refused(self):
        for texts in fabric_test.run_ranks(refusals, 1):
            self.assertEqual(len(texts), 6, texts)

    def test_a_killed_rank_is_named(self):
        self.assertEqual(fabric_test.Ranks(killed, 2).results(dead=(1,))[0], 1)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        mock_cuda.skip_without_kernels()
        fabric_test.main()
