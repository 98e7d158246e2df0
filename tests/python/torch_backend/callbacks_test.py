"""Callbacks of futures that call further operations, as PyTorch's PowerSGD hook does."""

import os
import sys
import threading
import unittest
from datetime import timedelta

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    fabric_test.skip(error)

BACKEND = "fabricshm"


def in_group(function, **options):
    def in_rank(rank, world, path, *arguments):
        torch.set_num_threads(1)
        with fabric_test.process_group(BACKEND, path, rank, world, **options):
            return function(rank, world, *arguments)

    return in_rank


def summed(value, **options):
    """The future of an all_reduce."""
    return dist.all_reduce(value, async_op=True, **options).get_future()


@in_group
def collective_inside(rank, world):
    for count in (1, 100_000):
        for wait in (lambda work: work.wait(), lambda work: work.get_future().wait()):
            value, other = torch.ones(count), torch.full((count,), 2.0)

            def callback(done):
                wait(dist.all_reduce(other, async_op=True))
                return done.value()[0] + other

            result = summed(value).then(callback).wait()
            assert (result == 3 * world).all(), result


@in_group
def blocking_inside(rank, world):
    other = torch.ones(10)
    summed(torch.ones(10)).then(lambda done: dist.all_reduce(other)).wait()
    assert (other == world).all()


@in_group
def nested(rank, world):
    # Each level waits for the callback of the next one.
    def level(depth):
        future = summed(torch.ones(5))
        if depth == 0:
            return future.wait()[0]
        return future.then(lambda done: done.value()[0] + level(depth - 1)).wait()

    for depth in (2, 5):
        assert (level(depth) == world * (depth + 1)).all()
    # And a chain, as a hook makes it: each link has an operation of its own.
    future = summed(torch.ones(3))
    for _ in range(4):
        future = future.then(lambda done: [summed(done.value()[0] / world).wait()[0] + 1])
    assert (future.wait()[0] == world + 4).all(), future.value()


@in_group
def order(rank, world):
    """The program goes on with collectives of other sizes while callbacks run at different times."""
    for turn in range(30):
        results = []
        for step in range(4):
            value = torch.full((10 + step,), 1.0)

            def callback(done, step=step):
                if (rank + step + turn) % world == 0:  # other ranks are through much earlier
                    for _ in range(20):
                        torch.ones(40, 40) @ torch.ones(40, 40)
                inner = torch.full((200 + step,), float(step))
                dist.all_reduce(inner)
                last = summed(torch.full((300 + step,), 1.0)).wait()[0]
                return [done.value()[0].sum() + inner.sum() + last.sum()]

            results.append(summed(value).then(callback))
            between = torch.ones(1000 + step)
            dist.all_reduce(between)
            assert (between == world).all()
        for step, result in enumerate(results):
            expected = world * (10 + step + step * (200 + step) + 300 + step)
            assert result.wait()[0] == expected, (turn, step, result.value(), expected)


@in_group
def late_futures(rank, world):
    """Futures that are asked for when all is submitted: their callbacks come behind all of it."""
    for turn in range(30):
        works = [dist.all_reduce(torch.ones(10 + i), async_op=True) for i in range(4)]
        if (rank + turn) % world == 0:
            works[-1].wait()  # here all callbacks run on the thread that attaches them
        results = [
            work.get_future().then(lambda done, i=i: [summed(torch.ones(50 + i)).wait()[0].sum()])
            for i, work in enumerate(works)]
        for i, result in enumerate(results):
            assert result.wait()[0] == world * (50 + i)


@in_group
def waits_for_later(rank, world):
    """A callback waits for what was called after its own operation."""
    def polled(work):
        while not work.is_completed():
            pass

    for wait in (lambda work: work.wait(), lambda work: work.get_future().wait(), polled):
        later, attached, program = [], threading.Event(), threading.get_ident()

        def callback(done):
            if threading.get_ident() != program:  # attached before its operation ended
                attached.wait()
                wait(later[0])
            return done.value()

        future = summed(torch.ones(4)).then(callback)
        value = torch.ones(6)
        later.append(dist.all_reduce(value, async_op=True))
        attached.set()
        future.wait()
        later[0].wait()
        assert (value == world).all()


@in_group
def wait_includes_callbacks(rank, world):
    for count in (1, 1_000_000):
        for _ in range(20):
            seen = []
            work = dist.all_reduce(torch.ones(count), async_op=True)
            work.get_future().then(lambda done: seen.append(dist.all_reduce(torch.ones(3))))
            work.wait()
            assert len(seen) == 1


@in_group
def failures(rank, world):
    def broken(done):
        dist.all_reduce(torch.ones(2))
        raise ValueError("of this callback")

    try:
        summed(torch.ones(2)).then(broken).wait()
    except (ValueError, RuntimeError) as error:
        assert "of this callback" in str(error)
    else:
        raise AssertionError("no error")
    summed(torch.ones(2)).add_done_callback(broken)  # has nowhere to put it
    value = torch.ones(2)
    dist.all_reduce(value)
    assert (value == world).all()


@in_group
def groups(rank, world):
    """From one group to another and back, each in the callback of the one before."""
    other = dist.new_group()

    def in_first(done):
        return summed(torch.ones(2), group=other).then(in_other).wait()

    def in_other(done):
        return [summed(done.value()[0]).wait()[0]]

    future = summed(torch.ones(1)).then(in_first)
    after = torch.ones(7)
    dist.all_reduce(after)
    dist.all_reduce(after, group=other)
    assert (future.wait()[0] == world * world).all()
    assert (after == world * world).all()


@in_group
def messages(rank, world):
    right, left = (rank + 1) % world, (rank - 1) % world

    def pass_on(hops):
        out = torch.zeros(3)
        future = dist.irecv(out, left, tag=hops).get_future()
        sending = dist.isend(torch.full((3,), float(rank)), right, tag=hops)

        def received(done):
            assert (out == left).all()
            total = summed(torch.ones(1)).wait()[0].item()
            if hops:
                pass_on(hops - 1)
            return [torch.tensor(total)]

        assert future.then(received).wait()[0] == world
        sending.wait()

    pass_on(5)  # more callbacks that block than PyTorch's own pool has threads
    summed(torch.ones(1)).then(lambda done: pass_on(0)).wait()


def destroyed(rank, world, path):
    """Callbacks that run when the group goes end first."""
    with fabric_test.process_group(BACKEND, path, rank, world):
        group = dist.distributed_c10d._get_default_group()
        value = torch.ones(3)

        def callback(done):
            options = dist.AllreduceOptions()
            group_of_callback().allreduce([value], options).wait()
            return done.value()

        import weakref
        group_of_callback = weakref.ref(group)
        future = summed(torch.ones(3)).then(callback)
        del group
        dist.barrier()
    future.wait()
    return value[0].item() == world


def never_returns(rank, world, path):
    """What waits behind a callback that waits for the program itself is a timeout."""
    with fabric_test.process_group(BACKEND, path, rank, world, timeout=60) as c10d:
        short = c10d.new_group(timeout=timedelta(seconds=3))
        if rank != 0:
            # The first rank's sum cannot end before this one joins it. A callback that is added to a
            # future that has ended runs in the thread that adds it, which is not what is tested here.
            dist.barrier()
            summed(torch.ones(1), group=short).wait()
            dist.barrier()
            return None
        gate = threading.Event()
        future = summed(torch.ones(1), group=short).then(lambda done: [gate.wait(60)])
        dist.barrier()
        try:
            dist.all_reduce(torch.ones(1), group=short)
        except RuntimeError as error:
            return str(error)
        finally:
            gate.set()
            future.wait()
            dist.barrier()
        return "no error"


class Callbacks(unittest.TestCase):
    def run_in(self, worlds, function):
        for world in worlds:
            with self.subTest(world=world):
                fabric_test.run_ranks(function, world, fabric_test.store_path())

    def test_a_callback_waits_for_a_collective(self):
        self.run_in((2, 4), collective_inside)
        self.run_in((2, 4), blocking_inside)

    def test_callbacks_within_callbacks(self):
        self.run_in((1, 2, 4), nested)

    def test_collectives_of_callbacks_have_the_same_order_on_every_rank(self):
        self.run_in((2, 4), order)
        self.run_in((2, 3), late_futures)

    def test_a_callback_waits_for_what_was_called_after_its_operation(self):
        self.run_in((2,), waits_for_later)

    def test_waiting_for_work_includes_its_callbacks(self):
        self.run_in((2,), wait_includes_callbacks)

    def test_what_a_callback_raises_reaches_its_future_and_nothing_else(self):
        self.run_in((2, 4), failures)

    def test_callbacks_go_from_group_to_group(self):
        self.run_in((2,), groups)

    def test_callbacks_of_messages_call_collectives_and_the_other_way_round(self):
        self.run_in((2, 3), messages)

    def test_a_group_ends_after_its_callbacks(self):
        self.assertEqual(fabric_test.run_ranks(destroyed, 2, fabric_test.store_path()), [True] * 2)

    def test_a_callback_that_never_returns_is_a_timeout_of_what_waits_for_it(self):
        text = fabric_test.run_ranks(never_returns, 2, fabric_test.store_path())[0]
        self.assertIn("timeout passed: a callback", text)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
