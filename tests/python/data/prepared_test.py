"""data.Dataset(prep=...): samples that a function makes once for all processes of the host, kept in the pool."""

import functools
import os
import pathlib
import random
import signal
import sys
import unittest
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch  # noqa: E402
    from torch.utils.data import DataLoader  # noqa: E402
except ImportError:
    fabric_test.skip("no PyTorch")

from data_service import DataService  # noqa: E402

import numpy  # noqa: E402

import fabricshm  # noqa: E402
import fabricshm.data as data  # noqa: E402
from fabricshm import _recipe  # noqa: E402

COUNT = 30
CALLS = "FABRIC_TEST_CALLS"  # a file with a byte for each call, of whatever process


def content_of(number):
    return random.Random(number).randbytes(200)


def setUpModule():
    """Not in workers that are spawned, which import this module."""
    global SERVICE, FILES
    SERVICE = DataService()
    os.environ[CALLS] = str(SERVICE.folder.parent / "calls")
    for at in range(COUNT):
        SERVICE.write(f"set/{at:03}.bin", content_of(at))
    FILES = data.open("/files/set")


def count_call():
    file = os.open(os.environ[CALLS], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b"x")
    os.close(file)


def calls():
    file = pathlib.Path(os.environ[CALLS])
    made = file.stat().st_size if file.exists() else 0
    file.unlink(missing_ok=True)
    return made


def doubled(view):
    count_call()
    return torch.frombuffer(bytearray(view), dtype=torch.uint8).to(torch.int32).reshape(2, 100) * 2


def expected(number):
    return numpy.frombuffer(content_of(number), numpy.uint8).astype(numpy.int32).reshape(2, 100) * 2


def failing(view):
    if bytes(view) == content_of(7):
        raise ValueError("no picture")
    return numpy.zeros(3)


def first_byte(view):
    return numpy.array([view[0]])


def made_by(dataset):
    """In a forked process: which samples it made itself."""
    for number in range(COUNT):
        sample = dataset.prepared[number]
        if not numpy.array_equal(numpy.asarray(sample), expected(number)):
            return f"sample {number} differs"
    return dataset.prepared.made


class Prepared(unittest.TestCase):
    def setUp(self):
        calls()
        warnings.simplefilter("error", UserWarning)  # a sample that was not kept

    def test_each_sample_is_made_once_whatever_workers_ranks_and_epochs_there_are(self):
        dataset = data.Dataset(FILES, prep=doubled, prep_name="once", target=len)
        for workers, method in ((2, "fork"), (0, None), (2, "spawn")):
            loader = DataLoader(dataset, batch_size=4, num_workers=workers, multiprocessing_context=method)
            for _ in range(1 if method == "spawn" else 2):  # it starts slowly
                batches = list(loader)
                self.assertEqual(batches[0][0].dtype, torch.int32)
                self.assertEqual(batches[0][1].tolist(), [7] * 4)
                seen = torch.cat([samples for samples, _ in batches]).numpy()
                numpy.testing.assert_array_equal(seen, [expected(number) for number in range(COUNT)])
        made = fabric_test.Ranks(lambda rank, world: made_by(dataset), 2).results()
        self.assertEqual(made, [0, 0])
        self.assertEqual(calls(), COUNT)

    def test_processes_that_want_the_same_at_once_make_each_once(self):
        dataset = data.Dataset(FILES, prep=doubled, prep_name="at once")
        made = fabric_test.Ranks(lambda rank, world: made_by(dataset), 4).results()
        self.assertEqual(sum(made), COUNT)
        self.assertEqual(calls(), COUNT)

    def test_a_sample_is_a_read_only_view_of_the_pool(self):
        pinned = data.stats()["pinned"]
        for make, numbers in ((lambda view: numpy.frombuffer(bytes(view), "int16"), 100),
                              (lambda view: numpy.array(7.0), 1),
                              (lambda view: numpy.empty((0, 3), "float32"), 0),
                              (lambda view: torch.ones(3, dtype=torch.bfloat16), 3)):  # fmt: skip
            sample = data.Prepared(FILES, make, name=str(numbers))[0]
            self.assertEqual(sample.numel() if torch.is_tensor(sample) else sample.size, numbers)
            if isinstance(sample, numpy.ndarray):
                self.assertFalse(sample.flags.writeable)
                numpy.testing.assert_array_equal(sample, make(content_of(0)))
            else:
                self.assertEqual(sample.dtype, torch.bfloat16)
                self.assertEqual(sample.tolist(), [1, 1, 1])
            del sample
        self.assertEqual(data.stats()["pinned"], pinned)

    def test_what_the_function_raises_names_the_file_and_the_next_one_tries_again(self):
        dataset = data.Dataset(FILES, prep=failing)
        self.assertEqual(dataset[6].tolist(), [0, 0, 0])
        for _ in range(2):
            with self.assertRaisesRegex(data.PreparationError, "/files/set/007.bin: ValueError: no picture"):
                dataset[7]
        with self.assertRaisesRegex(data.PreparationError, "/files/set/007.bin"):
            list(DataLoader(dataset, batch_size=4, num_workers=2))
        with self.assertRaisesRegex(data.PreparationError, "one NumPy array or tensor, not list"):
            data.Prepared(FILES, lambda view: [1])[0]

    def test_a_maker_that_is_killed_leaves_its_sample_to_another(self):
        reader, writer = os.pipe()

        def slow(view):
            os.write(writer, b"x")
            signal.pause()

        maker = os.fork()
        if maker == 0:
            data.Prepared(FILES, slow, name="killed")[3]
            os._exit(0)
        os.read(reader, 1)  # it has the name
        waiting = data.Prepared(FILES, first_byte, name="killed", wait=60)
        with self.assertRaises(fabricshm.ExistsError):
            data.create(f"{waiting.folder}/{waiting._path(3)}")
        hurried = data.Prepared(FILES, first_byte, name="killed", wait=0.01)
        with self.assertWarnsRegex(UserWarning, "its maker takes long"):
            self.assertEqual(hurried[3].tolist(), [content_of(3)[0]])
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
        self.assertEqual(waiting[3].tolist(), [content_of(3)[0]])
        self.assertEqual((waiting.made, waiting.not_kept), (1, 0))

    def test_another_version_of_a_file_is_another_sample(self):
        SERVICE.write("versions/x", b"a")
        before = data.open("/files/versions")
        self.assertEqual(data.Prepared(before, first_byte, name="version")[0].tolist(), [ord("a")])
        SERVICE.write("versions/x", b"bb")
        SERVICE.command("refresh", "/files/versions")
        after = data.open("/files/versions")
        self.assertEqual(data.Prepared(after, first_byte, name="version")[0].tolist(), [ord("b")])

    def test_what_has_left_the_pool_is_made_again(self):
        dataset = data.Dataset(FILES, prep=doubled, prep_name="dropped")
        self.assertEqual(made_by(dataset), COUNT)
        SERVICE.settle()
        SERVICE.command("drop", "/prepared")
        again = data.Dataset(FILES, prep=doubled, prep_name="dropped")
        self.assertEqual(made_by(again), COUNT)
        self.assertEqual(made_by(dataset), COUNT)  # those are there

    def test_a_killed_service_costs_samples_and_gives_no_wrong_ones(self):
        dataset = data.Dataset(FILES, prep=doubled, prep_name="restarted")
        held = dataset[0]
        SERVICE.kill()
        SERVICE.start()
        numpy.testing.assert_array_equal(numpy.asarray(held), expected(0))
        self.assertIsInstance(made_by(dataset), int)

    def test_samples_are_kept_in_a_folder_too_and_read_only_silos_say_so(self):
        kept = data.Prepared(FILES, first_byte, at="/results", name="folder")
        self.assertEqual(kept[2].tolist(), [content_of(2)[0]])
        (file,) = (SERVICE.results / kept.folder.rpartition("/")[2]).iterdir()
        self.assertEqual(numpy.load(file).tolist(), [content_of(2)[0]])
        with self.assertRaisesRegex(fabricshm.DeniedError, "can't be kept at /files"):
            data.Prepared(FILES, first_byte, at="/files")[0]
        with self.assertRaisesRegex(fabricshm.NotFoundError, "can't be kept at /nowhere"):
            data.Prepared(FILES, first_byte, at="/nowhere")[0]


def scaled(view, by=2):
    return numpy.frombuffer(view, numpy.uint8) * by


class Recipes(unittest.TestCase):
    def test_the_same_code_has_the_same_name_and_other_code_another_one(self):
        self.assertEqual(_recipe.name_of(scaled), _recipe.name_of(scaled))
        names = {_recipe.name_of(each) for each in (
            scaled, first_byte, functools.partial(scaled, by=3), functools.partial(scaled, by=4),
            lambda view: scaled(view), lambda view: scaled(view, 3), lambda view: scaled(view[1:]))}  # fmt: skip
        self.assertEqual(len(names), 7)

    def test_what_a_helper_does_counts(self):
        spaces = []
        for line in ("1", "2"):
            space = {"__name__": "__main__"}
            exec(f"def helper(view):\n    return {line}\n\ndef prep(view):\n    return helper(view)\n", space)
            spaces.append(space["prep"])
        self.assertNotEqual(*map(_recipe.name_of, spaces))

    def test_what_can_not_be_told_from_code_wants_a_name(self):
        class Model:
            def __call__(self, view):
                return view

        model = Model()
        for prep in (model, lambda view: model(view), functools.partial(scaled, by=model)):
            with self.assertRaisesRegex(ValueError, "give prep_name"):
                _recipe.name_of(prep)


if __name__ == "__main__":
    fabric_test.main()
