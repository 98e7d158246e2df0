"""Where shared parameters lie: in the pool, or in the host's own memory where the pool is far."""

import os
import sys
import tempfile
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402

SHAPES = {"w": (700, 9)}
BYTES = 256 << 20
MACHINE = """
name = "two_nodes"
nodes = ["left", "right"]
[[device]]
name = "far"
latency = "9us"
bandwidth = "0.4GB/s"
[[link]]
name = "a"
from = "left"
to = "far"
[[link]]
name = "b"
from = "right"
to = "far"
"""


def code_of(call):
    try:
        call()
    except fabricshm.FabricError as problem:
        return problem.name
    return ""


def choose(rank, world, node=None):
    """Of the pool and local memory; a step in each, and which one was taken."""
    if node is not None:
        os.environ["FABRIC_EMULATED_NODE"] = str(node[rank])
    with fabricshm.Session() as session:
        pool = session.arena("job", bytes=BYTES)
        near = session.arena("job.local", bytes=BYTES, local=True)
        again = code_of(lambda: session.arena("job", local=True))
        with pool.join("ranks", rank, world) as group:
            held = fabricshm.Parameters(group, "model", SHAPES, "sgd", arena=[pool, near])
            held.gradients["w"][...] = rank + 1
            held.step(learning_rate=1)
            expected = -sum(range(1, world + 1)) / world
            numpy.testing.assert_array_equal(held.values["w"], numpy.full(SHAPES["w"], expected, "float32"))
            kept = held.values["w"]
            taken = held.arena.name
            refused = ""
            if taken == "job":
                refused = code_of(lambda: fabricshm.Parameters(group, "near", SHAPES, "sgd", arena=near))
            held.close()
            group.barrier()
            if rank == 0:
                held.arena.free_parameters("model")
            group.barrier()
        near.close()
        pool.close()
    assert kept[0, 0] == expected  # its mapping goes with the last array
    return taken, refused, again


def again(rank, world):
    """Opened a second time, from a list in which another arena would be as fast or faster."""
    with fabricshm.Session() as session:
        first = session.arena("first", bytes=BYTES)
        second = session.arena("second", bytes=BYTES)
        with first.join("ranks", rank, world) as group:
            held = fabricshm.Parameters(group, "model", SHAPES, "sgd", arena=second)
            held.gradients["w"][...] = 1
            held.step(learning_rate=1)
            busy = code_of(lambda: fabricshm.Parameters(group, "model", SHAPES, "sgd", arena=second))
            held.close()
            group.barrier()
            held = fabricshm.Parameters(group, "model", SHAPES, "sgd", arena=[first, second])
            return held.arena.name, held.steps, float(held.values["w"][0, 0]), busy


def survive_measuring(rank, world):
    with fabricshm.Session() as session:
        first = session.arena("first", bytes=BYTES)
        second = session.arena("second", bytes=BYTES)
        group = first.join("ranks", rank, world)
        if rank == 0:
            group.barrier()
            os.kill(os.getpid(), 9)
        try:
            group.barrier()
            fabricshm.Parameters(group, "model", SHAPES, "sgd", arena=[first, second])
            raise AssertionError("measured without rank 0")
        except fabricshm.PeerError:
            pass
        smaller = group.shrink()
        held = fabricshm.Parameters(smaller, "model", SHAPES, "sgd", arena=[first, second])
        held.gradients["w"][...] = 1
        held.step(learning_rate=1)
        return float(held.values["w"][0, 0])


def survive(rank, world):
    with fabricshm.Session() as session:
        pool = session.arena("job", bytes=BYTES)
        near = session.arena("job.local", bytes=BYTES, local=True)
        group = pool.join("ranks", rank, world)
        held = fabricshm.Parameters(group, "model", SHAPES, "sgd", arena=near)
        held.gradients["w"][...] = 1
        held.step(learning_rate=1)
        if rank == 0:
            os.kill(os.getpid(), 9)
        try:
            held.step(learning_rate=1)
            raise AssertionError("the step went without rank 0")
        except fabricshm.PeerError:
            pass
        smaller = group.shrink()
        held.recover(smaller)
        held.step(learning_rate=1)
        return float(held.values["w"][0, 0]), held.steps


def ranks(function, world, *arguments, dead=(), options=()):
    with fabric_test.daemon_or_skip(options=["--pool-backend", "emu", *options]):
        return fabric_test.Ranks(function, world, *arguments).results(dead=dead)


class Placement(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.machine = os.path.join(folder.name, "two_nodes.toml")
        with open(self.machine, "w") as file:
            file.write(MACHINE)

    def test_local_memory_is_chosen_where_the_pool_is_far(self):
        found = ranks(choose, 2, (0, 0), options=["--emulate", self.machine])
        self.assertEqual(found, [("job.local", "", "FABRICSHM_EEXIST")] * 2)

    def test_the_first_is_chosen_where_both_are_the_same_memory(self):
        for taken, refused, again in ranks(choose, 2):
            self.assertIn(taken, ("job", "job.local"))  # noise may decide; both are right
            self.assertEqual((refused, again), ("", ""))

    def test_ranks_on_different_nodes_have_no_local_memory_in_common(self):
        found = ranks(choose, 2, (0, 1), options=["--emulate", self.machine])
        self.assertEqual(found, [("job", "FABRICSHM_EUNSUPPORTED", "FABRICSHM_EEXIST")] * 2)

    def test_a_set_is_found_where_it_is_and_not_opened_twice(self):
        self.assertEqual(ranks(again, 2), [("second", 1, -1.0, "FABRICSHM_EBUSY")] * 2)

    def test_survivors_of_a_death_in_a_measurement_can_measure(self):
        self.assertEqual(ranks(survive_measuring, 3, dead=(0,))[1:], [-1.0, -1.0])

    def test_a_set_in_local_memory_survives_a_rank(self):
        found = ranks(survive, 3, dead=(0,))
        # Rank 0 died before its second gradient was complete, or after: either way all agree.
        self.assertEqual(found[1], found[2])
        self.assertEqual(found[1][0], -float(found[1][1]))


if __name__ == "__main__":
    fabric_test.main()
