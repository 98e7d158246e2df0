"""Arrays over the arena: NumPy, DLPack, named tensors, regions, and how long memory lives."""

import gc
import os
import sys
import threading
import time
import unittest
import unittest.mock

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402

MIB = 1 << 20
DTYPES = "float64 float32 float16 int8 uint8 int32 uint32 int64 uint64".split()


class Arrays(unittest.TestCase):
    def setUp(self):
        self.session = fabricshm.Session(label="arrays_test")
        self.addCleanup(self.session.close)
        self.arena = self.session.arena("arrays", 64 * MIB)

    def test_an_array_of_every_type_holds_what_is_written(self):
        for name in DTYPES:
            with self.subTest(name):
                array = self.arena.empty((3, 5), name)
                array[...] = numpy.arange(15).reshape(3, 5)
                self.assertEqual(array.dtype.name, name)
                self.assertTrue((array == numpy.arange(15).reshape(3, 5)).all())
                self.assertIn(array, self.arena)

    def test_a_forked_child_is_told_that_the_arena_is_the_parents(self):
        def child():
            for make in (self.arena.zeros, self.arena.empty):
                try:
                    make(10)
                except fabricshm.FabricError as error:
                    if type(error) is not fabricshm.ClosedError:
                        return repr(error)
            return "closed"

        self.assertEqual(fabric_test.Ranks(lambda rank, world: child(), 1).results(), ["closed"])

    def test_a_shard_is_read_and_written_in_blocks_while_it_moves(self):
        shard = self.arena.create_shard("s", (64, 1024))
        with shard.write() as array:
            array[...] = 1
        reader = self.arena.open_shard("s", timeout=30)
        for version in range(1, 20):
            try:
                shard.move("here")
            except fabricshm.FabricError as error:
                self.assertIn("held by a live process", str(error))  # the last move is not over
            copy = reader.copy(version)
            self.assertEqual((copy.shape, reader.version), ((64, 1024), version))
            self.assertTrue((copy == version).all())
            with reader.read() as array, self.assertRaises(ValueError):
                array[0] = 0
            with shard.write() as array:
                array += 1
        with self.assertRaises(fabricshm.ChangedError), reader.read() as array:
            with shard.write() as mine:
                mine[...] = 0
        def write_meanwhile(*_):
            view = handle.read(0, 1000)
            with shard.write() as mine:
                mine[...] = 0
            return view

        handle = reader._handle
        reader._handle = unittest.mock.Mock(wraps=handle, read=write_meanwhile)
        with self.assertRaises(fabricshm.ChangedError):  # of an owner that never rests
            reader.copy(timeout=0.01)
        reader._handle = handle
        with self.assertRaises(fabricshm.DeniedError), reader.write():
            pass
        shard.free()
        with self.assertRaises(fabricshm.NotFoundError), reader.read():
            pass

    def test_an_empty_shape_and_a_scalar_shape_are_arrays(self):
        self.assertEqual(self.arena.empty((0, 4)).shape, (0, 4))
        self.assertEqual(self.arena.zeros(7).shape, (7,))
        self.assertEqual(self.arena.empty(()).shape, ())

    def test_ordinary_arrays_are_not_in_the_arena(self):
        self.assertNotIn(numpy.zeros(4), self.arena)

    def test_a_copy_equals_its_source(self):
        source = numpy.random.default_rng(1).normal(size=(17, 3))
        copy = self.arena.copy(source)
        self.assertIn(copy, self.arena)
        numpy.testing.assert_array_equal(copy, source)

    def test_types_are_those_of_numpy_but_tensors_are_those_of_the_fabric(self):
        self.assertEqual(self.arena.zeros(3, "complex128").dtype.name, "complex128")
        with self.assertRaisesRegex(TypeError, "objects"):
            self.arena.empty(3, object)
        with self.assertRaisesRegex(TypeError, "complex128"):
            self.arena.create_tensor("complex", 3, "complex128")

    def test_memory_of_dropped_arrays_is_used_again(self):
        for _ in range(100):
            array = self.arena.empty(8 * MIB, "uint8")
            array[::4096] = 1
        del array
        gc.collect()

    def test_a_full_arena_raises_out_of_memory(self):
        with self.assertRaises(fabricshm.OutOfMemoryError) as caught:
            self.arena.empty(1 << 30, "uint8")
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertEqual(caught.exception.name, "FABRICSHM_ENOMEM")

    def test_arrays_outlive_their_session(self):
        array = self.arena.zeros(MIB, "float32")
        view = array[10:20]
        self.session.close()
        del array
        view[...] = 3
        self.assertEqual(view.sum(), 30)

    def test_a_closed_session_says_so(self):
        self.session.close()
        self.assertTrue(self.session.closed)
        with self.assertRaises(fabricshm.ClosedError):
            self.arena.empty(3)
        with self.assertRaises(fabricshm.ClosedError):
            self.session.arena("other")

    def test_threads_allocate_side_by_side(self):
        failures = []

        def work(seed):
            for i in range(200):
                array = self.arena.empty(1 + (seed * 37 + i) % 5000, "int32")
                array.fill(seed)
                if (array != seed).any():
                    failures.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


class DLPack(unittest.TestCase):
    def setUp(self):
        self.session = fabricshm.Session()
        self.addCleanup(self.session.close)
        self.arena = self.session.arena("dlpack", 64 * MIB)

    def test_numpy_reads_the_same_memory(self):
        tensor = fabricshm.Tensor(self.arena.zeros((4, 6)))
        view = numpy.from_dlpack(tensor)
        tensor.array[2, 3] = 5
        self.assertEqual(view[2, 3], 5)
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))

    def test_a_round_trip_keeps_address_shape_strides_and_type(self):
        base = self.arena.zeros((6, 8), "int64")
        for array in (base, base[::2, 1:], base.T):
            again = fabricshm.from_dlpack(fabricshm.Tensor(array))
            self.assertEqual(again.array.ctypes.data, array.ctypes.data)
            self.assertEqual(again.array.strides, array.strides)
            self.assertEqual(again.shape, array.shape)
            self.assertEqual(again.dtype, "int64")
            self.assertTrue(again.array.flags.writeable)

    def test_memory_lives_as_long_as_the_consumer(self):
        view = numpy.from_dlpack(fabricshm.Tensor(self.arena.copy(numpy.arange(1000.0))))
        gc.collect()
        self.arena.empty(1000, "float64").fill(-1)
        numpy.testing.assert_array_equal(view, numpy.arange(1000.0))

    def test_a_capsule_that_nobody_takes_is_freed(self):
        array = self.arena.zeros(10)
        before = sys.getrefcount(array)
        capsule = fabricshm.Tensor(array).__dlpack__()
        self.assertGreater(sys.getrefcount(array), before)
        del capsule
        gc.collect()
        self.assertEqual(sys.getrefcount(array), before)

    def test_torch_shares_float32_and_bfloat16(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        array = self.arena.zeros(8)
        torch.from_dlpack(fabricshm.Tensor(array)).add_(2)
        self.assertEqual(array.sum(), 16)

        bits = self.arena.empty(4, "bfloat16")
        bits[...] = fabricshm.bfloat16_from([1.0, 2.5, -3.0, 0.0])
        shared = torch.from_dlpack(fabricshm.Tensor(bits, "bfloat16"))
        self.assertEqual(shared.dtype, torch.bfloat16)
        self.assertEqual(shared.tolist(), [1.0, 2.5, -3.0, 0.0])
        back = fabricshm.from_dlpack(shared)
        self.assertEqual(back.dtype, "bfloat16")
        self.assertEqual(back.array.ctypes.data, bits.ctypes.data)

    def test_bfloat16_rounds_to_nearest_even(self):
        values = [1.0, 1.00390625, 1.01171875, -2.7, float("inf"), 3.4e38, 1e-40]
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        expected = torch.tensor(values).to(torch.bfloat16).float().numpy()
        numpy.testing.assert_array_equal(
            fabricshm.bfloat16_to(fabricshm.bfloat16_from(values)), expected)
        self.assertTrue(numpy.isnan(fabricshm.bfloat16_to(fabricshm.bfloat16_from([numpy.nan]))))


class Named(unittest.TestCase):
    def setUp(self):
        self.session = fabricshm.Session()
        self.addCleanup(self.session.close)
        self.arena = self.session.arena("named", 64 * MIB)

    def test_a_peer_opens_a_tensor_by_name_and_sees_what_was_published(self):
        def reader(_rank, _world):
            with fabricshm.Session() as session:
                tensor = session.arena("named").open_tensor("weights", timeout=60)
                version = tensor.wait(1, timeout=60)
                return tensor.shape, tensor.dtype, tensor.array.tolist(), version

        ranks = fabric_test.Ranks(reader, 2)
        tensor = self.arena.create_tensor("weights", (2, 3), "float32")
        tensor.array[...] = [[1, 2, 3], [4, 5, 6]]
        self.assertEqual(tensor.publish(), 1)
        expected = ((2, 3), "float32", [[1, 2, 3], [4, 5, 6]], 1)
        self.assertEqual(ranks.results(), [expected, expected])

    def test_bfloat16_has_its_name(self):
        tensor = self.arena.create_tensor("halves", 16, "bfloat16")
        self.assertEqual(tensor.dtype, "bfloat16")
        self.assertEqual(tensor.array.dtype.name, "uint16")
        self.assertEqual(tensor.name, "halves")

    def test_floats_of_8_bits_have_their_names(self):
        for name in ("float8_e4m3fn", "float8_e5m2"):
            tensor = self.arena.create_tensor(name, 16, name)
            self.assertEqual(self.arena.open_tensor(name).dtype, name)
            self.assertEqual(tensor.array.dtype.name, "uint8")
            capsule = fabricshm.from_dlpack(tensor)  # by DLPack's code of the type
            self.assertEqual(capsule.dtype, name)

    def test_a_taken_name_is_refused(self):
        self.arena.create_tensor("once", 4)
        with self.assertRaises(fabricshm.ExistsError):
            self.arena.create_tensor("once", 4)

    def test_waiting_for_a_tensor_nobody_makes_times_out(self):
        with self.assertRaises(fabricshm.FabricTimeoutError) as caught:
            self.arena.open_tensor("never", timeout=0.05)
        self.assertIsInstance(caught.exception, TimeoutError)

    def test_what_may_be_held_of_the_pool_is_told(self):
        # The page that reports it is asked for while the session itself opens.
        end = time.monotonic() + 60
        while (quota := self.session.quotas()) is None and time.monotonic() < end:
            pass
        self.assertIsNotNone(quota)
        for limit in (quota.device, quota.user):  # this daemon has limits for neither
            self.assertEqual((limit.limit_bytes, limit.target_bytes, limit.seconds_left), (None, None, 0))

    def test_a_freed_tensor_is_gone(self):
        self.arena.create_tensor("brief", 4).free()
        with self.assertRaises(fabricshm.FabricTimeoutError):
            self.arena.open_tensor("brief", timeout=0.05)

    def test_a_region_is_found_by_id(self):
        region = self.arena.create_region(10000)
        region.array[:5] = [1, 2, 3, 4, 5]

        def reader(_rank, _world, identity):
            with fabricshm.Session() as session:
                return session.arena("named").open_region(identity).array[:5].tolist()

        self.assertEqual(fabric_test.run_ranks(reader, 1, region.id), [[1, 2, 3, 4, 5]])
        region.free()
        with self.assertRaises(fabricshm.NotFoundError):
            self.arena.open_region(region.id)


class Errors(unittest.TestCase):
    def test_without_a_daemon_the_error_names_the_socket(self):
        with self.assertRaisesRegex(fabricshm.DaemonError, "no-daemon-here") as caught:
            fabricshm.Session(socket="/tmp/no-daemon-here.sock")
        self.assertIsInstance(caught.exception, ConnectionError)
        self.assertLess(caught.exception.code, 0)

    def test_errors_survive_pickling(self):
        import pickle

        error = fabricshm.PeerError("gone", -6, "FABRICSHM_EPEER", 3)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), again.code, again.rank), ("gone", -6, 3))

    def test_an_arena_made_exclusively_must_not_exist(self):
        with fabricshm.Session() as session:
            arena = session.arena("mine", MIB, exclusive=True)
            with fabricshm.Session() as other, self.assertRaises(fabricshm.ExistsError):
                other.arena(arena.name, MIB, exclusive=True)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
