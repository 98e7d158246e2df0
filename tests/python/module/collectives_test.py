"""Collectives of the Python module, against NumPy."""

import os
import sys
import time
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402

COUNTS = (0, 1, 7, 1000, 70_001)
WORLDS = (1, 2, 3, 4)
DTYPES = "float64 float32 float16 bfloat16 int8 uint8 int32 uint32 int64 uint64".split()
DTYPES += ["float8_e4m3fn", "float8_e5m2"]


def float8_values(mantissa, bias, largest):
    """The finite numbers of a format, by code."""
    one = 1 << mantissa
    return numpy.array([
        (code % one + (one if code >= one else 0)) * 2.0 ** (max(code // one, 1) - bias - mantissa)
        for code in range(largest + 1)], "float32")


FLOAT8 = {"float8_e4m3fn": float8_values(3, 7, 0x7E), "float8_e5m2": float8_values(2, 15, 0x7B)}


def float8_from(values, dtype):
    """Codes of the nearest numbers, ties to even, of values that are not negative."""
    distance = numpy.abs(FLOAT8[dtype] - numpy.asarray(values, "float32")[:, None])
    nearest = distance == distance.min(axis=1, initial=numpy.inf, keepdims=True)
    odd = numpy.arange(len(FLOAT8[dtype])) % 2
    return numpy.where(nearest, odd, 2).argmin(axis=1).astype("uint8")


def data_of(rank, count, dtype):
    values = numpy.random.default_rng(1000 + rank).integers(1, 4, count)
    if dtype == "bfloat16":
        return fabricshm.bfloat16_from(values.astype("float32"))
    if dtype in FLOAT8:
        return float8_from(numpy.arange(4), dtype)[values]
    return values.astype(dtype)


def decoded(array, dtype):
    if dtype in FLOAT8:
        return FLOAT8[dtype][array]
    return fabricshm.bfloat16_to(array) if dtype == "bfloat16" else array


def placed(arena, array, inside):
    return arena.copy(array) if inside else array.copy()


def reduced(op, arrays):
    functions = {"sum": numpy.add, "min": numpy.minimum, "max": numpy.maximum,
                 "prod": numpy.multiply, "band": numpy.bitwise_and, "bor": numpy.bitwise_or,
                 "bxor": numpy.bitwise_xor, "land": numpy.logical_and, "lor": numpy.logical_or,
                 "lxor": numpy.logical_xor}
    if op == "avg":
        return (sum(a.astype("float64") for a in arrays) / len(arrays)).astype(arrays[0].dtype)
    result = arrays[0].copy()
    for array in arrays[1:]:
        result = functions[op](result, array).astype(result.dtype)
    return result


def check_all_reduce(group, arena, rank, world, dtype, op):
    for count in COUNTS:
        for inside in (True, False):
            parts = [decoded(data_of(r, count, dtype), dtype) for r in range(world)]
            mine = placed(arena, data_of(rank, count, dtype), inside)
            result = group.all_reduce(mine, op=op, dtype=dtype)
            wanted = reduced(op, parts)
            if dtype in FLOAT8:  # rounded once
                wholes = FLOAT8[dtype][float8_from(numpy.arange(3 * world + 1), dtype)]
                wanted = wholes[wanted.astype(int)]
            numpy.testing.assert_array_equal(
                decoded(result, dtype), wanted, f"{dtype} {op} {count} {inside}")


def all_reduce_of_every_type(rank, world):
    with fabric_test.group_of(rank, world) as (arena, group):
        for dtype in DTYPES:
            check_all_reduce(group, arena, rank, world, dtype, "sum")
            check_all_reduce(group, arena, rank, world, dtype, "max")


def all_reduce_with_every_operation(rank, world):
    with fabric_test.group_of(rank, world) as (arena, group):
        for op in "min prod band bor bxor land lor lxor".split():
            check_all_reduce(group, arena, rank, world, "int32", op)
        for dtype in ("float32", "float64"):
            count = 1000
            parts = [data_of(r, count, dtype) * 0.5 for r in range(world)]
            result = group.all_reduce(parts[rank].copy(), op="avg")
            numpy.testing.assert_allclose(result, reduced("avg", parts), rtol=1e-6)


def scans(rank, world):
    with fabric_test.group_of(rank, world) as (arena, group):
        for count in COUNTS:
            for op in ("sum", "max", "land", "lxor"):
                parts = [data_of(r, count, "int32") - 1 for r in range(world)]
                mine = placed(arena, parts[rank], count % 2 == 0)
                numpy.testing.assert_array_equal(
                    group.scan(mine.copy(), op=op), reduced(op, parts[:rank + 1]))
                got = group.exscan(mine, op=op, out=numpy.full(count, -7, "int32"))
                before = reduced(op, parts[:rank]) if rank else numpy.full(count, -7, "int32")
                numpy.testing.assert_array_equal(got, before)


def values_with_an_index(rank, world):
    with fabric_test.group_of(rank, world) as (arena, group):
        for name in ("float64", "float32", "int32", "int64"):
            dtype = fabricshm.located(name)
            values = [data_of(r, 1000, name) for r in range(world)]
            mine = arena.zeros(1000, dtype)
            mine["value"], mine["index"] = values[rank], 100 - rank
            for op, best in (("minloc", numpy.min), ("maxloc", numpy.max)):
                got = group.all_reduce(mine, op=op, out=numpy.empty(1000, dtype))
                wanted = best(values, axis=0)
                numpy.testing.assert_array_equal(got["value"], wanted)
                lowest = [min(100 - r for r in range(world) if values[r][i] == wanted[i])
                          for i in range(1000)]
                numpy.testing.assert_array_equal(got["index"], lowest)
            numpy.testing.assert_array_equal(group.broadcast(mine.copy())["value"], values[0])


def data_movement(rank, world):
    with fabric_test.group_of(rank, world) as (arena, group):
        for count in COUNTS:
            parts = [data_of(r, count, "float32") + r for r in range(world)]
            whole = numpy.concatenate(parts) if parts else numpy.empty(0)
            mine = placed(arena, parts[rank], count % 2 == 0)
            numpy.testing.assert_array_equal(group.all_gather(mine).ravel(), whole)

            for root in {0, world - 1}:
                got = group.broadcast(placed(arena, parts[rank], True), root=root)
                numpy.testing.assert_array_equal(got, parts[root])
                got = group.gather(mine, root=root)
                if rank == root:
                    numpy.testing.assert_array_equal(got.ravel(), whole)
                out = numpy.empty(count, "float32")
                group.scatter(out, whole.astype("float32") if rank == root else None, root=root)
                numpy.testing.assert_array_equal(out, parts[rank])
                got = group.reduce(parts[rank].copy(), root=root)
                if rank == root:
                    numpy.testing.assert_array_equal(got, sum(parts))

            matrix = numpy.stack([parts[rank] + 100 * to for to in range(world)])
            got = group.all_to_all(matrix.astype("float32")).reshape(world, count)
            for source in range(world):
                numpy.testing.assert_array_equal(got[source], parts[source] + 100 * rank)
            wide = numpy.stack([parts[rank] * (to + 1) for to in range(world)]).astype("float32")
            got = group.reduce_scatter(wide)
            numpy.testing.assert_array_equal(got, sum(parts) * (rank + 1))
        group.barrier()


def uneven_parts(rank, world):
    counts = [3 * r + 1 for r in range(world)]
    whole = numpy.arange(sum(counts), dtype="int64")
    starts = numpy.cumsum([0, *counts])
    mine = whole[starts[rank]:starts[rank + 1]].copy()
    with fabric_test.group_of(rank, world) as (_, group):
        numpy.testing.assert_array_equal(group.all_gather(mine, counts=counts), whole)
        got = group.gather(mine, root=0, counts=counts)
        if rank == 0:
            numpy.testing.assert_array_equal(got, whole)
        out = numpy.empty(counts[rank], "int64")
        group.scatter(out, whole if rank == 0 else None, counts=counts)
        numpy.testing.assert_array_equal(out, mine)
        got = group.reduce_scatter(whole.copy(), counts=counts)
        numpy.testing.assert_array_equal(got, mine * world)
        sent = [rank + to for to in range(world)]
        received = [source + rank for source in range(world)]
        got = group.all_to_all(
            numpy.full(sum(sent), rank, "int64"), counts=sent, recv_counts=received)
        expected = numpy.repeat(numpy.arange(world), received)
        numpy.testing.assert_array_equal(got, expected)


def requests(rank, world):
    with fabric_test.group_of(rank, world) as (arena, group):
        arrays = [arena.empty(50_000) for _ in range(6)]
        for i, array in enumerate(arrays):
            array.fill(rank + i)
        pending = [group.all_reduce(array, async_op=True) for array in arrays]
        for i, (array, request) in enumerate(zip(arrays, pending)):
            request.wait()
            assert request.test()
            expected = sum(r + i for r in range(world))
            assert (array == expected).all(), (array[0], expected)
        # Dropped requests run on, and keep their arrays.
        for _ in range(5):
            group.all_reduce(numpy.ones(1000, "float32"), async_op=True)
        group.barrier()


def messages(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        right, left = (rank + 1) % world, (rank - 1) % world
        for count in COUNTS:
            out = numpy.empty(count, "int32")
            receiving = group.recv(out, left, tag=5, async_op=True)
            sending = group.send(numpy.full(count, rank, "int32"), right, tag=5, async_op=True)
            sending.wait()
            receiving.wait()
            assert (out == left).all()
            assert receiving.peer == left
        if rank == 0:
            seen = set()
            for _ in range(world - 1):
                out = numpy.empty(3, "int64")
                source = group.recv(out)
                assert (out == source).all()
                seen.add(source)
            assert seen == set(range(1, world))
        else:
            group.send(numpy.full(3, rank, "int64"), 0)
        group.barrier()


def foreign_arrays(rank, world):
    import torch

    with fabric_test.group_of(rank, world) as (_, group):
        tensor = torch.full((5, 3), float(rank + 1))
        group.all_reduce(tensor)
        expected = float(sum(range(1, world + 1)))
        assert (tensor == expected).all()
        half = torch.full((9,), 0.5, dtype=torch.bfloat16)
        group.all_reduce(half)
        assert (half == 0.5 * world).all()


def bad_arguments(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        array = numpy.zeros((4, 4), "float32")
        for expected, call in [
            (ValueError, lambda: group.all_reduce(array.T[1:])),
            (ValueError, lambda: group.all_reduce(array, op="median")),
            (ValueError, lambda: group.all_reduce(array, algorithm="fastest")),
            (ValueError, lambda: group.all_reduce(array, trigger="now")),
            (TypeError, lambda: group.all_reduce(array.astype("complex64"))),
            (TypeError, lambda: group.all_reduce([1, 2])),
            (TypeError, lambda: group.all_reduce(array, out=numpy.zeros((4, 4)))),
            (ValueError, lambda: group.all_reduce(array, out=numpy.zeros(3, "float32"))),
            (ValueError, lambda: group.broadcast(array, root=world)),
            (ValueError, lambda: group.all_reduce(numpy.broadcast_to(array, (4, 4)))),
        ]:
            try:
                call()
            except expected:
                continue
            raise AssertionError(f"no {expected.__name__}")
        for op, words in (("band", "integers"), ("minloc", "index"), ("lor", "integers")):
            try:
                group.all_reduce(array, op=op)
            except fabricshm.FabricError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{op} of floats")
        try:
            group.scan(array, op="avg")
        except fabricshm.InvalidArgumentError as error:
            assert "average" in str(error), error
        else:
            raise AssertionError("the average of a scan")
        try:
            fabricshm.located("uint8")
        except TypeError:
            pass
        else:
            raise AssertionError("bytes with an index")
        group.all_reduce(array)  # the group is as it was


class Collectives(unittest.TestCase):
    def run_in(self, worlds, function):
        for world in worlds:
            with self.subTest(world=world):
                fabric_test.run_ranks(function, world)

    def test_all_reduce_of_every_type_equals_numpy(self):
        self.run_in(WORLDS, all_reduce_of_every_type)

    def test_all_reduce_with_every_operation_equals_numpy(self):
        self.run_in((1, 3), all_reduce_with_every_operation)

    def test_scans_equal_numpy(self):
        self.run_in((1, 2, 4), scans)

    def test_the_best_value_comes_with_its_index(self):
        self.run_in((1, 3), values_with_an_index)

    def test_moving_data_equals_numpy(self):
        self.run_in(WORLDS, data_movement)

    def test_parts_may_differ_in_size(self):
        self.run_in((1, 2, 4), uneven_parts)

    def test_requests_run_in_order_beside_python(self):
        self.run_in((1, 2, 3), requests)

    def test_messages_arrive_by_tag_and_from_anybody(self):
        self.run_in((2, 3), messages)

    def test_torch_tensors_are_taken_without_a_copy(self):
        self.run_in((2,), foreign_arrays)

    def test_bad_arguments_leave_the_group_as_it_was(self):
        self.run_in((1,), bad_arguments)


def dies_before_the_second(rank, world):
    with fabric_test.group_of(rank, world, timeout=60) as (arena, group):
        array = arena.zeros(100_000)
        group.all_reduce(array)
        if rank == 1:
            os._exit(3)
        started = time.monotonic()
        try:
            while True:
                group.all_reduce(array)
        except fabricshm.PeerError as error:
            seconds = time.monotonic() - started
            assert error.rank == 1, error
            assert "rank 1" in str(error)
        group.quiesce(timeout=60)
        array.fill(7)
        assert (array == 7).all()
        survivors = group.shrink(timeout=60)
        assert survivors.world == world - 1
        array.fill(1)
        survivors.all_reduce(array)
        assert (array == world - 1).all()
        return seconds


def stays_away(rank, world):
    with fabric_test.group_of(rank, world) as (_, group):
        if rank == 1:
            # Not in the operation, but alive until the others have seen the timeout.
            os.read(int(os.environ["FABRIC_TEST_GATE"]), 1)
            return None
        try:
            group.all_reduce(numpy.zeros(10), timeout=0.3)
        except fabricshm.FabricTimeoutError:
            os.write(int(os.environ["FABRIC_TEST_OPEN"]), b"x")
            return "timed out"
        return "no error"


def other_threads_run(rank, world):
    import threading

    counted = 0
    with fabric_test.group_of(rank, world) as (_, group):
        done = threading.Event()

        def wait():
            group.barrier()
            done.set()

        if rank == 0:
            thread = threading.Thread(target=wait)
            thread.start()
            while counted < 100_000:  # would never get here if the wait held the lock
                counted += 1
            group.send(numpy.zeros(1), 1)
            thread.join()
        else:
            group.recv(numpy.zeros(1), 0)
            group.barrier()
    return counted


class Failures(unittest.TestCase):
    def test_survivors_learn_who_died_and_go_on_without_it(self):
        results = fabric_test.Ranks(dies_before_the_second, 3).results(dead=(1,))
        self.assertIsNone(results[1])
        for seconds in (results[0], results[2]):
            self.assertLess(seconds, 20)

    def test_a_rank_that_stays_away_is_a_timeout(self):
        gate, opener = os.pipe()
        os.environ["FABRIC_TEST_GATE"], os.environ["FABRIC_TEST_OPEN"] = str(gate), str(opener)
        self.assertEqual(fabric_test.run_ranks(stays_away, 2), ["timed out", None])

    def test_other_threads_run_while_one_waits(self):
        self.assertEqual(fabric_test.run_ranks(other_threads_run, 2)[0], 100_000)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
