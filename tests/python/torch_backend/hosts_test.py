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


def parts(rank, world, path, sockets):
    """Gather, scatter and the exchanges, against what each rank can work out by itself."""
    def row(sender, receiver, count):
        return torch.arange(count) + 1000 * sender + 100_000 * receiver

    with group_of(rank, world, path, sockets):
        everyone = range(world)
        for count in (1, 1000, 65_537):
            for root in everyone:
                rows = [torch.empty(count, dtype=torch.int64) for _ in everyone] if rank == root else None
                dist.gather(row(rank, root, count), rows, dst=root)
                assert rank != root or all(
                    torch.equal(rows[peer], row(peer, root, count)) for peer in everyone), ("gather", count)
                part = torch.empty(count, dtype=torch.int64)
                dist.scatter(part, [row(root, peer, count) for peer in everyone] if rank == root else None, src=root)
                assert torch.equal(part, row(root, rank, count)), ("scatter", count)
            wanted = torch.cat([row(peer, rank, count) for peer in everyone])
            output = torch.empty_like(wanted)
            dist.all_to_all_single(output, torch.cat([row(rank, peer, count) for peer in everyone]))
            assert torch.equal(output, wanted), ("all_to_all_single", count)
            rows = [torch.empty(count, dtype=torch.int64) for _ in everyone]
            dist.all_to_all(rows, [row(rank, peer, count) for peer in everyone])
            assert torch.equal(torch.cat(rows), wanted), ("all_to_all", count)
            # Rank r sends (r + 1) * (p + 1) rows to rank p.
            sent = [(rank + 1) * (peer + 1) for peer in everyone]
            wanted = torch.cat([row(peer, rank, (peer + 1) * (rank + 1)) for peer in everyone])
            output = torch.empty_like(wanted)
            dist.all_to_all_single(
                output, torch.cat([row(rank, peer, sent[peer]) for peer in everyone]),
                output_split_sizes=[(peer + 1) * (rank + 1) for peer in everyone], input_split_sizes=sent)
            assert torch.equal(output, wanted), "all_to_all_single with splits"
    return True


def messages(rank, world, path, sockets):
    with group_of(rank, world, path, sockets):
        before, behind = (rank - 1) % world, (rank + 1) % world
        for count in (0, 1, 10_000, 300_000):
            mine, theirs = values(rank, count), torch.empty(count)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, behind),
                                                dist.P2POp(dist.irecv, theirs, before)]):
                work.wait()
            assert torch.equal(theirs, values(before, count)), ("isend and irecv", count)
            if rank == 0:
                left = set(range(1, world))
                for _ in range(1, world):
                    source = dist.recv(theirs)
                    left.remove(source)
                    assert torch.equal(theirs, values(source, count)), ("recv from any", count)
            else:
                dist.send(mine, dst=0)
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


def aborted(rank, world, path, sockets):
    """What all hear when the last rank aborts instead of coming to a sum."""
    import fabricshm.torch as fabric

    with group_of(rank, world, path, sockets, timeout=60):
        value = torch.ones(10_000)
        try:
            dist.all_reduce(value)  # which another rank may still be in when one aborts
            if rank == world - 1:
                work = dist.irecv(torch.ones(3), 0)
                fabric.abort()
                work.wait()
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

    def test_gather_scatter_and_exchanges_move_the_parts_of_all_ranks(self):
        for world in (2, 3, 4):
            with self.subTest(world=world):
                results = fabric_test.run_ranks(parts, world, fabric_test.store_path(), self.sockets)
                self.assertEqual(results, [True] * world)

    def test_messages_go_between_hosts_and_to_the_rank_that_takes_any(self):
        for world in (2, 4):
            with self.subTest(world=world):
                results = fabric_test.run_ranks(messages, world, fabric_test.store_path(), self.sockets)
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

    def test_all_hosts_hear_which_rank_aborted(self):
        texts = fabric_test.run_ranks(aborted, 4, fabric_test.store_path(), self.sockets)
        for text in texts[:3]:
            self.assertIn("rank 3", text)
        self.assertIn("this rank has aborted the process group", texts[3])

    def test_a_network_that_this_host_has_no_part_of_is_named(self):
        for text in fabric_test.run_ranks(refused, 2, fabric_test.store_path(), self.sockets):
            self.assertIn("10.255.255.0/30", text)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
