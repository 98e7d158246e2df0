"""Steps of single buckets while backward goes on: what they do, when, and what a death leaves."""

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

import fabricshm  # noqa: E402, F401
from fabricshm import optim  # noqa: E402

ONE_EACH = 1  # bucket_bytes, so that each tensor has a bucket
LR = 0.01


class Gate(torch.autograd.Function):
    """Calls a function in backward, once all layers behind it are through."""

    @staticmethod
    def forward(ctx, inputs, call):
        ctx.call = call
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.call()
        return gradient, None


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(12, 16)
        self.second = torch.nn.Linear(16, 16)
        self.third = torch.nn.Linear(16, 4)
        self.unused = torch.nn.Parameter(torch.ones(7))  # without a gradient
        self.gate = lambda: None

    def forward(self, inputs):
        hidden = Gate.apply(torch.relu(self.first(inputs)), lambda: self.gate())
        return self.third(torch.relu(self.second(hidden)))


def loss_of(model, rank, step):
    random = torch.Generator().manual_seed(1000 * rank + step)
    inputs, labels = torch.randn(6, 12, generator=random), torch.randint(0, 4, (6,), generator=random)
    return torch.nn.functional.cross_entropy(model(inputs), labels)


def reference(model, optimiser, ranks_of, step):
    """One step in this process: of tensor i the mean gradient of the ranks in ranks_of(i), zero where there is none."""
    tensors = list(model.parameters())
    found = {}
    for rank in set().union(*(ranks_of(i) for i in range(len(tensors)))):
        optimiser.zero_grad(set_to_none=True)
        loss_of(model, rank, step).backward()
        found[rank] = [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in tensors]
    for i, tensor in enumerate(tensors):
        ranks = sorted(ranks_of(i))
        tensor.grad = sum(found[rank][i] for rank in ranks) / len(ranks)
    optimiser.step()


def compare(model, wanted):
    for (name, got), want in zip(model.named_parameters(), wanted.parameters()):
        torch.testing.assert_close(got.data, want.data, atol=2e-5, rtol=1e-4, msg=name)


def groups_of(model):
    return [{"params": [*model.first.parameters(), model.unused], "lr": 2 * LR},
            {"params": [*model.second.parameters(), *model.third.parameters()], "weight_decay": 0.0}]


def like_one_set(rank, world, bucket_bytes):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model, plain, alone = Network(), Network(), Network()
        options = dict(lr=LR, weight_decay=0.1)
        made = optim.AdamW(groups_of(model), group=group, name="buckets", overlap=True,
                           bucket_bytes=bucket_bytes, **options)
        whole = optim.AdamW(groups_of(plain), group=group, name="whole", **options)
        theirs = torch.optim.AdamW(groups_of(alone), **options)
        schedules = [torch.optim.lr_scheduler.StepLR(each, 4, 0.5) for each in (made, whole, theirs)]
        for step in range(10):
            for each, of in ((made, model), (whole, plain)):
                each.zero_grad(set_to_none=step % 2 == 0)
                loss_of(of, rank, step).backward()
                each.step()
                assert each.exposed_ms > 0
            reference(alone, theirs, lambda _: range(world), step)
            for schedule in schedules:
                schedule.step()
            for one, other in zip(model.parameters(), plain.parameters()):
                assert torch.equal(one, other)
            compare(model, alone)
        assert made.report.step == 10 and made.state_dict()["state"][0]["step"] == 10
        again = Network()
        again.load_state_dict(model.state_dict())
        restored = optim.AdamW(groups_of(again), group=group, name="restored", overlap=True,
                               bucket_bytes=bucket_bytes, **options)
        restored.load_state_dict(made.state_dict())
        for each, of in ((made, model), (restored, again)):
            each.zero_grad()
            each.step(lambda: loss_of(of, rank, 10).backward())
        for one, other in zip(model.parameters(), again.parameters()):
            assert torch.equal(one, other)


def while_backward_goes_on(rank, world):
    """The first layer's gradient comes only after the last layer was stepped on all ranks."""
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model = Network()
        model.unused.requires_grad_(False)
        tensors = [p for p in model.parameters() if p.requires_grad]
        made = optim.AdamW(tensors, lr=LR, group=group, overlap=True, bucket_bytes=ONE_EACH)
        seen = []
        for step in range(5):
            before = [p.detach().clone() for p in tensors]

            def gate():
                while made.shared._buckets[1].steps <= step:
                    os.sched_yield()
                seen.append([torch.equal(p, old) for p, old in zip(tensors, before)])

            model.gate = gate
            made.zero_grad()
            loss_of(model, rank, step).backward()
            made.step()
            # The two tensors of the last layer have moved by then, and those of the first have not.
            assert seen[-1][-2:] == [False, False] and seen[-1][:2] == [True, True], seen[-1]
            assert not any(torch.equal(p, old) for p, old in zip(tensors, before))


def refusals(rank, world):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model = Network()
        make = lambda **options: optim.MaxAdaBelief(  # noqa: E731
            model.parameters(), LR, group=group, overlap=True, **options)
        made = make(bucket_bytes=ONE_EACH)
        loss_of(model, rank, 0).backward()
        for kind, words, call in (
            (RuntimeError, "one backward", lambda: loss_of(model, rank, 0).backward()),
            (RuntimeError, "step() first", made.zero_grad),
            (ValueError, "no weight", lambda: made.step(weight=0.5)),
            (ValueError, "clipped", lambda: make(clip_norm=1.0)),
            (ValueError, "clipped", lambda: make(skip_nonfinite=True)),
            (ValueError, "mode", lambda: make(mode="moment")),
        ):
            try:
                call()
                raise AssertionError(words)
            except kind as error:
                assert words in str(error), error
        # The refused backward had added to gradients before its hooks were asked.
        try:
            made.step()
            raise AssertionError("gradients of two backwards were taken for one")
        except ValueError as error:
            assert "gradient was changed" in str(error), error
        made.step()
        assert made.shared.steps == 1


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


DEATH = 4  # the step it happens in
# Where the last rank dies: from which tensor on its gradients still count, in the order of the parameters (unused, first,
# second, third: the buckets go from the last to the first).
PLACES = {"before": 7, "in backward": 3, "between buckets": 5, "after all": 0}


def survive(rank, world, place):
    torch.set_num_threads(1)
    with fabric_test.group_of(rank, world) as (_, group):
        model, alone = Network(), Network()
        made = optim.AdamW(model.parameters(), lr=LR, group=group, survive=True, overlap=True, bucket_bytes=ONE_EACH)
        theirs = torch.optim.AdamW(alone.parameters(), lr=LR)
        buckets = made.shared._buckets
        for step in range(8):
            if rank == world - 1 and step == DEATH:
                arrange(place, model, buckets, step)
            made.zero_grad()
            loss_of(model, rank, step).backward()
            made.step()
            if rank == world - 1 and step == DEATH:
                die()  # after all
            counted = PLACES[place] if step == DEATH else 7
            all_ranks, rest = set(range(world)), set(range(world - 1))
            reference(alone, theirs,
                      lambda i: all_ranks if step < DEATH or (step == DEATH and i >= counted) else rest, step)  # fmt: skip
            compare(model, alone)
            assert [bucket.steps for bucket in buckets] == [step + 1] * len(buckets)
        assert made.group.world == world - 1


def arrange(place, model, buckets, step):
    """When it dies, no bucket has been stepped, or those of the last two layers, the last one, or all."""
    if place == "before":
        die()

    def gate():
        while buckets[3].steps <= step:
            os.sched_yield()
        die()

    if place == "in backward":
        model.gate = gate
    if place == "between buckets":
        buckets[2].set.step = die


class OverlapTest(unittest.TestCase):
    def test_buckets_do_what_one_set_does(self):
        for world, bucket_bytes in ((1, ONE_EACH), (2, ONE_EACH), (3, 1200), (2, 1 << 20)):
            with self.subTest(world=world, bucket_bytes=bucket_bytes):
                fabric_test.run_ranks(like_one_set, world, bucket_bytes)

    def test_the_last_layer_is_stepped_before_backward_has_come_to_the_first(self):
        fabric_test.run_ranks(while_backward_goes_on, 2)

    def test_what_cannot_be_overlapped_is_named(self):
        fabric_test.run_ranks(refusals, 1)

    def test_a_death_leaves_each_bucket_done_by_all_or_to_be_done_by_the_survivors(self):
        for place in PLACES:
            with self.subTest(place=place):
                fabric_test.Ranks(survive, 3, place).results(dead=(2,))


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
