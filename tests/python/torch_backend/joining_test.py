"""How ranks come together: quickly, at one daemon, and with a word on what went wrong."""

import ctypes
import os
import signal
import socket
import sys
import tempfile
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


def joined(rank, world, path, sockets, come):
    """(seconds, what went wrong) of making a process group."""
    import fabricshm.torch as fabric

    os.environ["FABRIC_SOCKET"] = sockets[rank]
    fabric._load()  # reading a library of PyTorch's size is no part of joining
    if rank not in come:
        return None
    before = time.monotonic()
    try:
        with fabric_test.process_group(
                "fabricshm", path, rank, world, timeout=60 if len(come) == world else 1):
            took = time.monotonic() - before
            dist.all_reduce(torch.ones(1))
            return took, ""
    except RuntimeError as error:
        return time.monotonic() - before, str(error)


def file_store(path, world, _rank):
    return dist.FileStore(path, world)


def tcp_store(port, world, rank):
    return dist.TCPStore("127.0.0.1", port, world, rank == 0, timedelta(seconds=60))


def killed_on_the_way(rank, world, make_store, place, sockets, timeout, ready):
    """(seconds, what went wrong): of these ranks one waits for a daemon that does not answer, and is killed."""
    import fabricshm.torch as fabric

    os.environ["FABRIC_SOCKET"] = sockets[rank]
    fabric._load()
    store = make_store(place, world, rank)
    os.write(ready, b"x")  # from here on it is ours
    before = time.monotonic()
    try:
        dist.init_process_group("fabricshm", store=store, rank=rank, world_size=world,
                                timeout=timedelta(seconds=timeout))
    except RuntimeError as error:
        return time.monotonic() - before, str(error)
    return time.monotonic() - before, "no error"


CLONE_NEWNS, CLONE_NEWUSER, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 0x1000, 0x4000, 0x40000


def become_another_host(folder):
    """This process has another boot from now on, as one on another host. False: it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNS if os.geteuid() == 0 else CLONE_NEWNS | CLONE_NEWUSER
    boot = os.path.join(folder, "boot_id")
    with open(boot, "w") as file:
        file.write("00000000-1111-2222-3333-444444444444\n")
    # Private first: or the mount would be seen outside of the new namespace.
    return (libc.unshare(flags) == 0
            and libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
            and libc.mount(boot.encode(), b"/proc/sys/kernel/random/boot_id", None, MS_BIND, None) == 0)


def able_to_move(_rank, _world, folder):
    return become_another_host(folder)


def joined_from_two_hosts(rank, world, path, folder):
    if rank == 1 and not become_another_host(folder):
        return None
    try:
        with fabric_test.process_group("fabricshm", path, rank, world, timeout=60):
            return "no error"
    except RuntimeError as error:
        return str(error)


def called(rank, world, path, calls):
    with fabric_test.process_group("fabricshm", path, rank, world):
        try:
            for _ in range(3):  # all alike
                dist.all_reduce(torch.ones(2))
            calls[rank]()
            for _ in range(200):  # small operations are compared some later
                dist.barrier()
        except RuntimeError as error:
            return str(error)
        return "no error"


def call(operation, *arguments):
    def made():
        return getattr(dist, operation)(*(make() for make in arguments))

    return made


class Joining(unittest.TestCase):
    def test_ranks_at_one_daemon_make_a_process_group(self):
        # How long it takes is for bench/torch_overhead.py.
        sockets = [os.environ["FABRIC_SOCKET"]] * 2
        results = fabric_test.run_ranks(joined, 2, fabric_test.store_path(), sockets, {0, 1})
        self.assertEqual([text for _, text in results], ["", ""])

    def test_ranks_at_two_daemons_hear_of_both_at_once(self):
        import fabricshm._daemon as daemon

        with daemon.EmbeddedDaemon(daemon.find_program(), pool_bytes=1 << 28) as other:
            sockets = [os.environ["FABRIC_SOCKET"], other.socket, os.environ["FABRIC_SOCKET"]]
            results = fabric_test.run_ranks(
                joined, 3, fabric_test.store_path(), sockets, {0, 1, 2})
            for took, text in results:
                self.assertLess(took, 30)  # of a timeout of 60 s
                self.assertIn(f"{sockets[0]} (pid ", text)
                self.assertIn(f"rank 1 to {other.socket} (pid ", text)

    def test_ranks_on_two_hosts_hear_of_both_at_once(self):
        with tempfile.TemporaryDirectory(prefix="fabric-hosts-") as folder:
            if fabric_test.run_ranks(able_to_move, 1, folder) == [False]:
                self.skipTest("mount namespaces are not allowed here")
            texts = fabric_test.run_ranks(joined_from_two_hosts, 2, fabric_test.store_path(), folder)
        for text in texts:
            self.assertIn("they are on two hosts: rank 1 on ", text)
            self.assertRegex(text, r"rank 0 on \S+ \(boot [0-9a-f]{8}\)")

    def test_ranks_that_do_not_come_are_named(self):
        sockets = [os.environ["FABRIC_SOCKET"]] * 4
        results = fabric_test.run_ranks(joined, 4, fabric_test.store_path(), sockets, {0, 2})
        for _, text in (results[0], results[2]):
            self.assertIn("of 4 ranks these have not come: 1, 3", text)


class Deaths(unittest.TestCase):
    """A rank is killed during init_process_group, after it has met the others in the store."""

    TIMEOUT = 600

    def kill(self, victim, world, make_store, place, or_text="no other text"):
        with tempfile.TemporaryDirectory(prefix="fabric-silent-") as folder:
            silent = os.path.join(folder, "socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(silent)
                listener.listen()
                sockets = [silent if rank == victim else os.environ["FABRIC_SOCKET"] for rank in range(world)]
                ready, opener = os.pipe()
                ranks = fabric_test.Ranks(
                    killed_on_the_way, world, make_store, place, sockets, self.TIMEOUT, opener)
                for _ in range(world):
                    os.read(ready, 1)
                connection = listener.accept()[0]  # it is there, and goes no further
                os.kill(ranks.pids[victim], signal.SIGKILL)
                results = ranks.results(dead=(victim,))
                connection.close()
        for rank, result in enumerate(results):
            if rank == victim:
                continue
            begin = "fabricshm: cannot join the process group: "
            self.assertTrue(begin + f"rank {victim} died" in result[1] or result[1].startswith(begin) and or_text in result[1], result[1])
            self.assertLess(result[0], fabric_test.DEADLINE)

    def test_a_rank_that_is_killed_is_named_to_all_at_once(self):
        self.kill(1, 3, file_store, fabric_test.store_path())

    def test_rank_0_that_is_killed_is_named_to_all_at_once(self):
        self.kill(0, 3, file_store, fabric_test.store_path())

    def test_rank_0_that_takes_the_store_along_is_named_all_the_same(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # It may be gone before the others have read which process rank 0 is.
        self.kill(0, 3, tcp_store, port, "the store has failed")

    def test_rank_0_that_does_not_come_is_named(self):
        sockets = [os.environ["FABRIC_SOCKET"]] * 3
        results = fabric_test.run_ranks(joined, 3, fabric_test.store_path(), sockets, {1, 2})
        for _, text in results[1:]:
            self.assertIn("timeout passed; rank 0 has not come", text)


class Differences(unittest.TestCase):
    def differ(self, first, second, texts):
        results = fabric_test.run_ranks(called, 2, fabric_test.store_path(), (first, second))
        for rank, text in enumerate(results):
            self.assertIn("another operation", text)
            self.assertIn(f"this rank called {texts[rank]}, rank {1 - rank} called {texts[1 - rank]}", text)

    def test_what_was_called_is_named_on_both_ranks(self):
        small, large = lambda: torch.ones(3), lambda: torch.ones(5)  # noqa: E731
        sums = ("all-reduce of 3 float32, operation sum", "all-reduce of 5 float32, operation sum")
        self.differ(call("all_reduce", small), call("all_reduce", large), sums)
        self.differ(call("all_reduce", small), call("barrier"), (sums[0], "pass the barrier"))

    def test_types_and_large_sizes_are_named(self):
        self.differ(call("all_reduce", lambda: torch.ones(100_000)),
                    call("all_reduce", lambda: torch.ones(100_000, dtype=torch.int64)),
                    ("all-reduce of 100000 float32, operation sum",
                     "all-reduce of 100000 int64, operation sum"))


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
