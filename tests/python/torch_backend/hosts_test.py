"""PyTorch over several hosts: two daemons, as on two hosts, whose ranks speak over libfabric on loopback."""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    fabric_test.skip(error)

LOOPBACK = "127.0.0.0/8"


def group_of(rank, world, path, sockets, trusted=LOOPBACK, **options):
    """A process group whose first ranks are at the first daemon; hosts have unlike numbers of them."""
    os.environ["FABRIC_SOCKET"] = sockets[rank * len(sockets) // world]
    if trusted:
        os.environ["FABRIC_NET_TRUSTED"] = trusted
    return fabric_test.process_group("fabricshm", path, rank, world, **options)


def values(rank, count):
    # Whole numbers, so that every order of additions has the same sum.
    return (torch.arange(count) * (rank + 1) % 1000).float()


def collectives(rank, world, path, sockets):
    with group_of(rank, world, path, sockets):
        for count in (1, 3, 1000, 65_537, 300_007):
            mine, everyone = values(rank, count), [values(peer, count) for peer in range(world)]
            total = mine.clone()
            dist.all_reduce(total)
            assert torch.equal(total, sum(everyone)), ("all_reduce", count)
            largest = mine.clone()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            assert torch.equal(largest, torch.stack(everyone).max(0).values), ("max", count)
            for root in range(world):
                copied = mine.clone()
                dist.broadcast(copied, src=root)
                assert torch.equal(copied, everyone[root]), ("broadcast", count, root)
            gathered = [torch.empty(count) for _ in range(world)]
            dist.all_gather(gathered, mine)
            assert all(map(torch.equal, gathered, everyone)), ("all_gather", count)
            dist.barrier()
    return True


def trained(rank, world, path, sockets, backend):
    context = (group_of(rank, world, path, sockets) if backend == "fabricshm" else
               fabric_test.process_group(backend, path, rank, world))
    with context:
        torch.manual_seed(1)
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 5)))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        data = torch.Generator().manual_seed(rank)
        for _ in range(15):
            images, labels = torch.randn(8, 20, generator=data), torch.randint(5, (8,), generator=data)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach().tolist()


def bereaved(rank, world, path, sockets):
    """What a survivor hears when the last rank is killed."""
    with group_of(rank, world, path, sockets, timeout=60):
        value = torch.ones(10_000)
        dist.all_reduce(value)
        if rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(1000):
                dist.all_reduce(value)
        except RuntimeError as error:
            return str(error)
    return "no error"


def refused(rank, world, path, sockets):
    try:
        with group_of(rank, world, path, sockets, trusted="10.255.255.0/30", timeout=60):
            return "no error"
    except RuntimeError as error:
        return str(error)


class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import fabricshm._daemon as daemon

        cls.other = daemon.EmbeddedDaemon(daemon.find_program(), pool_bytes=1 << 29)
        cls.addClassCleanup(cls.other.stop)
        cls.sockets = [os.environ["FABRIC_SOCKET"], cls.other.socket]

    def test_collectives_are_right_on_two_hosts_with_unlike_numbers_of_ranks(self):
        for world in (2, 3, 4):
            with self.subTest(world=world):
                results = fabric_test.run_ranks(collectives, world, fabric_test.store_path(), self.sockets)
                self.assertEqual(results, [True] * world)

    def test_an_unchanged_script_trains_as_with_gloo(self):
        ours = fabric_test.run_ranks(trained, 4, fabric_test.store_path(), self.sockets, "fabricshm")
        self.assertEqual(ours[1:], ours[:1] * 3)  # the same bits on all ranks
        gloo = fabric_test.run_ranks(trained, 4, fabric_test.store_path(), self.sockets, "gloo")
        torch.testing.assert_close(torch.tensor(ours[0]), torch.tensor(gloo[0]), rtol=1e-5, atol=1e-6)

    def test_survivors_on_both_hosts_hear_which_rank_died(self):
        ranks = fabric_test.Ranks(bereaved, 4, fabric_test.store_path(), self.sockets)
        texts = ranks.results(dead={3})
        for text in texts[:3]:
            self.assertIn("rank 3", text)

    def test_a_network_that_this_host_has_no_part_of_is_named(self):
        for text in fabric_test.run_ranks(refused, 2, fabric_test.store_path(), self.sockets):
            self.assertIn("10.255.255.0/30", text)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
