"""Sums of symmetric matrices by the Python module, against NumPy in float64."""

import importlib.util
import os
import sys
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402

SIZES = (0, 1, 2, 33, 128)
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def matrix(rank, size, dtype):
    """Positive definite: a product of random numbers with itself, and a little of the identity."""
    part = numpy.random.default_rng(500 + rank).standard_normal((size, size))
    return (part @ part.T / max(size, 1) + numpy.eye(size)).astype(dtype)


def check_sum(got, world, size, dtype):
    wanted = sum(matrix(rank, size, dtype).astype("float64") for rank in range(world))
    numpy.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * 4 * world)
    numpy.testing.assert_array_equal(got, got.T)


def both_methods(rank, world):
    obstacles = set()
    with fabric_test.group_of(rank, world) as (arena, group):
        for size in SIZES:
            for dtype in TOLERANCE:
                mine = matrix(rank, size, dtype)
                full = group.all_reduce(mine.copy())
                packed = group.allreduce_symmetric(mine, out=numpy.empty_like(mine))
                numpy.testing.assert_array_equal(numpy.tril(packed.array), numpy.tril(full))
                assert packed[1:] == (
                    "packed", None, 0.0, 0.0, size * (size + 1) // 2 * mine.itemsize, 0), packed
                inside = arena.copy(mine)
                done = group.allreduce_symmetric(inside, method="cholesky")
                check_sum(inside, world, size, dtype)
                obstacles.add(done.obstacle)
                assert done.error < TOLERANCE[dtype], done
    return obstacles


def one_rank_is_not_definite(rank, world):
    results = []
    with fabric_test.group_of(rank, world) as (_, group):
        for _ in range(2):
            mine = matrix(rank, 9, "float64")
            if rank == 1:
                mine[0, 0] = -5
            full = group.all_reduce(mine.copy())
            done = group.allreduce_symmetric(mine, method="cholesky")
            numpy.testing.assert_array_equal(numpy.tril(done.array), numpy.tril(full))
            results.append((done.method, done.obstacle, done.fallbacks))
    return results


def without_lapack(rank, world):
    os.environ["FABRIC_LAPACK"] = "off"
    with fabric_test.group_of(rank, world) as (_, group):
        mine = matrix(rank, 9, "float32")
        done = group.allreduce_symmetric(mine, method="cholesky")
        check_sum(mine, world, 9, "float32")
        return done.method, done.obstacle


def wrong_arguments(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        square = numpy.eye(3)
        for error, call in (
            (ValueError, lambda: group.allreduce_symmetric(numpy.zeros((2, 3)))),
            (ValueError, lambda: group.allreduce_symmetric(numpy.zeros(9))),
            (ValueError, lambda: group.allreduce_symmetric(numpy.zeros((2, 2)), algorithm="fastest")),
            (ValueError, lambda: group.allreduce_symmetric(square, method="lu")),
            (ValueError, lambda: group.allreduce_symmetric(square, out=numpy.zeros((2, 2)))),
            (TypeError, lambda: group.allreduce_symmetric(square, out=numpy.zeros((3, 3), "f4"))),
            (fabricshm.InvalidArgumentError,
             lambda: group.allreduce_symmetric(square, max_error=-1.0)),
            (fabricshm.FabricError, lambda: group.allreduce_symmetric(numpy.eye(3, dtype="i4"))),
        ):
            try:
                call()
            except error:
                continue
            raise AssertionError(f"no {error.__name__}")
        return group.allreduce_symmetric(square).array[0, 0]


def torch_tensors(rank, world):
    import torch

    with fabric_test.group_of(rank, world) as (_, group):
        mine = torch.from_numpy(matrix(rank, 17, "float32"))
        group.allreduce_symmetric(mine)
        check_sum(mine.numpy(), world, 17, "float32")


class Symmetric(unittest.TestCase):
    def test_both_methods_give_the_sum(self):
        for world in (1, 2, 3, 4):
            for obstacles in fabric_test.run_ranks(both_methods, world):
                self.assertLessEqual(obstacles, {None, "no library"})
                self.assertEqual(len(obstacles), 1)

    def test_a_rank_without_a_factor_makes_all_send_triangles(self):
        for results in fabric_test.run_ranks(one_rank_is_not_definite, 3):
            self.assertEqual([(method, count) for method, _, count in results],
                             [("packed", 1), ("packed", 2)])
            self.assertIn(results[0][1], ("not definite", "no library"))

    def test_without_a_library_triangles_are_sent(self):
        self.assertEqual(fabric_test.run_ranks(without_lapack, 2), [("packed", "no library")] * 2)

    def test_wrong_arguments_raise_and_the_group_goes_on(self):
        self.assertEqual(fabric_test.run_ranks(wrong_arguments, 2), [2.0, 2.0])

    def test_torch_tensors_are_summed_in_place(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("no torch")
        fabric_test.run_ranks(torch_tensors, 2)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
