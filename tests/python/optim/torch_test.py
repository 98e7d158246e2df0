"""Shared optimisers against PyTorch's own, which get the mean of the same gradients."""

import os
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
except ImportError as error:
    fabric_test.skip(error)

import fabricshm  # noqa: E402
from fabricshm import optim  # noqa: E402

STEPS = 25


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 33), torch.nn.ReLU(), torch.nn.BatchNorm1d(33), torch.nn.Linear(33, 5))


def batch_of(rank, step):
    random = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(8, 20, generator=random), torch.randint(0, 5, (8,), generator=random)


def loss_of(model, rank, step):
    inputs, labels = batch_of(rank, step)
    return torch.nn.functional.cross_entropy(model(inputs), labels)


def reference(make, ranks, steps, parts=None, start=None):
    """The same training in one process: gradients of each rank, their mean, PyTorch's step."""
    model = start or network()
    optimiser = make(model)
    for step in range(steps):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for rank in ranks:
            for p in model.parameters():
                p.grad = None
            loss_of(model, rank, step).backward()
            for total, p in zip(sums, model.parameters()):
                total += p.grad
        for total, p in zip(sums, model.parameters()):
            p.grad = total / len(ranks)
        optimiser.step()
    return model, optimiser


def compare(model, wanted, tolerance=2e-5):
    for (name, got), want in zip(model.named_parameters(), wanted.parameters()):
        torch.testing.assert_close(got.data, want.data, atol=tolerance, rtol=1e-4, msg=name)


PAIRS = {
    "SGD": (dict(lr=0.1), torch.optim.SGD),
    "SGD with momentum": (dict(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01), torch.optim.SGD),
    "Nesterov": (dict(lr=0.1, momentum=0.9, nesterov=True), torch.optim.SGD),
    "Adam": (dict(lr=0.01, weight_decay=0.1), torch.optim.Adam),
    "AdamW": (dict(lr=0.01, betas=(0.8, 0.99)), torch.optim.AdamW),
    "maximize": (dict(lr=0.01, maximize=True), torch.optim.AdamW),
}


def like_pytorch(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        for index, (name, (options, theirs)) in enumerate(PAIRS.items()):
            model = network()
            ours = getattr(optim, theirs.__name__)
            made = ours(model.parameters(), group=group, name=f"set{index}", **options)
            schedule = torch.optim.lr_scheduler.StepLR(made, 10, 0.5)
            for step in range(STEPS):
                made.zero_grad(set_to_none=step % 2 == 0)
                made.step(lambda: loss_of(model, rank, step).backward())
                schedule.step()
            halves = lambda m: _Scheduled(theirs(m.parameters(), **options))  # noqa: E731
            wanted, _ = reference(halves, range(world), STEPS)
            try:
                compare(model, wanted)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


class _Scheduled:
    def __init__(self, optimiser):
        self.optimiser = optimiser
        self.schedule = torch.optim.lr_scheduler.StepLR(optimiser, 10, 0.5)

    def step(self):
        self.optimiser.step()
        self.schedule.step()


def groups_and_state(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        def split(model):
            return [{"params": list(model[0].parameters()), "lr": 0.02},
                    {"params": [*model[2].parameters(), *model[3].parameters()], "weight_decay": 0.0}]

        model = network()
        made = optim.AdamW(split(model), lr=0.01, group=group, name="first")
        for step in range(10):
            made.zero_grad()
            loss_of(model, rank, step).backward()
            made.step()
        make = lambda m: torch.optim.AdamW(split(m), lr=0.01)  # noqa: E731
        wanted, theirs = reference(make, range(world), 10)
        compare(model, wanted)

        # State goes from here to PyTorch's optimiser, and from there to another set.
        again = network()
        again.load_state_dict(model.state_dict())
        plain = torch.optim.AdamW(split(again), lr=0.01)
        plain.load_state_dict(made.state_dict())
        other = network()
        other.load_state_dict(model.state_dict())
        restored = optim.AdamW(split(other), lr=0.01, group=group, name="second")
        restored.load_state_dict(plain.state_dict())
        for step in range(10, 14):
            for optimiser, each in ((made, model), (restored, other)):
                optimiser.zero_grad()
                loss_of(each, rank, step).backward()
                optimiser.step()
        for got, want in zip(other.parameters(), model.parameters()):
            assert torch.equal(got, want)

        # PyTorch's SGD has a momentum, and no count of steps.
        theirs_model, ours_model = network(), network()
        theirs = torch.optim.SGD(theirs_model.parameters(), lr=0.1, momentum=0.9)
        for step in range(5):
            theirs.zero_grad()
            loss_of(theirs_model, 0, step).backward()
            theirs.step()
        ours_model.load_state_dict(theirs_model.state_dict())
        ours = optim.SGD(ours_model.parameters(), lr=0.1, momentum=0.9, group=group, name="third")
        ours.load_state_dict(theirs.state_dict())
        for step in range(5, 8):
            for optimiser, each in ((theirs, theirs_model), (ours, ours_model)):
                optimiser.zero_grad()
                loss_of(each, 0, step).backward()
                optimiser.step()
        compare(ours_model, theirs_model)


def shared_module(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (arena, group):
        torch.manual_seed(rank)  # ranks that begin apart: rank 0's values are everyone's
        model = torch.nn.Linear(10, 3)
        optim.share(model, group, "max_adabelief")
        for tensor in model.parameters():
            assert tensor.detach().numpy() in arena and tensor.grad.numpy() in arena
        first = [group.all_gather(p.detach().numpy().copy()) for p in model.parameters()]
        for values in first:
            assert (values == values[0]).all()
        made = optim.MaxAdaBelief(model.parameters(), lr=0.01)
        for step in range(5):
            made.zero_grad()
            (model(torch.ones(4, 10)) * (rank + 1)).sum().backward()
            made.step()
        assert made.report.step == 5
        try:
            optim.AdamW(model.parameters())
            raise AssertionError("another optimiser than the module was shared for")
        except ValueError as error:
            assert "max_adabelief" in str(error)
        try:
            optim.AdamW(torch.nn.Linear(2, 2).parameters())
            raise AssertionError("no group")
        except TypeError as error:
            assert "group" in str(error)


def half_precision(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model = torch.nn.Linear(64, 8).to(torch.bfloat16)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(1)
        made = optim.SGD(model.parameters(), lr=2.0**-12, group=group)
        for _ in range(64):
            made.zero_grad()
            for p in model.parameters():
                p.grad.fill_(1)
            made.step()
        # Each step is too small for bfloat16; the f32 parameters add them up.
        for p in model.parameters():
            assert p.dtype == torch.bfloat16 and torch.equal(p, torch.full_like(p, 1 - 2.0**-6)), p


def survive(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model = network()
        made = optim.AdamW(model.parameters(), lr=0.01, group=group, survive=True)
        for step in range(12):
            made.zero_grad()
            loss_of(model, rank, step).backward()
            if rank == 2 and step == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            made.step()
        assert made.group.world == world - 1 and made.report.step == 12
        values = [p.detach().numpy().copy() for p in model.parameters()]
        for mine in values:
            theirs = made.group.all_gather(mine)
            assert (theirs == theirs[0]).all()


def to_disk_and_back(rank, world, folder):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Linear(33, 5)).to(torch.bfloat16)
        optim.share(model, group, "adamw")
        made = optim.AdamW(model.parameters(), lr=0.01)

        def train(steps):
            for step in steps:
                made.zero_grad()
                inputs, labels = batch_of(rank, step)
                torch.nn.functional.cross_entropy(model(inputs.bfloat16()).float(), labels).backward()
                made.step()
            group.barrier()
            values = [p.detach().clone() for p in model.parameters()]
            group.barrier()
            return values

        before = train(range(3))
        snapshot = made.snapshot(folder)
        after = train(range(3, 6))
        report = snapshot.wait()
        assert report.step == 3 and (rank > 0 or report.bytes > 0)  # so few bytes may be one rank's
        assert made.restore(fabricshm.latest_snapshot(folder)) == 3
        for p, value in zip(model.parameters(), before):
            assert torch.equal(p, value)
            assert made.state[p]["step"] == 3
        group.barrier()
        # The state is back, too: the same gradients lead to the same bits again.
        for value, again in zip(after, train(range(3, 6))):
            assert torch.equal(value, again)


def without_snapshots(rank, world, folder):
    with fabric_test.group_of(rank, world) as (_, group):
        for options in (dict(overlap=True), dict(mode="moment")):
            name = next(iter(options))
            made = optim.MaxAdaBelief(torch.nn.Linear(3, 2).parameters(), group=group, name=name, **options)
            for call in (lambda: made.snapshot(folder), lambda: made.restore(folder)):
                try:
                    call()
                    raise AssertionError("not one set that all ranks share")
                except ValueError as error:
                    assert "state_dict" in str(error)


def refused(call, word):
    try:
        call()
        raise AssertionError(f"not refused: {word}")
    except ValueError as error:
        assert word in str(error), error


def frozen(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        for overlap in (False, True):
            model = network()
            model[0].requires_grad_(False)
            kept = [p.detach().clone() for p in model[0].parameters()]
            made = optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1, group=group, overlap=overlap,
                               name=f"frozen{overlap}")  # fmt: skip
            for step in range(4):
                made.zero_grad()
                loss_of(model, rank, step).backward()
                made.step()
            for p, before in zip(model[0].parameters(), kept):
                assert torch.equal(p, before)
            model[3].requires_grad_(False)
            refused(made.step, "frozen after")
            model.requires_grad_(True)
            refused(made.step, "not any more")
        refused(lambda: optim.SGD(network().requires_grad_(False).parameters(), lr=1.0, group=group), "requires_grad")


def changed_too_late(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model = network()
        made = optim.SGD(model.parameters(), lr=0.1, group=group, overlap=True)
        loss_of(model, rank, 0).backward()
        made.param_groups[0]["lr"] = 0.0
        refused(made.step, "hyperparameter")
        made.param_groups[0]["lr"] = 0.1
        made.step()
        made.zero_grad()
        loss_of(model, rank, 1).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        refused(made.step, "gradient was changed")
        made.step()
        group.barrier()
        made.zero_grad()
        loss_of(model, rank, 2).backward()
        made.step()
        assert made.report.step == 3


def twice_in_one_process(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        first = optim.SGD(network().parameters(), lr=0.1, group=group)
        try:
            optim.SGD(network().parameters(), lr=0.1, group=group)
            raise AssertionError("two networks with one memory")
        except fabricshm.FabricError as error:
            assert error.name == "FABRICSHM_EBUSY" and "another name" in str(error), error
        loss_of(network(), rank, 0)
        first.step()


def in_a_child(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        made = optim.SGD(network().parameters(), lr=0.1, group=group, overlap=True)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                made.step()
            except fabricshm.ClosedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        made.step()


class TorchTest(unittest.TestCase):
    def test_frozen_parameters_stay_and_may_not_change_sides(self):
        fabric_test.run_ranks(frozen, 2)

    def test_what_is_changed_after_it_was_handed_over_is_refused(self):
        fabric_test.run_ranks(changed_too_late, 2)

    def test_two_optimisers_of_one_name_do_not_share_memory(self):
        fabric_test.run_ranks(twice_in_one_process, 2)

    def test_an_overlapping_optimiser_is_closed_in_a_child(self):
        fabric_test.run_ranks(in_a_child, 2)

    def test_a_shared_module_goes_to_disk_and_back(self):
        with tempfile.TemporaryDirectory() as folder:
            fabric_test.run_ranks(to_disk_and_back, 2, folder)

    def test_what_is_not_one_shared_set_says_that_it_has_no_snapshots(self):
        with tempfile.TemporaryDirectory() as folder:
            fabric_test.run_ranks(without_snapshots, 2, folder)

    def test_each_optimiser_does_what_pytorchs_does(self):
        for world in (1, 2):
            with self.subTest(world=world):
                fabric_test.run_ranks(like_pytorch, world)

    def test_groups_of_parameters_and_state_dicts(self):
        fabric_test.run_ranks(groups_and_state, 2)

    def test_share_moves_a_module_with_rank_0s_values(self):
        fabric_test.run_ranks(shared_module, 2)

    def test_bfloat16_has_parameters_in_float32_behind_it(self):
        fabric_test.run_ranks(half_precision, 2)

    def test_survivors_train_on(self):
        fabric_test.Ranks(survive, 3).results(dead=(2,))


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
