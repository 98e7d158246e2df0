"""Ranks of a wrapped script that part: rank 0 decides, or every rank says at once what went wrong."""

import os
import unittest
import unittest.mock
import zlib

from wrap_support import WrapCase, main

# 10 samples in batches of 5: rank 0 of two reads 6 of them in an epoch, and rank 1 reads 4.
LOOP = """
    import os, sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    rank = int(os.environ["RANK"])
    loader = DataLoader(TensorDataset(torch.randn(10, 2)), batch_size=5)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    for epoch in range(4):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            seen += len(x)
        if STOPS:
            break
    torch.save(model.state_dict(), sys.argv[1])
    print("epochs", epoch + 1)
"""


class Ranks(WrapCase):
    def test_when_rank_0_has_left_the_loop_the_others_end(self):
        done = self.wrapped(self.script(LOOP.replace("STOPS", "seen >= 12")), 2)
        self.assertIn("[0] epochs 2", done)
        self.assertNotIn("[1] epochs", done)
        self.assertIn("rank 0 has left its training loop", done)
        self.load("wrapped")

    def test_when_another_rank_leaves_the_loop_first_all_ranks_say_so(self):
        done = self.wrapped(self.script(LOOP.replace("STOPS", "seen < 5")), 2, code=1)
        self.assertIn("rank 0: begin a loop over its training data; rank 1: save a checkpoint", done)

    def test_learning_rates_that_differ_are_an_error_that_names_the_rank(self):
        text = LOOP.replace("STOPS", "optimizer.param_groups[0].update(lr=0.1 + rank)")
        done = self.wrapped(self.script(text), 2, code=1)
        self.assertIn("the settings of the optimisers (learning rates) of rank 1 and of rank 0 differ", done)

    def test_models_that_differ_by_rank_are_an_error(self):
        done = self.wrapped(self.script("""
            import os, torch
            model = torch.nn.Linear(2 + int(os.environ["RANK"]), 1)
            torch.optim.SGD(model.parameters(), lr=0.1)
        """), 2, code=1)
        self.assertIn("the shapes of the parameters of rank 1 and of rank 0 differ", done)

    def test_initial_parameters_are_those_of_rank_0_whatever_a_rank_draws(self):
        done = self.wrapped(self.script("""
            import os, sys, torch
            torch.manual_seed(int(os.environ["RANK"]))
            model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
            model[1].running_mean += int(os.environ["RANK"])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            values = [*model.parameters(), *model.buffers()]
            print("values", [round(v, 6) for t in values for v in t.flatten().tolist()])
        """), 2)
        lines = {line[4:] for line in done.splitlines() if "values" in line}
        self.assertEqual(len(lines), 1, done)
        self.assertIn("batch normalisation computes over each rank's piece", done)

    def test_a_rank_whose_memory_is_another_after_the_broadcast_is_named_with_the_parameter(self):
        text = """
            import os, torch, torch.distributed as dist
            rank, sent, broadcast = int(os.environ["RANK"]), 0, dist.broadcast
            def corrupting(tensor, source):  # one bit of the third tensor that is sent on rank 1, of the second on rank 2
                global sent
                sent += 1
                broadcast(tensor, source)
                if sent == 4 - rank and rank:
                    tensor.view(torch.int32).flatten()[1] ^= 1 << 12
            dist.broadcast = corrupting
            model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        """
        done = self.wrapped(self.script(text), 3, code=1)
        # One error on each rank that the launcher has not ended by then.
        errors = {line[4:] for line in done.splitlines() if "Diverged: " in line}
        self.assertEqual(len(errors), 1, done)
        self.assertIn("initial parameters of ranks 1, 2 and of rank 0 differ, first in Sequential.0.bias [2]", errors.pop())

    def test_pieces_follow_the_shares_that_the_daemon_directs(self):
        path = self.script("""
            import os, sys, torch
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(2)
            data = TensorDataset(torch.randn(80, 3), torch.randn(80, 1))
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if "RANK" in os.environ:  # in place of fabricd's control loop
                from fabricshm.torch import Directives, wrap
                class Directed:
                    def read(self):
                        return Directives(serial=1, batch_share=[0.75, 0.25])
                    def report(self, **figures):
                        print("samples", figures["samples"])
                wrap._wrapping._session = Directed()
            for x, y in DataLoader(data, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
            torch.save(model.state_dict(), sys.argv[1])
        """)
        said = self.compare(path, 2, 1e-6)
        # A loader with a worker draws ahead: what is drawn keeps its cut.
        self.assertIn("[0] samples 8", said)
        self.assertIn("[0] samples 12", said)
        self.assertIn("[1] samples 4", said)

    def test_parameters_that_a_script_loads_are_those_of_its_server(self):
        path = self.script("""
            import copy, sys, torch
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(8)
            loader = DataLoader(TensorDataset(torch.randn(24, 3)), batch_size=8)
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            kept = copy.deepcopy(model.state_dict())
            for epoch in range(3):
                for (x,) in loader:
                    optimizer.zero_grad()
                    (model(x) - 1).square().mean().backward()
                    optimizer.step()
                if epoch == 1:
                    model.load_state_dict(kept)
            torch.save(model.state_dict(), sys.argv[1])
        """)
        self.compare(path, 2, 1e-6, "--strategy", "parameter-server")
        # Of one rank the order is known with a staleness, too.
        self.compare(path, 1, 1e-6, "--strategy", "parameter-server", "--staleness", "1")

    def test_staleness_multiplies_neither_learning_rates_nor_decay(self):
        # Gradients that are the same in every step: the order of the ranks does not matter.
        for optimizer, pull in (("Adam", 1.0), ("AdamW", 0.0), ("SGD", 0.0), ("SGD", 1.0)):
            with self.subTest(optimizer=optimizer, pull=pull):
                path = self.script(f"""
                    import sys, torch
                    from torch.utils.data import DataLoader, TensorDataset
                    loader = DataLoader(TensorDataset(torch.ones(80, 1)), batch_size=10)
                    model = torch.nn.Linear(1, 1, bias=False)
                    torch.nn.init.constant_(model.weight, 8.0)
                    optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.001, weight_decay={0.0 if pull else 1.0})
                    for epoch in range(2):
                        for (x,) in loader:
                            optimizer.zero_grad()
                            ({pull} * model(x).mean()).backward()
                            optimizer.step()
                    assert optimizer.param_groups[0]["lr"] == 0.001
                    torch.save(model.state_dict(), sys.argv[1])
                """)
                # Pieces of 4, 3 and 3. Decay in three parts is that in one but for 16 * (lr * decay)^2 / 3.
                self.compare(path, 3, 2e-4, "--strategy", "parameter-server", "--staleness", "1")

    def test_what_cannot_be_cut_is_said_and_computed_whole(self):
        path = self.script("""
            import sys, torch
            from torch.utils.data import DataLoader, IterableDataset
            class Stream(IterableDataset):
                def __iter__(self):
                    return iter(torch.linspace(-1, 1, 12).reshape(12, 1))
            torch.manual_seed(4)
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
            for x in DataLoader(Stream(), batch_size=4):
                def closure():
                    optimizer.zero_grad()
                    loss = (model(x) - x.sin()).square().mean()
                    loss.backward()
                    return loss
                optimizer.step(closure)
            torch.save(model.state_dict(), sys.argv[1])
        """)
        said = self.compare(path, 2, 1e-6)
        self.assertIn("(an IterableDataset, or batch_size=None) is not cut", said)
        self.assertIn("every rank computes the whole, no faster than one", said)

    def test_workers_that_persist_read_pieces_in_every_epoch(self):
        path = self.script("""
            import sys, torch
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(6)
            loader = DataLoader(TensorDataset(torch.randn(30, 2)), batch_size=8, shuffle=True, num_workers=2,
                                persistent_workers=True)
            print("whole", sum(len(x) for (x,) in loader))  # before there is anything to train
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(3):
                for (x,) in loader:
                    optimizer.zero_grad()
                    (model(x) - 1).square().mean().backward()
                    optimizer.step()
            torch.save(model.state_dict(), sys.argv[1])
        """)
        self.assertEqual(self.compare(path, 2, 1e-6).count("whole 30"), 2)

    def test_parameters_that_join_an_optimiser_later_are_merged(self):
        path = self.script("""
            import sys, torch
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(3)
            loader = DataLoader(TensorDataset(torch.randn(30, 4)), batch_size=7, shuffle=True)
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
            head = torch.nn.Linear(1, 1)
            model[0].requires_grad_(False)
            optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.5)
            for epoch in range(3):
                if epoch == 1:
                    model[0].requires_grad_(True)
                    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.05})
                if epoch == 2:
                    # The next backward() sees what add_param_group() does not.
                    optimizer.param_groups[0]["params"] += list(head.parameters())
                for (x,) in loader:
                    optimizer.zero_grad()
                    found = model(x) if epoch < 2 else head(model(x))
                    (found - x.sum(1, keepdim=True)).square().mean().backward()
                    optimizer.step()
            torch.save({**model.state_dict(), "head": head.weight.detach()}, sys.argv[1])
        """)
        self.compare(path, 3, 2e-6)
        done = self.wrapped(path, 2, "--strategy", "parameter-server", code=1)
        self.assertIn("parameters joined an optimiser (add_param_group)", done)

    def test_a_second_optimiser_with_staleness_is_an_error_at_once(self):
        done = self.wrapped(self.script("""
            import torch
            models = [torch.nn.Linear(2, 1) for _ in range(2)]
            optimizers = [torch.optim.Adam(model.parameters()) for model in models]
        """), 2, "--strategy", "parameter-server", "--staleness", "1", code=1)
        self.assertIn("--staleness is for a script that makes one optimiser", done)

    def test_a_server_leaves_parameters_without_gradients_as_they_are(self):
        path = self.script("""
            import sys, torch
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(5)
            used, unused = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD([*used.parameters(), *unused.parameters()], lr=0.1, weight_decay=0.5)
            for (x,) in DataLoader(TensorDataset(torch.randn(24, 3)), batch_size=8):
                optimizer.zero_grad()
                used(x).square().mean().backward()
                optimizer.step()
            torch.save({"used": used.state_dict(), "unused": unused.state_dict()}, sys.argv[1])
        """)
        self.compare(path, 2, 1e-6, "--strategy", "parameter-server")

    def test_gradients_that_are_not_means_of_those_of_pieces_are_said(self):
        text = """
            import torch
            import torch.nn.functional as F
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.randn(8, 3), torch.tensor([0, 1, 2, -100] * 2))
            model = torch.nn.Linear(3, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                LOSS.backward()
                optimizer.step()
            with torch.no_grad():
                F.nll_loss(model(data[:3][0]), data[:3][1], reduction="sum")
        """
        # A loss of each kind; each is said once.
        losses = ("F.mse_loss(model(x), x, None, None, 'sum')", "F.nll_loss(model(x), y.clamp(0), torch.ones(3))",
                  "torch.nn.CrossEntropyLoss()(model(x), y)",
                  "[model.weight.register_hook(torch.tanh), model(x).mean()][1]")
        done = self.wrapped(self.script(text.replace("LOSS", f"({' + '.join(losses)})")), 2)
        lines = [each for each in done.splitlines() if "fabricrun:" in each]
        for part in ("a loss has reduction='sum'", "a loss has weight=", "targets have the ignore_index",
                     "register_hook() of a parameter"):
            self.assertEqual(sum(part in line for line in lines), 1, done)
        self.assertEqual(len(lines), 4, done)
        # What is compiled is not looked at, and works.
        quiet = "[f(model(x), y.clamp(0)) for f in (F.cross_entropy, torch.jit.script(torch.nn.CrossEntropyLoss()))][1]"
        self.assertNotIn("fabricrun:", self.wrapped(self.script(text.replace("LOSS", quiet)), 2))

    def test_a_killed_rank_ends_the_job_and_is_named(self):
        text = LOOP.replace("STOPS", "rank == 1 and os.kill(os.getpid(), 9)")
        done = self.wrapped(self.script(text), 2, code=137)
        self.assertIn("rank 1", done)

    def test_a_script_that_is_distributed_already_is_left_alone(self):
        done = self.wrapped(self.script("""
            import torch, torch.distributed as dist
            dist.init_process_group("fabricshm")
            value = torch.ones(1)
            dist.all_reduce(value)
            optimizer = torch.optim.SGD([torch.nn.Parameter(value)], lr=0.1)
            print("sum", value.item())
        """), 2)
        self.assertEqual(done.count("sum 2.0"), 2)
        self.assertIn("the script calls torch.distributed itself", done)

    def test_a_script_that_becomes_distributed_late_is_an_error(self):
        done = self.wrapped(self.script("""
            import torch, torch.distributed as dist
            torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
            dist.init_process_group("fabricshm")
        """), 2, code=1)
        self.assertIn("start it without --wrap", done)

    def test_a_script_without_training_runs_on_every_rank(self):
        done = self.wrapped(self.script("print('here')\nraise SystemExit"), 2)
        self.assertEqual(done.count("here"), 2)


class Pieces(unittest.TestCase):
    def test_pieces_of_all_ranks_are_the_batch_by_the_shares_in_force(self):
        from fabricshm.torch.wrap._pieces import Shares
        ranks = [Shares(rank, 3) for rank in range(3)]
        for each in ranks:
            each.plan.change(1, [0.5, 0.5, 0.0])
        for batch, (counts, length) in enumerate([([2, 2, 1], 5), ([3, 2, 0], 5), ([1, 0, 0], 1)]):
            indices = list(range(100 * batch, 100 * batch + length))
            found = [each.cut(indices) for each in ranks]
            self.assertEqual([cut.counts for _, cut in found], [counts] * 3)
            own = [piece for (piece, _), count in zip(found, counts) if count]
            self.assertEqual(sum(own, []), indices)
            self.assertTrue(all(len(piece) == 1 for (piece, _), count in zip(found, counts) if not count))
            self.assertEqual({cut.crc for _, cut in found}, {zlib.crc32(repr(indices).encode())})

    def test_ranks_swap_a_part_of_their_pieces_after_each_step_of_a_loop(self):
        from fabricshm.torch.wrap._pieces import Shares
        with unittest.mock.patch.dict(os.environ, {"FABRIC_JOB_PASS_ON": "0.5"}):
            ranks = [Shares(rank, 2) for rank in range(2)]
        for loop in range(2):
            for each in ranks:
                each.begin_loop()
            for batch, length in enumerate((8, 8, 8, 5)):
                indices = list(range(100 * batch, 100 * batch + length))
                pieces, cuts = zip(*(each.cut(indices) for each in ranks))
                self.assertEqual(sorted(sum(pieces, [])), indices)
                crc = zlib.crc32(repr(indices).encode())
                self.assertEqual({(tuple(cut.counts), cut.crc) for cut in cuts}, {(((length + 1) // 2, length // 2), crc)})
                # Half of the smaller piece, of each rank, after one step.
                moved = len(set(pieces[0]) - set(indices[: len(pieces[0])]))
                self.assertEqual(moved, {0: 0, 1: 2}.get(batch, moved), (loop, batch))

    def test_the_order_of_a_loader_is_known_before_it_is_drawn(self):
        import torch
        from torch.utils.data import DataLoader, RandomSampler, TensorDataset
        from fabricshm.torch.wrap._pieces import order_of
        samples = TensorDataset(torch.arange(23))
        for workers in (0, 1):
            torch.manual_seed(11)
            loader = DataLoader(samples, batch_size=4, shuffle=True, num_workers=workers)
            seed = order_of(loader).seed
            drawn = list(RandomSampler(samples))
            self.assertEqual(torch.randperm(23, generator=torch.Generator().manual_seed(seed % (1 << 32))).tolist(), drawn)
        self.assertIsNone(order_of(DataLoader(samples)).seed)
        self.assertIsNone(order_of(DataLoader(samples, shuffle=True, generator=torch.Generator())))
        self.assertIsNone(order_of(DataLoader(samples, sampler=RandomSampler(samples, replacement=True))))
        self.assertIsNone(order_of(DataLoader(samples, sampler=RandomSampler(samples, num_samples=7))))

    def test_a_job_begins_with_the_shares_of_its_schedule(self):
        from fabricshm.torch.wrap._pieces import Shares
        for text, counts in (("0.2,0.2,0.6", [2, 2, 6]), ("0.5,0.5", [4, 3, 3]), ("a,b,c", [4, 3, 3]), ("nan,1,1", [4, 3, 3])):
            with unittest.mock.patch.dict(os.environ, {"FABRIC_JOB_SHARES": text}):
                _, cut = Shares(0, 3).cut(list(range(10)))
            self.assertEqual(cut.counts, counts, text)


if __name__ == "__main__":
    main()
