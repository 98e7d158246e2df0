"""fabricshm.data against the real service: listings, views, copies, arrays, fork, pickle, restarts."""

import gc
import io
import os
import pickle
import random
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402
from data_service import DataService  # noqa: E402

import numpy  # noqa: E402

import fabricshm  # noqa: E402
import fabricshm.data as data  # noqa: E402

SERVICE = DataService()
NUMBERS = random.Random(7)


def npy(array):
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


FILES = {
    "a": b"",
    "b.bin": NUMBERS.randbytes(28_000),
    "deep/c.bin": NUMBERS.randbytes(100),
    "fortran.npy": npy(numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4))),
    "large": NUMBERS.randbytes(9 * 1024 * 1024 + 5),
    "rows.npy": npy(numpy.arange(10, dtype="int32").reshape(2, 5)),
}
for name, content in FILES.items():
    SERVICE.write(name, content)


def in_child(function):
    """What it returns, in a forked process."""
    return fabric_test.Ranks(lambda rank, world: function(), 1).results()[0]


class Reads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = data.open("/files")

    def test_a_listing_has_names_and_sizes_in_order(self):
        self.assertEqual(list(self.files.names), sorted(FILES))
        self.assertEqual(self.files.sizes.tolist(), [len(FILES[name]) for name in sorted(FILES)])
        self.assertEqual(self.files.index("b.bin"), 1)
        self.assertIn("deep/c.bin", self.files)
        self.assertNotIn("deep", self.files)
        self.assertEqual(self.files.names[-1], "rows.npy")
        entry = self.files.entry("b.bin")
        self.assertEqual((entry["name"], entry["bytes"], entry["folder"]), ("b.bin", 28_000, False))
        self.assertAlmostEqual(entry["mtime"], (SERVICE.folder / "b.bin").stat().st_mtime, places=3)
        flat = data.open("/files", recursive=False)
        self.assertTrue(flat.entry("deep")["folder"])

    def test_a_view_is_read_only_and_pins_until_it_is_released(self):
        before = data.stats()["pinned"]
        with self.files["b.bin"] as view:
            self.assertEqual(view, FILES["b.bin"])
            self.assertTrue(view.readonly)
            self.assertEqual(data.stats()["pinned"], before + 1)
            part = view[5:10]
        self.assertEqual(data.stats()["pinned"], before + 1)  # a part of it is left
        self.assertEqual(part, FILES["b.bin"][5:10])
        part.release()
        self.assertEqual(data.stats()["pinned"], before)
        self.assertEqual(len(self.files["a"]), 0)

    def test_large_files_come_as_copies_and_reads_as_bytes(self):
        before = data.stats()["pinned"]
        view = self.files["large"]
        self.assertEqual(view, FILES["large"])
        self.assertEqual(data.stats()["pinned"], before)
        middle = 4 * 1024 * 1024 - 7
        self.assertEqual(self.files.read("large", middle, 20), FILES["large"][middle : middle + 20])
        self.assertEqual(self.files.read("b.bin", 27_999), FILES["b.bin"][-1:])
        self.assertEqual(self.files.read("b.bin", 28_000), b"")

    def test_arrays_lie_on_the_same_bytes(self):
        before = data.stats()["pinned"]
        rows = data.array(self.files, "rows.npy")
        numpy.testing.assert_array_equal(rows, numpy.arange(10, dtype="int32").reshape(2, 5))
        self.assertFalse(rows.flags.writeable)
        self.assertEqual(data.stats()["pinned"], before + 1)
        numpy.testing.assert_array_equal(
            data.array(self.files, "fortran.npy"), numpy.arange(12.0).reshape(3, 4))
        raw = data.array(self.files, "b.bin", "uint16", (7000, 2))
        self.assertEqual(raw.tobytes(), FILES["b.bin"])
        shared = numpy.from_dlpack(data.tensor(self.files, "rows.npy"))
        self.assertEqual(shared.ctypes.data, rows.ctypes.data)
        del rows, raw, shared
        gc.collect()
        self.assertEqual(data.stats()["pinned"], before)

    def test_one_file_is_listed_without_its_folder(self):
        alone = data.DataSet("/files/deep/c.bin", one_file=True)
        self.assertEqual((list(alone.names), len(alone)), (["c.bin"], 1))
        self.assertEqual(alone[0], FILES["deep/c.bin"])
        self.assertEqual(alone.entry(0), {**self.files.entry("deep/c.bin"), "name": "c.bin"})
        with self.assertRaises(fabricshm.NotFoundError):
            data.DataSet("/files/deep/none", one_file=True)
        with self.assertRaises(fabricshm.InvalidArgumentError):
            data.DataSet("/files/deep", one_file=True)
        self.assertEqual(pickle.loads(pickle.dumps(alone))["c.bin"], FILES["deep/c.bin"])
        SERVICE.kill()
        self.assertEqual(alone[0], FILES["deep/c.bin"])
        SERVICE.start()
        self.assertEqual(alone[0], FILES["deep/c.bin"])

    def test_files_of_one_kind_are_stacked_in_one_call(self):
        for number in range(6):
            SERVICE.write(f"stacked/{number}.npy", npy(numpy.full((2, 3), number, "int32")))
        SERVICE.write("stacked/6.npy", npy(numpy.zeros((3, 2), "int32")))
        SERVICE.write("stacked/7.npy", npy(numpy.zeros((2, 4), "int32")))
        SERVICE.write("stacked/8.npy", npy(numpy.asfortranarray(numpy.zeros((2, 3), "int32"))))
        files = data.open("/files/stacked")
        for order in ([3, 0, 5], [2], [1, 1]):
            numpy.testing.assert_array_equal(
                data.stack(files, order), [numpy.full((2, 3), number) for number in order])
        room = numpy.empty((2, 2, 3), "int32")
        self.assertIs(data.stack(files, [4, 5], room), room)
        self.assertEqual(room[:, 0, 0].tolist(), [4, 5])
        for other in (6, 7, 8):
            with self.assertRaisesRegex(ValueError, f"{other}.npy is another kind of array than 0.npy"):
                data.stack(files, [0, other])
        for bad in (numpy.empty((2, 3, 2), "int32"), numpy.empty((2, 2, 3), "int64"), numpy.empty((2, 2, 6), "int32")[:, :, ::2]):
            with self.assertRaisesRegex(ValueError, "contiguous"):
                data.stack(files, [0, 1], bad)
        with self.assertRaisesRegex(ValueError, "Fortran"):
            data.stack(files, [8])
        numpy.testing.assert_array_equal(data.stack(files, [-9, 1]), data.stack(files, [0, 1]))
        for beyond in ([0, 9], [-10], [0, 99]):
            with self.assertRaisesRegex(IndexError, "a set of 9 files has no such number"):
                data.stack(files, beyond)
        for wrong in ([1.0], ["0.npy"], [None]):
            with self.assertRaisesRegex(TypeError, "takes the numbers of files"):
                data.stack(files, wrong)
        self.assertEqual(data.stats()["pinned"], 0)

    def test_what_is_not_there_is_said_by_name(self):
        with self.assertRaisesRegex(fabricshm.NotFoundError, "nothing"):
            self.files["nothing"]
        with self.assertRaises(IndexError):
            self.files[99]
        for wrong in (None, 1.5, (1, 2)):
            with self.assertRaisesRegex(TypeError, "by number, name or slice, not by"):
                self.files[wrong]
            with self.assertRaises(TypeError):
                self.files.read(wrong)
            self.assertNotIn(wrong, self.files)
        with self.assertRaises(TypeError):
            self.files.names[None]
        with self.assertRaises(fabricshm.NotFoundError):
            data.open("/nowhere")
        with self.assertRaisesRegex(fabricshm.DaemonError, "/nonexistent/data.sock"):
            data.open("/files", socket="/nonexistent/data.sock")
        with self.assertRaises(fabricshm.InvalidArgumentError):
            data.open("files")

    def test_a_slice_is_a_list_of_views(self):
        views = self.files[1:3]
        self.assertEqual([bytes(view) for view in views], [FILES["b.bin"], FILES["deep/c.bin"]])
        self.assertEqual([bytes(view) for view in self.files[-1::-4]], [FILES["rows.npy"], FILES["b.bin"]])
        self.assertEqual(self.files[7:], [])

    def test_a_file_can_be_opened_by_its_own_path(self):
        alone = data.open("/files/deep/c.bin")
        self.assertEqual(list(alone.names), ["c.bin"])
        self.assertEqual(bytes(alone[0]), FILES["deep/c.bin"])
        self.assertEqual(pickle.loads(pickle.dumps(alone)).read("c.bin"), FILES["deep/c.bin"])

    def test_a_replaced_file_is_another_version(self):
        SERVICE.write("changing/x", b"first")
        files = data.open("/files/changing")
        SERVICE.write("changing/x", b"second one")
        with self.assertRaises(fabricshm.FileChangedError):
            files[0]
        SERVICE.command("refresh", "/files/changing")
        self.assertEqual(data.open("/files/changing")[0], b"second one")

    def test_what_is_dropped_from_the_cache_alone_is_listed_no_more(self):
        for number in range(4):
            with data.create(f"/prepared/dropped/{number}") as out:
                out.write(b"x")
        files = data.open("/prepared/dropped")
        held = files["3"]
        SERVICE.command("drop", "/prepared/dropped")
        self.assertEqual(list(data.open("/prepared/dropped").names), ["3"])  # a view holds it
        with self.assertRaises(fabricshm.FileChangedError):
            files["0"]
        with data.create("/prepared/dropped/0") as out:
            out.write(b"again")
        self.assertEqual(data.open("/prepared/dropped")["0"], b"again")
        self.assertEqual(held, b"x")
        held.release()

    def test_a_reader_of_what_is_dropped_meanwhile_is_told_that_it_is_gone(self):
        path = "/prepared/meanwhile/x"

        def reader():
            seen = set()
            while "stop" not in seen:
                try:
                    seen.add(bytes(data.DataSet(path, one_file=True)[0]).decode())
                except (fabricshm.NotFoundError, fabricshm.FileChangedError):
                    pass
                except fabricshm.FabricError as error:
                    if error.name != "FABRICSHM_EBUSY":
                        return f"{type(error).__name__}: {error}"
            return "stopped"

        ranks = fabric_test.Ranks(lambda rank, world: reader(), 2)
        contents, limit = [b"x"] * 100 + [b"stop"], time.monotonic() + 60
        while contents and time.monotonic() < limit:
            try:
                with data.create(path) as out:
                    out.write(contents[0])
                contents.pop(0)
            except fabricshm.ExistsError:
                pass  # a reader held it when it was to go
            if contents:
                SERVICE.command("drop", "/prepared/meanwhile")
        self.assertEqual(contents, [])
        self.assertEqual(ranks.results(), ["stopped"] * 2)

    def test_a_forked_child_reads_by_itself(self):
        held = self.files["b.bin"]

        def child():
            same = held == FILES["b.bin"] and self.files["deep/c.bin"] == FILES["deep/c.bin"]
            held.release()  # the parent's: nothing happens
            return same and self.files["b.bin"] == FILES["b.bin"], data.stats()["pinned"]

        self.assertEqual(in_child(child), (True, 0))
        self.assertEqual(held, FILES["b.bin"])
        held.release()

    def test_a_pickled_set_has_the_same_files_or_is_refused(self):
        SERVICE.write("pickled/x", b"1")
        files = data.open("/files/pickled")
        packed = pickle.dumps(files)
        self.assertEqual(pickle.loads(packed)["x"], b"1")
        SERVICE.write("pickled/y", b"2")
        SERVICE.command("refresh", "/files/pickled")
        with self.assertRaises(fabricshm.FileChangedError):
            pickle.loads(packed)

    def test_a_killed_service_leaves_views_and_comes_back(self):
        SERVICE.write("kept/x", b"in the pool")
        SERVICE.write("kept/y", b"not yet")
        files = data.open("/files/kept", timeout=30)
        hurried = data.open("/files/kept", timeout=30)
        hurried._timeout = 0.2  # which the open itself might pass on a slow machine
        held = files["x"]
        SERVICE.kill()
        self.assertEqual(held, b"in the pool")
        self.assertEqual(files["x"], b"in the pool")
        with self.assertRaises(fabricshm.DaemonError):
            hurried["y"]
        SERVICE.start()
        self.assertEqual(files["y"], b"not yet")
        self.assertEqual(files["x"], b"in the pool")
        files.plan(seed=3)  # by a number that the new service did not give
        held.release()

    def test_a_file_is_written_as_a_whole_or_not_at_all(self):
        with data.create("/results/a.npy") as out:
            out.write(FILES["rows.npy"][:40])
            out.write(memoryview(FILES["rows.npy"])[40:])
            self.assertFalse((SERVICE.results / "a.npy").exists())
        self.assertEqual((SERVICE.results / "a.npy").read_bytes(), FILES["rows.npy"])
        self.assertEqual(data.array(data.open("/results"), "a.npy").tolist(), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
        with self.assertRaises(fabricshm.ExistsError):
            data.create("/results/a.npy")
        with self.assertRaises(ZeroDivisionError):
            with data.create("/results/b.npy") as out:
                out.write(b"x")
                1 / 0
        self.assertFalse((SERVICE.results / "b.npy").exists())
        with self.assertRaises(fabricshm.DeniedError):
            data.create("/files/new")

    def test_the_order_of_an_epoch_is_taken(self):
        files = data.open("/files/deep")
        files.plan(seed=3, epoch=1, rank=0, world=2)
        with self.assertRaises(fabricshm.InvalidArgumentError):
            files.plan(rank=2, world=2)


if __name__ == "__main__":
    fabric_test.main()
