"""Asynchronous work, messages, subgroups, objects, DETAIL, failures: what DDP and people rely on."""

import datetime
import os
import signal
import sys
import time
import unittest
from datetime import timedelta

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    fabric_test.skip(error)


def in_group(function, **options):
    def in_rank(rank, world, path, *arguments):
        with fabric_test.process_group("fabricshm", path, rank, world, **options):
            return function(rank, world, *arguments)

    return in_rank


@in_group
def futures(rank, world):
    total = sum(range(1, world + 1))
    for count in (1, 1_000_000):
        value = torch.full((count,), float(rank + 1))
        future = dist.all_reduce(value, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        result = doubled.wait()
        assert (result == 2 * total).all()
        work = dist.all_reduce(torch.ones(count), async_op=True)
        while not work.is_completed():  # polling alone has to bring it to its end
            time.sleep(0)
        assert work.is_success() and work.wait()
        assert work.result()[0][0] == world


@in_group
def order(rank, world):
    values = [torch.full((1 << (i % 18),), float(i + rank)) for i in range(60)]
    works = [dist.all_reduce(value, async_op=True) for value in values]
    for work in reversed(works):  # the last first: waiting runs what is before it
        work.wait()
    for i, value in enumerate(values):
        assert (value == sum(i + r for r in range(world))).all()


@in_group
def crossing(rank, world):
    # Rank 0 starts a collective and then sends what rank 1 needs before it joins the collective.
    value = torch.ones(1)
    if rank == 0:
        work = dist.all_reduce(value, async_op=True)
        dist.send(torch.ones(3), 1)
        work.wait()
    else:
        dist.recv(torch.zeros(3), 0)
        dist.all_reduce(value)
    assert value.item() == world


@in_group
def messages(rank, world):
    right, left = (rank + 1) % world, (rank - 1) % world
    for count in (0, 1, 100_000):
        out = torch.empty(count, dtype=torch.int32)
        receiving = dist.irecv(out, left, tag=3)
        sending = dist.isend(torch.full((count,), rank, dtype=torch.int32), right, tag=3)
        receiving.wait()
        sending.wait()
        assert (out == left).all()
    out = torch.zeros(4, 6).t()
    dist.barrier()
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.irecv, out, left), dist.P2POp(dist.isend, torch.ones(6, 4) * rank, right)])
    for work in works:
        work.wait()
    assert (out == left).all(), out
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            value = torch.zeros(2)
            source = dist.recv(value)
            assert (value == source).all()
            seen.add(source)
        assert seen == set(range(1, world))
    else:
        dist.send(torch.full((2,), float(rank)), 0)
    # Tags are kept apart even when they come in the other order.
    if rank == 0:
        for tag in (1, 2):
            dist.send(torch.tensor([float(tag)]), 1, tag=tag)
    elif rank == 1:
        second, first = torch.zeros(1), torch.zeros(1)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        assert (first.item(), second.item()) == (1, 2)
    dist.barrier()


@in_group
def coalesced(rank, world):
    """torch 2 for collectives and messages of a device: one work ends all that was called within."""
    right, left = (rank + 1) % world, (rank - 1) % world
    value, out, summed = torch.full((3,), float(rank)), torch.zeros(3), torch.ones(4)
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        dist.irecv(out, left)
        dist.isend(value, right)
        dist.barrier(async_op=True)
    works.wait()
    assert (out == left).all(), out
    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([summed])
    work = group._end_coalescing(torch.device("cpu"))
    future = work.get_future().then(lambda done: [2 * tensor for tensor in done.value()])
    assert (future.wait()[0] == 2 * world).all() and (summed == world).all()
    assert work.is_completed()
    try:
        group._end_coalescing(torch.device("cpu"))
    except RuntimeError as error:
        assert "no operations of this process group are coalesced" in str(error), error
    else:
        raise AssertionError("an end without a beginning was not refused")


@in_group
def gathered_into_one(rank, world):
    value = torch.arange(6).reshape(2, 3) + 10 * rank
    whole = torch.zeros(world, 2, 3, dtype=torch.int64)
    dist.gather_single(value, whole if rank == 1 else None, dst=1)
    expected = torch.stack([torch.arange(6).reshape(2, 3) + 10 * r for r in range(world)])
    assert torch.equal(whole, expected if rank == 1 else torch.zeros_like(whole)), whole


@in_group
def limited(rank, world):
    """The time limit of later operations."""
    dist.barrier()
    dist.set_timeout(datetime.timedelta(milliseconds=200))
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:  # alive, and elsewhere
        store.wait(["seen"])
        return
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        assert "timeout" in str(error).lower(), error
    else:
        raise AssertionError("waited for nothing")
    finally:
        store.set("seen", "")


@in_group
def objects(rank, world):
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (1000 * rank)})
    assert [entry["rank"] for entry in gathered] == list(range(world))
    shared = [("seed", 42), None] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    assert shared[0] == ("seed", 42)
    received = [None]
    dist.scatter_object_list(received, [f"for {r}" for r in range(world)] if rank == 0 else None)
    assert received == [f"for {rank}"]
    collected = [None] * world if rank == 0 else None
    dist.gather_object(rank * 2, collected)
    if rank == 0:
        assert collected == [2 * r for r in range(world)]


@in_group
def subgroups(rank, world):
    assert dist.get_backend() == "fabricshm"
    evens = dist.new_group(list(range(0, world, 2)))
    odds = dist.new_group(list(range(1, world, 2)))
    mine = odds if rank % 2 else evens
    for _ in range(3):
        value = torch.full((1000,), float(rank))
        dist.all_reduce(value, group=mine)
        assert (value == sum(range(rank % 2, world, 2))).all()
        dist.all_reduce(value)
    for members in ([0, 3], [1, 2], [0, 1, 2]):
        group = dist.new_group(members)
        if rank in members:
            value = torch.ones(1)
            dist.all_reduce(value, group=group)
            assert value.item() == len(members)
    dist.destroy_process_group(mine)
    dist.barrier()


def again(rank, world, path):
    import fabricshm.torch  # noqa: F401

    store = dist.FileStore(path, world)
    for attempt in range(4):
        dist.init_process_group("fabricshm", store=dist.PrefixStore(str(attempt), store),
                                rank=rank, world_size=world)
        value = torch.ones(10)
        dist.all_reduce(value)
        assert (value == world).all()
        dist.destroy_process_group()


def detail(rank, world, path):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    with fabric_test.process_group("fabricshm", path, rank, world, timeout=30):
        value = torch.ones(5)
        dist.all_reduce(value)
        assert (value == world).all()
        layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        layer(torch.ones(3, 4)).sum().backward()
        try:
            if rank == 0:
                dist.all_reduce(torch.ones(3))
            else:
                dist.broadcast(torch.ones(3), 1)
        except RuntimeError as error:
            return str(error)
        return "nothing noticed"


@in_group
def monitored(rank, world, gate, opener):
    dist.monitored_barrier()
    store = dist.distributed_c10d._get_default_store()
    keys = store.num_keys()
    dist.barrier()
    if rank == 1:
        os.read(gate, 1)  # it would add to the store, too, by leaving
        return ""
    try:
        # The time counts for the missing rank alone: the other one has reported itself to the store.
        while rank == 0 and store.num_keys() == keys:
            time.sleep(0)
        dist.monitored_barrier(timeout=timedelta(seconds=0.4), wait_all_ranks=True)
    except RuntimeError as error:
        return str(error)
    finally:
        if rank == 0:
            os.write(opener, b"x")
    return "no error"


def dies(rank, world, path):
    with fabric_test.process_group("fabricshm", path, rank, world, timeout=60):
        value = torch.ones(100_000)
        dist.all_reduce(value)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        try:
            for _ in range(1000):
                dist.all_reduce(value)
        except RuntimeError as error:
            return str(error), time.monotonic() - started
        return "no error", 0


def stays_away(rank, world, path, gate, opener):
    # The ranks may be slow to arrive; only the operation is given a short time.
    with fabric_test.process_group("fabricshm", path, rank, world, timeout=60):
        if rank == 1:
            return os.read(gate, 1)
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=1)
        try:
            dist.distributed_c10d._get_default_group().allreduce([torch.ones(1)], options).wait()
        except RuntimeError as error:
            return str(error)
        finally:
            os.write(opener, b"x")


def mismatch(rank, world, path):
    with fabric_test.process_group("fabricshm", path, rank, world, timeout=30):
        try:
            if rank == 0:
                dist.all_reduce(torch.ones(3))
            else:
                dist.barrier()
        except RuntimeError as error:
            return str(error)
        return "no error"


def no_daemon(rank, world, path):
    os.environ["FABRIC_SOCKET"] = "/tmp/no-daemon-here.sock"
    try:
        with fabric_test.process_group("fabricshm", path, rank, world, timeout=30):
            return "no error"
    except RuntimeError as error:
        return str(error)


class Work(unittest.TestCase):
    def run_in(self, worlds, function, *arguments):
        results = []
        for world in worlds:
            with self.subTest(world=world):
                path = fabric_test.store_path()
                results = fabric_test.run_ranks(function, world, path, *arguments)
        return results

    def test_futures_complete_and_call_back(self):
        self.run_in((1, 2), futures)

    def test_work_may_be_waited_for_in_any_order(self):
        self.run_in((2, 3), order)

    def test_an_asynchronous_collective_never_blocks_its_caller(self):
        self.run_in((2,), crossing)

    def test_messages_by_tag_from_anybody_and_in_batches(self):
        self.run_in((2, 3), messages)

    @unittest.skipIf(torch.__version__.startswith("1."), "torch 2 calls it")
    def test_coalesced_operations_end_with_one_work(self):
        self.run_in((2, 3), coalesced)

    @unittest.skipUnless(hasattr(dist, "gather_single"), "torch 2.14 has it")
    def test_a_gather_into_one_tensor(self):
        self.run_in((2, 3), gathered_into_one)

    @unittest.skipUnless(hasattr(dist, "set_timeout"), "torch 2.14 has it")
    def test_a_new_timeout_is_that_of_what_follows(self):
        self.run_in((2,), limited)

    def test_object_collectives(self):
        self.run_in((1, 3), objects)

    def test_subgroups_share_the_arena(self):
        self.run_in((4,), subgroups)

    def test_groups_may_be_made_again(self):
        self.run_in((2,), again)

    def test_detail_names_a_difference_between_the_ranks(self):
        for text in self.run_in((2,), detail):
            self.assertIn("mismatch", text.lower())

    def test_a_monitored_barrier_names_who_is_missing(self):
        results = self.run_in((3,), monitored, *os.pipe())
        self.assertIn("Rank 1 failed to pass monitoredBarrier in 400 ms", results[0])
        self.assertIn("rank 0 says which is missing", results[2])


class Failures(unittest.TestCase):
    def test_a_dead_peer_raises_and_is_named(self):
        ranks = fabric_test.Ranks(dies, 3, fabric_test.store_path())
        results = ranks.results(dead=(1,))
        for text, seconds in (results[0], results[2]):
            self.assertIn("rank 1 died", text)
            self.assertLess(seconds, 20)

    def test_a_rank_that_stays_away_is_a_timeout(self):
        gate, opener = os.pipe()
        results = fabric_test.run_ranks(stays_away, 2, fabric_test.store_path(), gate, opener)
        self.assertIn("timeout passed", results[0])

    def test_different_operations_are_an_error_on_every_rank(self):
        for text in fabric_test.run_ranks(mismatch, 2, fabric_test.store_path()):
            self.assertIn("another operation", text)

    def test_without_a_daemon_every_rank_says_so(self):
        for text in fabric_test.run_ranks(no_daemon, 2, fabric_test.store_path()):
            self.assertIn("no-daemon-here", text)
            self.assertNotIn("frame #", text)
            self.assertIn("fabricrun", text)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
