"""Snapshots of shared parameters. What is in the files is read by a few lines of struct and json,
written from the description of the format alone."""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402

# Sizes that end inside of blocks, of shards and of pages; one tensor that several ranks write.
SHAPES = {"w": (300, 701), "b": 11, "scale": (), "layer.0/weight": (64, 33, 5), "last \"one\"": (1025,)}
STATES = ("exp_avg", "exp_avg_sq")


def read_safetensors(path):
    """(metadata, arrays by name)."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length].decode("utf-8"))
    metadata = header.pop("__metadata__")
    body = memoryview(data)[8 + length :]
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        assert begin == end, (name, begin, end)  # no holes
        end = stop
        assert entry["dtype"] == "F32"
        arrays[name] = numpy.frombuffer(body[begin:stop], "<f4").reshape(entry["shape"])
    assert end == len(body)
    assert all(isinstance(value, str) for value in metadata.values())
    return metadata, arrays


def read_snapshot(path):
    """(number of steps, arrays by name), of all files; what an index says is compared."""
    arrays, steps = {}, set()
    homes = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            metadata, found = read_safetensors(os.path.join(path, name))
            steps.add(int(metadata["fabricshm.step"]))
            assert not set(found) & set(arrays)
            arrays.update(found)
            homes.update(dict.fromkeys(found, name))
    for name in sorted(os.listdir(path)):
        if name.endswith(".index.json"):
            with open(os.path.join(path, name), encoding="utf-8") as file:
                index = json.load(file)
            kind = name.split(".")[0]
            mine = {each: home for each, home in homes.items() if home.startswith(kind + "-")}
            assert index["weight_map"] == mine
            assert index["metadata"]["total_size"] == sum(arrays[each].nbytes for each in mine)
    assert len(steps) == 1
    return steps.pop(), arrays


def copy_of(parameters):
    """What a snapshot of it has to hold."""
    arrays = {name: parameters.values[name].copy() for name in SHAPES}
    for name in SHAPES:
        for state, values in zip(STATES, parameters.states[name]):
            arrays[f"optimizer.{state}.{name}"] = values.copy()
    return arrays


def same(found, expected):
    assert set(found) == set(expected), (sorted(found), sorted(expected))
    for name, values in expected.items():
        assert found[name].shape == values.shape, name
        assert found[name].tobytes() == values.tobytes(), name


def steps_of(parameters, rank, count):
    for _ in range(count):
        random = numpy.random.default_rng([rank, parameters.steps])
        for name, shape in SHAPES.items():
            parameters.gradients[name][...] = random.standard_normal(shape).astype("float32")
        parameters.step(learning_rate=0.01, weight_decay=0.1)


def opened(group, **options):
    return fabricshm.Parameters(group, "model", SHAPES, **options)


def train_and_write(rank, world, directory, plain_writes, file_bytes, shares):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        if shares:
            parameters.share(shares)
        steps_of(parameters, rank, 3)
        expected = copy_of(parameters)
        group.barrier()
        snapshot = parameters.snapshot(directory, file_bytes=file_bytes, plain_writes=plain_writes)
        steps_of(parameters, rank, 2)
        if shares:  # cut in another way while it is written
            parameters.share([1] * world)
        steps_of(parameters, rank, 2)
        report = snapshot.wait()
        assert snapshot.over and report.step == 3
        assert report.uring in (False, not plain_writes)  # the kernel may have none
        if rank == 0:
            path = fabricshm.latest_snapshot(directory)
            assert path == os.path.join(directory, "step-000003"), path
            assert os.listdir(directory) == ["step-000003"]
            steps, arrays = read_snapshot(path)
            assert steps == 3
            same(arrays, expected)
        return {name: values.copy() for name, values in copy_of(parameters).items()}


def late_writer(rank, world, directory):
    """The threads that write come later than the steps, which have to save everything themselves."""
    train_and_write(rank, world, directory, False, None, None)


def restore(rank, world, path, expected, more):
    """As it was, in another set, of another number of ranks; and it goes on from there."""
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group, copy="bfloat16")
        steps_of(parameters, rank, 1)
        assert parameters.restore(path) == parameters.steps
        same(copy_of(parameters), expected)
        for name in SHAPES:
            bits = fabricshm.bfloat16_from(parameters.values[name])
            numpy.testing.assert_array_equal(parameters.copies[name], bits)
        group.barrier()
        steps_of(parameters, rank, more)
        return copy_of(parameters)


def several(rank, world, directory, keep):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        for _ in range(4):
            steps_of(parameters, rank, 1)
            parameters.snapshot(directory, keep=keep).wait()
        # Of a step that there is one of already: the new one takes its place.
        parameters.snapshot(directory, keep=keep).wait()
        return copy_of(parameters)


def pipe(rank, world, path):
    with fabric_test.group_of(rank, world) as (_, group):
        try:
            opened(group).restore(path)
            raise AssertionError("a pipe was read")
        except fabricshm.FabricError as error:
            assert error.name == "FABRICSHM_ECORRUPT", error


def two_at_once(rank, world, directory):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        first = parameters.snapshot(directory)
        try:
            parameters.snapshot(directory)
            raise AssertionError("two at once")
        except fabricshm.FabricError as error:
            assert "waited for" in str(error), error
        first.wait()
        try:
            parameters.snapshot(os.path.join(directory, f"of-rank-{rank}"))
            raise AssertionError("two directories")
        except fabricshm.MismatchError:
            pass
        parameters.snapshot(directory).wait()


def too_large(rank, world, directory):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        steps_of(parameters, rank, 1)
        parameters.snapshot(directory).wait()
        steps_of(parameters, rank, 1)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if rank == world - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        snapshot = parameters.snapshot(directory)
        steps_of(parameters, rank, 1)
        try:
            snapshot.wait()
            raise AssertionError("the disk was full")
        except fabricshm.FabricError as error:
            text = str(error)
            assert ("File too large" in text and "safetensors" in text) or rank != world - 1, text
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        group.barrier()
        assert os.listdir(directory) == ["step-000001"], os.listdir(directory)
        assert read_snapshot(fabricshm.latest_snapshot(directory))[0] == 1
        parameters.snapshot(directory).wait()
        return copy_of(parameters)


def seed(rank, world, directory):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        steps_of(parameters, rank, 1)
        parameters.snapshot(directory).wait()


def victim(rank, world, directory):
    """A process of its own, since FABRIC_FAULT is read when the library is loaded."""
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        steps_of(parameters, rank, 2)
        try:
            parameters.snapshot(directory, keep=1).wait()
        except fabricshm.PeerError:
            pass


def victim_of_same_step(rank, world, directory):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        parameters.restore(fabricshm.latest_snapshot(directory))
        try:
            parameters.snapshot(directory).wait()
        except fabricshm.PeerError:
            pass


def victim_of_restore(rank, world, directory):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        steps_of(parameters, rank, 2)
        try:
            parameters.restore(fabricshm.latest_snapshot(directory))
        except fabricshm.PeerError:
            assert parameters.steps == 0  # what another group finds is no state, and says so
            try:
                parameters.step(learning_rate=1)
                raise AssertionError("a step over half a snapshot")
            except fabricshm.BrokenGroupError:
                pass


def one_dies(rank, world, directory):
    """The others settle what they were in, and the snapshot is whole or not there."""
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        steps_of(parameters, rank, 2)
        snapshot = parameters.snapshot(directory)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            steps_of(parameters, rank, 1)
            raise AssertionError("a step with a dead rank went well")
        except fabricshm.PeerError:
            pass
        smaller = group.shrink()
        parameters.recover(smaller)
        steps_of(parameters, rank, 1)
        try:
            snapshot.wait()
            assert read_snapshot(os.path.join(directory, "step-000002"))[0] == 2
        except fabricshm.PeerError as error:
            assert "before it had written its part" in str(error), error
            smaller.barrier()
            assert not os.path.exists(os.path.join(directory, "step-000002"))
        parameters.snapshot(directory).wait()
        return parameters.steps, copy_of(parameters)


def mismatches(rank, world, path):
    with fabric_test.group_of(rank, world) as (_, group):
        for words, shapes, rule in (
            ("'w' is F32 (300,701,) in the snapshot, F32 (300,702,) here", {**SHAPES, "w": (300, 702)}, "adamw"),
            ("no tensor 'more'", {**SHAPES, "more": 3}, "adamw"),
            ("15 tensors, the set 12", {k: v for k, v in SHAPES.items() if k != "b"}, "adamw"),
            ("one of adamw, the set is stepped by adam", SHAPES, "adam"),
        ):
            parameters = fabricshm.Parameters(group, f"set {words}", shapes, rule)
            for name in parameters.values:
                if rank == 0:
                    parameters.values[name][...] = 7
            group.barrier()
            try:
                parameters.restore(path)
                raise AssertionError(words)
            except fabricshm.MismatchError as error:
                assert words in str(error), (words, str(error))
            assert all((parameters.values[name] == 7).all() for name in parameters.values)
            parameters.step(learning_rate=1)  # it is as usable as before
            parameters.close()


def damaged(rank, world, path, words, is_half, whole):
    with fabric_test.group_of(rank, world) as (_, group):
        parameters = opened(group)
        try:
            parameters.restore(path)
            raise AssertionError(words)
        except fabricshm.FabricError as error:
            text = str(error)
        try:
            parameters.step(learning_rate=1)
            assert not is_half, "a step over half a snapshot"
        except fabricshm.BrokenGroupError:
            assert is_half
        assert parameters.restore(whole) == 3
        parameters.step(learning_rate=1)
        return text


class SnapshotsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.directory = os.path.join(self.folder.name, "snapshots")

    def written(self, world=2, plain_writes=False, file_bytes=None, shares=None):
        results = fabric_test.run_ranks(
            train_and_write, world, self.directory, plain_writes, file_bytes, shares)  # fmt: skip
        return os.path.join(self.directory, "step-000003"), results[0]

    @staticmethod
    def codes_of(story, fault, directory):
        """How two ranks of victim() or another story end."""
        environment = {**os.environ, "FABRIC_FAULT": fault}
        ranks = [subprocess.Popen([sys.executable, __file__, story, str(rank), directory], env=environment)
                 for rank in range(2)]  # fmt: skip
        return [rank.wait(fabric_test.DEADLINE) for rank in ranks]

    def assert_killed(self, story, point, directory):
        """At least one is killed at the point."""
        codes = self.codes_of(story, point, directory)
        self.assertIn(-signal.SIGKILL, codes)
        self.assertLessEqual(set(codes), {0, -signal.SIGKILL})

    def test_a_snapshot_is_the_state_at_its_boundary_while_steps_go_on(self):
        for world, shares in ((1, None), (2, None), (3, None), (3, [5, 0, 1])):
            for plain_writes in (False, True):
                with self.subTest(world=world, shares=shares, plain_writes=plain_writes):
                    self.written(world, plain_writes, None, shares)
                    os.rename(self.directory, f"{self.directory}-{world}{shares}{plain_writes}")

    def test_steps_that_come_before_the_writer_save_what_they_change(self):
        self.assertEqual(self.codes_of("late_writer", "snapshot.begun:slow:1:500000", self.directory), [0, 0])

    def test_large_ones_are_several_files_with_an_index(self):
        path, _ = self.written(2, False, 200_000)
        names = os.listdir(path)
        self.assertIn("model.safetensors.index.json", names)
        self.assertIn("model-00001-of-00002.safetensors", names)
        self.assertIn("optimizer.safetensors.index.json", names)

    def test_it_is_restored_to_another_number_of_ranks_and_goes_on_alike(self):
        path, later = self.written(2)
        _, expected = read_snapshot(path)
        for world in (1, 2, 3):
            with self.subTest(world=world):
                results = fabric_test.run_ranks(restore, world, path, expected, 4 if world == 2 else 1)
                if world == 2:
                    same(results[0], later)

    def test_the_newest_are_kept(self):
        for keep, left in ((2, ["step-000003", "step-000004"]), (0, [f"step-00000{i}" for i in range(1, 5)])):
            with self.subTest(keep=keep):
                directory = f"{self.directory}-{keep}"
                results = fabric_test.run_ranks(several, 2, directory, keep)
                self.assertEqual(sorted(os.listdir(directory)), left)
                same(read_snapshot(fabricshm.latest_snapshot(directory))[1], results[0])

    def test_what_links_lead_to_and_what_is_no_snapshot_is_left_alone(self):
        os.mkdir(self.directory)
        with tempfile.TemporaryDirectory() as outside:
            for link in ("step-000000", ".step-000000.partial-0123456789abcdef"):
                archive = os.path.join(outside, "archive" + link)
                os.mkdir(archive)
                with open(os.path.join(archive, "model.safetensors"), "w") as file:
                    file.write("kept")
                os.symlink(archive, os.path.join(self.directory, link))
            own = os.path.join(self.directory, "step-000500")
            os.mkdir(own)
            with open(os.path.join(own, "notes.txt"), "w") as file:
                file.write("kept")
            os.mkdir(os.path.join(self.directory, "step-999999"))
            fabric_test.run_ranks(several, 2, self.directory, 1)
            for link in ("step-000000", ".step-000000.partial-0123456789abcdef"):
                with open(os.path.join(self.directory, link, "model.safetensors")) as file:
                    self.assertEqual(file.read(), "kept")
            self.assertEqual(os.listdir(own), ["notes.txt"])
            newest = fabricshm.latest_snapshot(self.directory)
            self.assertNotIn("step-999999", newest)
            self.assertTrue(os.path.isdir(os.path.join(self.directory, "step-999999")))
        with self.assertRaises(ValueError):
            fabricshm.latest_snapshot(self.directory + "\0tail")

    def test_a_pipe_is_no_snapshot_and_is_not_waited_for(self):
        fabric_test.run_ranks(seed, 2, self.directory)
        path = fabricshm.latest_snapshot(self.directory)
        os.mkfifo(os.path.join(path, "pipe.safetensors"))
        fabric_test.run_ranks(pipe, 2, path)

    def test_one_is_waited_for_before_the_next(self):
        fabric_test.run_ranks(two_at_once, 2, self.directory)

    def test_a_full_disk_is_an_error_on_all_ranks_and_leaves_the_ones_before(self):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        results = fabric_test.run_ranks(too_large, 2, self.directory)
        same(read_snapshot(fabricshm.latest_snapshot(self.directory))[1], results[0])

    def test_a_snapshot_of_another_set_is_refused_by_name_and_changes_nothing(self):
        path, _ = self.written()
        fabric_test.run_ranks(mismatches, 2, path)

    def test_a_damaged_byte_is_found_and_named(self):
        path, _ = self.written()
        whole = os.path.join(self.directory, "step-000009")
        os.system(f"cp -r '{path}' '{whole}'")
        model = os.path.join(path, "model.safetensors")
        with open(model, "rb") as file:
            good = file.read()
        (length,) = struct.unpack("<Q", good[:8])
        places = {
            8 + length + 5: ("checksum of tensor 'w'", True),
            len(good) - 1: ("checksum of tensor 'last \"one\"'", True),
            3: ("header", False),
            20: ("header", False),
            8 + good[8 : 8 + length].index(b"fabricshm.step") + 17: ("header's checksum", False),
        }
        for at, (words, is_half) in places.items():
            with self.subTest(at=at):
                bad = bytearray(good)
                bad[at] ^= 1
                with open(model, "wb") as file:
                    file.write(bad)
                for text in fabric_test.run_ranks(damaged, 2, path, words, is_half, whole):
                    if "rank" not in text:
                        self.assertIn("model.safetensors", text)
                        self.assertIn(words, text)
        with open(model, "wb") as file:
            file.write(good[:-1])
        fabric_test.run_ranks(damaged, 1, path, "bytes", False, whole)
        os.unlink(model)
        for text in fabric_test.run_ranks(damaged, 1, path, "1 files of 2", False, whole):
            self.assertIn("1 files of 2", text)

    def test_a_killed_writer_leaves_the_snapshot_before_or_the_new_one_whole(self):
        points = ("snapshot.begun", "snapshot.saved", "snapshot.slice", "snapshot.written",
                  "snapshot.recorded", "snapshot.headers", "snapshot.commit", "snapshot.named",
                  "snapshot.pruned")  # fmt: skip
        for point in points:
            with self.subTest(point=point):
                directory = f"{self.directory}-{point}"
                fabric_test.run_ranks(seed, 2, directory)
                self.assert_killed("victim", point, directory)
                steps, _ = read_snapshot(fabricshm.latest_snapshot(directory))
                self.assertEqual(steps, 2 if point in ("snapshot.named", "snapshot.pruned") else 1)
                # The next one tidies up, and is whole.
                results = fabric_test.run_ranks(several, 2, directory, 1)
                self.assertEqual(os.listdir(directory), ["step-000004"])
                same(read_snapshot(os.path.join(directory, "step-000004"))[1], results[0])
    def test_a_writer_killed_while_it_replaces_one_of_the_same_step_leaves_one_of_them(self):
        fabric_test.run_ranks(seed, 2, self.directory)
        before = read_snapshot(os.path.join(self.directory, "step-000001"))
        self.assert_killed("victim_of_same_step", "snapshot.exchanged", self.directory)
        steps, arrays = read_snapshot(fabricshm.latest_snapshot(self.directory))
        self.assertEqual(steps, 1)
        same(arrays, before[1])

    def test_a_rank_killed_while_it_restores_leaves_no_half_of_a_state(self):
        fabric_test.run_ranks(seed, 2, self.directory)
        self.assert_killed("victim_of_restore", "restore.tensor", self.directory)

    def test_a_rank_dies_and_the_others_go_on_and_write_the_next(self):
        results = fabric_test.Ranks(one_dies, 3, self.directory).results(dead=(1,))
        steps, expected = results[0]
        same(read_snapshot(os.path.join(self.directory, f"step-{steps:06}"))[1], expected)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        globals()[sys.argv[1]](int(sys.argv[2]), 2, sys.argv[3])
        sys.exit(0)
    with fabric_test.daemon_or_skip():
        fabric_test.main()