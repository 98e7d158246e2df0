"""ParameterServer: without staleness the bits of an allreduce and an optimiser, with one what holds in every order."""

import math
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import numpy
    import torch
except ImportError as error:
    fabric_test.skip(error)

import fabricshm  # noqa: E402

SHAPES = ((70, 33), (33,), (5, 7, 11), ())
STEPS = 6


def gradient(shape, rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(shape, generator=generator)


def start(shape):
    return torch.linspace(-1, 1, max(1, math.prod(shape))).reshape(shape)


def parameters():
    return [torch.nn.Parameter(start(shape)) for shape in SHAPES]


def by_allreduce(group, rule, values, step):
    """STEPS steps of an allreduce over the fabric, and of one rank's own optimiser. The oracle."""
    world = group.world
    moved = parameters()
    with fabricshm.Session() as session:
        # Of this rank alone: no gradient is summed in it.
        alone = session.arena(f"alone-{group.rank}", 16 << 20).join("alone", 0, 1)
        shapes = {f"p{i}": shape for i, shape in enumerate(SHAPES)}
        own = fabricshm.Parameters(alone, "own", shapes, optimiser=rule)
        for name, tensor in zip(shapes, moved):
            own.values[name][...] = tensor.detach().numpy()
        for number in range(STEPS):
            for name, shape in shapes.items():
                summed = gradient(shape, group.rank, number).numpy().copy()
                group.all_reduce(summed)
                own.gradients[name][...] = summed * numpy.float32(1 / world)
            own.step(**values)
        result = [own.values[name].copy() for name in shapes]
        own.close()
    return result


def together(rank, world, rule, values, named):
    with fabric_test.group_of(rank, world) as (_, group):
        expected = by_allreduce(group, rule, named, None)
        tensors = parameters() if rank == 0 else [torch.nn.Parameter(torch.full(s, 9.0)) for s in SHAPES]
        with fabricshm.ParameterServer(tensors, rule, group=group, **values) as server:
            for number in range(STEPS):
                server.zero_grad()
                for tensor, shape in zip(tensors, SHAPES):
                    tensor.grad.add_(gradient(shape, rank, number))
                server.step()
            assert server.version == server.steps == STEPS
        for tensor, value in zip(tensors, expected):
            found = tensor.detach().numpy()
            assert (found.view("uint32") == value.view("uint32")).all(), abs(found - value).max()
        return True


def apart(rank, world, staleness):
    """Sums of whole numbers by SGD are the same in every order."""
    with fabric_test.group_of(rank, world) as (_, group):
        tensors = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        optimizer = torch.optim.SGD(tensors, lr=1.0)
        server = fabricshm.ParameterServer(tensors, optimizer, staleness=staleness, group=group)
        for step in range(STEPS * (rank + 1)):
            server.zero_grad()
            sum((rank + 1) * tensor.sum() for tensor in tensors).backward()
            server.step()
        server.close()
        total = sum(STEPS * (each + 1) ** 2 for each in range(world))
        assert all((tensor == -total).all() for tensor in tensors), tensors[3]
        assert server._held is None
        return True


def schedule(rank, world):
    """A scheduler of PyTorch's optimiser counts: the server reads its learning rate in each step."""
    with fabric_test.group_of(rank, world) as (_, group):
        tensor = torch.nn.Parameter(torch.zeros(4))
        optimizer = torch.optim.SGD([tensor], lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        with fabricshm.ParameterServer(optimizer=optimizer, group=group) as server:
            for _ in range(3):
                server.zero_grad()
                tensor.grad.fill_(1)
                server.step()
                scheduler.step()
        return tensor.detach().tolist()


def dying(rank, world, staleness):
    with fabric_test.group_of(rank, world) as (_, group):
        tensors = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        server = fabricshm.ParameterServer(tensors, "adamw", staleness=staleness, group=group, lr=0.1)
        group.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        try:
            for _ in range(staleness + 2):
                server.step()
        except fabricshm.PeerError as error:
            return str(error), time.monotonic() - began
        return "no error", 0


def changed(rank, world, staleness):
    """What a program changes that a server can't follow: the errors, by case."""
    said = []

    def fails(error, part, function, *arguments):
        try:
            function(*arguments)
        except error as found:
            assert part in str(found), found
            said.append(part)

    with fabric_test.group_of(rank, world) as (_, group):
        tensor, other = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
        optimizer = torch.optim.SGD([tensor], lr=1.0)
        server = fabricshm.ParameterServer(optimizer=optimizer, staleness=staleness, group=group, name="a")
        held = tensor.data
        tensor.data = torch.ones(4)
        fails(ValueError, "other memory", server.step)
        fails(ValueError, "other memory", server.assign)
        tensor.data = held
        server.step()
        optimizer.add_param_group({"params": [other]})
        fails(ValueError, "was not made with", server.step)
        fails(ValueError, "there twice", fabricshm.ParameterServer, [other, other], "sgd", staleness, group, "b")
        fails(fabricshm.MismatchError, f"staleness is {staleness + 1} on rank 1", fabricshm.ParameterServer, [other],
              "sgd", staleness + rank, group, "c")
        tensor.data = torch.ones(1)  # too short for a pull
        server.close()
        assert tensor.tolist() == [1], tensor
    return len(said)


def without_gradients(rank, world, rule, staleness):
    """The oracle is PyTorch's own optimiser: what has no gradient on any rank stays, with its state."""
    make = {"sgd": lambda of: torch.optim.SGD(of, lr=0.5, momentum=0.5, weight_decay=0.25),
            "adamw": lambda of: torch.optim.AdamW(of, lr=0.5, weight_decay=0.25)}[rule]
    with fabric_test.group_of(rank, world) as (_, group):
        tensors, alone = ([torch.nn.Parameter(torch.ones(3)) for _ in range(3)] for _ in range(2))
        own = make(alone)
        with fabricshm.ParameterServer(optimizer=make(tensors), staleness=staleness, group=group) as server:
            for step in range(4):
                # The first has one in each step, the second until step 2 and of rank 1 alone, the third never.
                has = [True, step < 2, False]
                own.zero_grad(set_to_none=True)
                server.zero_grad(set_to_none=True)
                for index in range(3):
                    if has[index]:
                        alone[index].grad = torch.full((3,), 0.5)
                        if index == 0 or rank == 1:
                            tensors[index].grad = torch.full((3,), 0.5 if index == 0 else 0.5 * world)
                own.step()
                server.step()
                assert tensors[2].grad is None
        for found, expected in zip(tensors, alone):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        return True


PUSHES = """
import fabricshm, sys, torch
tensor = torch.nn.Parameter(torch.zeros(100000))
try:
    # The other rank may be dead before this one has its first values.
    server = fabricshm.ParameterServer([tensor], "sgd", staleness=int(sys.argv[1]), lr=0.1)
    while True:
        server.step()
except fabricshm.PeerError as error:
    print(error)
"""


class Server(unittest.TestCase):
    def test_without_staleness_the_bits_are_those_of_allreduce_and_optimiser(self):
        cases = (("sgd", {"lr": 0.1, "momentum": 0.9}, {"learning_rate": 0.1, "momentum": 0.9}),
                 ("adamw", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1},
                  {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}))
        for world in (2, 3):
            for rule, values, named in cases:
                with self.subTest(rule, world=world):
                    fabric_test.run_ranks(together, world, rule, values, named)

    def test_with_staleness_every_gradient_is_applied_once(self):
        for staleness in (1, 3):
            with self.subTest(staleness=staleness):
                fabric_test.run_ranks(apart, 3, staleness)

    def test_schedules_of_an_optimiser_count(self):
        self.assertEqual(fabric_test.run_ranks(schedule, 2), [[-1.75] * 4] * 2)

    def test_a_dead_rank_is_an_error_that_names_it(self):
        for staleness in (0, 2):
            with self.subTest(staleness=staleness):
                outcomes = fabric_test.Ranks(dying, 3, staleness).results(dead=(1,))
                for text, seconds in (outcomes[0], outcomes[2]):
                    self.assertIn("rank 1", text)
                    self.assertLess(seconds, 20)

    def test_a_rank_that_is_killed_in_a_push_is_named(self):
        # A push has 98 chunks. With a large staleness no rank waits for the other's version, and the range is what is
        # left to wait for; a death between two pushes leaves nothing half done, and ends the waits for its version.
        for point, when, staleness, part in (("step.chunk", 330, 10**6, "died while it stepped a range"),
                                             ("push.range", 5, 10**6, "died while it stepped a range"),
                                             ("push.version", 3, 2, "rank 1 died")):
            with self.subTest(point):
                # Started as by a launcher: faults are armed when the library is loaded.
                common = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": point,
                          "FABRIC_FAULT": f"rank=1@{point}:kill:{when}"}
                ranks = [subprocess.Popen([sys.executable, "-c", PUSHES, str(staleness)], stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True,
                                          env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                         for rank in range(2)]
                outputs = [rank.communicate(timeout=80) for rank in ranks]
                self.assertEqual([rank.returncode for rank in ranks], [0, -signal.SIGKILL], outputs)
                self.assertIn("rank 1", outputs[0][0])
                self.assertIn(part, outputs[0][0])

    def test_what_has_no_gradient_on_any_rank_is_not_stepped(self):
        for rule in ("sgd", "adamw"):
            with self.subTest(rule):
                self.assertEqual(fabric_test.run_ranks(without_gradients, 2, rule, 0), [True, True])
        # Ranks push by themselves with a staleness, and all that there is.
        with self.assertRaisesRegex(Exception, "parameter 1 has no gradient|parameter 2 has no gradient"):
            fabric_test.run_ranks(without_gradients, 2, "sgd", 1)

    def test_what_a_server_cannot_follow_is_an_error(self):
        for staleness in (0, 1):
            with self.subTest(staleness=staleness):
                self.assertEqual(fabric_test.run_ranks(changed, 2, staleness), [5, 5])

    def test_what_it_cannot_do_is_said(self):
        tensor = torch.nn.Parameter(torch.zeros(2))
        for arguments, error, part in (
                (dict(parameters=[tensor], staleness=-1), ValueError, "staleness is -1"),
                (dict(parameters=[]), ValueError, "no parameters"),
                (dict(optimizer=torch.optim.RMSprop([tensor])), ValueError, "not of RMSprop"),
                (dict(optimizer=torch.optim.Adam([tensor], amsgrad=True)), ValueError, "amsgrad"),
                (dict(optimizer=torch.optim.SGD([tensor], lr=1), lr=2), TypeError, "its own"),
                (dict(parameters=[tensor], optimizer="sgd", speed=1), TypeError, "no 'speed'")):
            with self.subTest(part), self.assertRaisesRegex(error, part):
                fabricshm.ParameterServer(**arguments)


if __name__ == "__main__":
    fabric_test.daemon_or_skip()
    fabric_test.main()
