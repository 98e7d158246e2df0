"""How a process group ends with work outstanding: abort, shutdown, and destroy_process_group by itself."""

import os
import sys
import threading
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


def store():
    return dist.distributed_c10d._get_default_store()


def wait_for(*keys):
    store().wait(list(keys), timedelta(seconds=60))


def error_of(function):
    """The text of what it raises; "" when it raises nothing."""
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return ""


def end(how):
    """By torch where it has it, else by ours."""
    import fabricshm.torch as fabric

    group = dist.distributed_c10d._get_default_group()
    (getattr(group, how) if hasattr(group, how) else getattr(fabric, how))()


def ours(how):
    import fabricshm.torch as fabric

    getattr(fabric, how)()


LATER = (
    lambda: dist.all_reduce(torch.ones(3)),
    lambda: dist.barrier(),
    lambda: dist.send(torch.ones(1), 0 if dist.get_rank() else 1),
    lambda: dist.recv(torch.ones(1), 0 if dist.get_rank() else 1),
    lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)),
)


@in_group
def aborted(rank, world, call):
    """Rank 1 aborts while a sum waits for rank 2, which waits for a message of rank 1."""
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        store().set("begun", "")
        text = error_of(work.wait)
        assert not work.is_success() and work.is_completed()
        return [text, error_of(LATER[0])]
    if rank == 2:
        return [error_of(lambda: dist.recv(torch.ones(1), 1)), error_of(LATER[1])]
    called = []
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(5)]
    works[3].get_future().then(lambda done: called.append(str(done.value())))
    works.append(dist.irecv(torch.ones(1), 2))
    waiter = threading.Thread(target=lambda: called.append(error_of(works[0].wait)))
    waiter.start()
    wait_for("begun")
    call("abort")
    call("abort")
    waiter.join()
    texts = [error_of(work.wait) for work in works]
    texts += [error_of(later) for later in LATER]
    call("shutdown")
    return called + texts


@in_group
def aborted_in_callbacks(rank, world):
    """What a callback holds up fails, too, and the callback may be the one that aborts."""
    if rank == 0:
        wait_for("attached")  # or the callback of work that has ended runs where it is attached
        dist.all_reduce(torch.ones(3))
        return [error_of(LATER[0])]
    gate = threading.Event()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.get_future().then(lambda done: (gate.wait(60), ours("abort")))
    store().set("attached", "")
    held = dist.all_reduce(torch.ones(3), async_op=True)
    gate.set()
    return [error_of(held.wait)]


@in_group
def shut_down(rank, world, call):
    """What was called before is done on all ranks, and nothing after it."""
    values = [torch.full((50_000,), float(rank)) for _ in range(20)]
    works = [dist.all_reduce(value, async_op=True) for value in values]
    seen = []
    works[-1].get_future().then(lambda done: seen.append(done.value()[0][0].item()))
    peer = (rank + 1) % world
    received = torch.zeros(4)
    works += [dist.irecv(received, (rank - 1) % world), dist.isend(torch.full((4,), float(rank)), peer)]
    call("shutdown")
    call("shutdown")
    assert seen == [sum(range(world))], seen
    assert all(work.is_success() for work in works)
    assert received.tolist() == [(rank - 1) % world] * 4
    assert all((value == sum(range(world))).all() for value in values)
    texts = [error_of(later) for later in LATER]
    call("abort")
    return texts


def late(rank, world, path):
    """Rank 1 does not come to what rank 0 waits for when it shuts its group down."""
    with fabric_test.process_group("fabricshm", path, rank, world, timeout=6):
        dist.barrier()
        if rank == 1:
            wait_for("ended")
            return [error_of(LATER[0])]
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=60)
        work = dist.distributed_c10d._get_default_group().allreduce([torch.ones(1)], options)
        texts = [error_of(lambda: ours("shutdown")), error_of(work.wait)]
        store().set("ended", "")
        return texts


def destroyed_with_work(rank, world, path):
    import fabricshm.torch  # noqa: F401

    dist.init_process_group("fabricshm", init_method=f"file://{path}", rank=rank, world_size=world,
                            timeout=timedelta(seconds=60))
    value = torch.ones(100_000)
    works = [dist.all_reduce(value, async_op=True) for _ in range(30)]
    dist.destroy_process_group()
    for work in works:
        work.wait()
    return [str((value == world ** 30).all().item())]


def destroyed_alone(rank, world, path):
    """Rank 1 leaves without what rank 0 waits for: a sum and a message, neither of which is waited for."""
    import fabricshm.torch  # noqa: F401

    dist.init_process_group("fabricshm", init_method=f"file://{path}", rank=rank, world_size=world,
                            timeout=timedelta(minutes=30))
    dist.barrier()
    if rank == 1:
        dist.destroy_process_group()
        return []
    value, message = torch.ones(100_000), torch.ones(7)
    work, receiving = dist.all_reduce(value, async_op=True), dist.irecv(message, 1)
    dist.destroy_process_group()
    return [error_of(work.wait), error_of(receiving.wait)]


def shared_memory():
    return set(os.listdir("/dev/shm"))


def left_over(before):
    """What is in /dev/shm since then and no process maps: other tests may run at the same time."""
    mapped = ""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/maps") as file:
                mapped += file.read()
        except OSError:  # it has ended
            pass
    return [name for name in shared_memory() - before if f"/dev/shm/{name}" not in mapped]


class Endings(unittest.TestCase):
    def run_in(self, world, function, *arguments):
        return fabric_test.run_ranks(function, world, fabric_test.store_path(), *arguments)

    def test_abort_fails_what_is_outstanding_and_names_the_rank_to_its_peers(self):
        for call in (end, ours):
            first, own, last = self.run_in(3, aborted, call)
            for text in (first[0], last[0]):
                self.assertIn("rank 1 died or left the process group (FABRICSHM_EPEER", text)
            self.assertTrue(first[1] and last[1])
            for text in own:
                self.assertIn("this rank has aborted the process group", text)
            self.assertEqual(len(own), 1 + 6 + len(LATER))  # the callback of a failed future is not called

    def test_abort_from_a_callback(self):
        texts = self.run_in(2, aborted_in_callbacks)
        self.assertIn("rank 1 died or left", texts[0][0])
        self.assertIn("this rank has aborted the process group", texts[1][0])

    def test_shutdown_waits_for_what_is_outstanding_and_refuses_the_rest(self):
        for call in (end, ours):
            for texts in self.run_in(3, shut_down, call):
                for text in texts:
                    self.assertIn("this rank has shut down the process group", text)

    def test_shutdown_gives_up_at_the_timeout_and_names_itself_to_its_peers(self):
        first, second = self.run_in(2, late)
        self.assertIn("cannot shut down the process group: timeout passed", first[0])
        self.assertIn("timeout passed while this rank shut down the process group", first[1])
        self.assertIn("rank 0 died or left", second[0])

    def test_destroying_a_group_ends_its_outstanding_work_first(self):
        before = shared_memory()
        self.assertEqual(self.run_in(2, destroyed_with_work), [["True"]] * 2)
        self.assertEqual(left_over(before), [])

    def test_destroying_a_group_whose_peer_has_left_neither_waits_nor_leaves_anything(self):
        before = shared_memory()
        begun = time.monotonic()
        texts = self.run_in(2, destroyed_alone)[0]
        self.assertLess(time.monotonic() - begun, 60)  # of a timeout of half an hour
        self.assertIn("rank 1 died or left", texts[0])
        self.assertTrue(texts[1])
        self.assertEqual(left_over(before), [])


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
