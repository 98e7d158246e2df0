"""Shared parameters with NumPy alone, against the formulas in NumPy's doubles."""

import os
import signal
import sys
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402

SHAPES = {"w": (300, 7), "b": 11, "scale": ()}


def gradient_of(rank, step, shape):
    random = numpy.random.default_rng([rank, step, *numpy.atleast_1d(shape)])
    return random.standard_normal(shape).astype("float32")


class Model:
    """AdamW as Loshchilov and Hutter have it."""

    def __init__(self):
        self.p = {name: numpy.zeros(shape) for name, shape in SHAPES.items()}
        self.m = {name: numpy.zeros(shape) for name, shape in SHAPES.items()}
        self.v = {name: numpy.zeros(shape) for name, shape in SHAPES.items()}
        self.steps = 0

    def step(self, gradients, lr=0.01, decay=0.1, b1=0.9, b2=0.999, eps=1e-8):
        self.steps += 1
        for name, g in gradients.items():
            self.m[name] = b1 * self.m[name] + (1 - b1) * g
            self.v[name] = b2 * self.v[name] + (1 - b2) * g**2
            mean = self.m[name] / (1 - b1**self.steps)
            root = numpy.sqrt(self.v[name] / (1 - b2**self.steps)) + eps
            self.p[name] = self.p[name] * (1 - lr * decay) - lr * mean / root


def merged(ranks, step, weights=None):
    weights = weights or [1 / len(ranks)] * len(ranks)
    return {name: sum(w * gradient_of(r, step, shape).astype("float64") for w, r in zip(weights, ranks))
            for name, shape in SHAPES.items()}


def compare(set, model):
    assert set.steps == model.steps, (set.steps, model.steps)
    for name in SHAPES:
        numpy.testing.assert_allclose(set.values[name], model.p[name], atol=2e-6, rtol=1e-5)
        numpy.testing.assert_allclose(set.states[name][0], model.m[name], atol=2e-6, rtol=1e-5)


def fill(set, rank, step):
    for name, shape in SHAPES.items():
        set.gradients[name][...] = gradient_of(rank, step, shape)


def train(rank, world):
    with fabric_test.group_of(rank, world) as (arena, group):
        set = fabricshm.Parameters(group, "model", SHAPES, copy="bfloat16")
        model = Model()
        for step in range(5):
            fill(set, rank, step)
            report = set.step(learning_rate=0.01, weight_decay=0.1)
            assert report.step == step + 1 and not report.skipped and report.norm != report.norm
            model.step(merged(range(world), step))
            compare(set, model)
            bits = fabricshm.bfloat16_from(set.values["w"])
            numpy.testing.assert_array_equal(set.copies["w"], bits)
        weights = [(r + 1) / sum(range(1, world + 1)) for r in range(world)]
        set.share(weights)
        for step in range(5, 8):
            fill(set, rank, step)
            g = merged(range(world), step, weights)
            norm = numpy.sqrt(sum((x**2).sum() for x in g.values()))
            report = set.step(learning_rate=0.01, weight_decay=0.1, weight=weights[rank], clip_norm=2.0)
            assert abs(report.norm - norm) < 1e-4 * norm, (report.norm, norm)
            model.step({name: x * min(1, 2 / norm) for name, x in g.items()})
            compare(set, model)
        set.close()
        group.barrier()  # all have closed it
        if rank == 0:
            arena.free_parameters("model")


def survive(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        set = fabricshm.Parameters(group, "model", SHAPES)
        model = Model()
        for step in range(3):
            fill(set, rank, step)
            set.step(learning_rate=0.01, weight_decay=0.1)
            model.step(merged(range(world), step))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        fill(set, rank, 3)
        try:
            set.step(learning_rate=0.01, weight_decay=0.1)
            raise AssertionError("a step with a dead rank went well")
        except fabricshm.PeerError as error:
            assert error.rank == 1, error.rank
        smaller = group.shrink()
        assert set.recover(smaller) is False
        compare(set, model)
        left = [r for r in range(world) if r != 1]
        set.step(learning_rate=0.01, weight_decay=0.1)
        model.step(merged(left, 3))
        compare(set, model)


def refusals(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        for words, call in {
            "no optimiser 'adamx'": lambda: fabricshm.Parameters(group, "m", SHAPES, "adamx"),
            "gradients are f32": lambda: fabricshm.Parameters(group, "m", SHAPES, gradients="int32"),
            "no dimension": lambda: fabricshm.Parameters(group, "m", {"w": (3, -1)}),
        }.items():
            try:
                call()
                raise AssertionError(words)
            except (ValueError, fabricshm.FabricError) as error:
                assert words in str(error) or "shape" in str(error), (words, str(error))
        set = fabricshm.Parameters(group, "m", SHAPES)
        try:
            set.step(learning_rat=1)
            raise AssertionError("learning_rat")
        except TypeError as error:
            assert "learning_rat" in str(error)
        try:
            set.step(learning_rate=-1)
            raise AssertionError("learning_rate -1")
        except fabricshm.FabricError as error:
            assert "learning_rate" in str(error)
        for words, call in {
            "item assignment": lambda: set.values.__setitem__("w", 0) if hasattr(set.values, "__setitem__")
            else exec("s.values['w'] = 0", {"s": set}),
            "no parameter 'wieght'": lambda: fabricshm.Parameters(group, "n", SHAPES, options={"wieght": 1}),
            "whole numbers": lambda: fabricshm.Parameters(group, "n", {"w": 2.9}),
            "fabricshm.Group": lambda: fabricshm.Parameters(None, "n", SHAPES),
        }.items():
            try:
                call()
                raise AssertionError(words)
            except (TypeError, ValueError) as error:
                assert words in str(error), (words, str(error))
        # Finite gradients that the scale makes infinite are skipped, too.
        for name in SHAPES:
            set.gradients[name][...] = 3e38
        assert set.step(learning_rate=1, scale=4, skip_nonfinite=True).skipped
        assert all((set.values[name] == 0).all() for name in SHAPES)
        set.close()
        try:
            set.values["w"]
            raise AssertionError("closed values")
        except fabricshm.ClosedError:
            pass
        try:
            set.step(learning_rate=1)
            raise AssertionError("closed")
        except fabricshm.ClosedError:
            pass


class ParametersTest(unittest.TestCase):
    def test_ranks_step_one_copy_as_the_formula_says(self):
        for world in (1, 2, 3):
            with self.subTest(world=world):
                fabric_test.run_ranks(train, world)

    def test_survivors_go_on_with_what_is_in_the_pool(self):
        fabric_test.Ranks(survive, 3).results(dead=(1,))

    def test_what_is_wrong_is_named(self):
        fabric_test.run_ranks(refusals, 1)

    def test_the_size_is_known_beforehand(self):
        million = {"w": 1_000_000}
        bytes = fabricshm.Parameters.bytes(million, 4)
        # Parameters, two states, and a gradient for each rank.
        self.assertLess(abs(bytes - 7 * 4_000_000), 1_000_000)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
