"""Data sets of fabricshm.data in torch.utils.data.DataLoader: processes that are forked and spawned."""

import os
import random
import sys
import tempfile
import unittest
import unittest.mock
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch  # noqa: E402
    from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402
except ImportError:
    fabric_test.skip("no PyTorch")

from data_service import DataService  # noqa: E402

import fabricshm.data as data  # noqa: E402


def as_tensor(view):
    """In a worker process."""
    return torch.frombuffer(bytearray(view), dtype=torch.uint8)


def length_of(name):
    return len(name)


def content_of(number):
    return random.Random(number).randbytes(500)


def rank_of_group(folder, rank, results):
    """A process: puts (rank, samples without and with workers, and in DistributedSampler's order)."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    files = data.open("/files")
    found = []
    for workers in (0, 2):
        dataset = data.IterableDataset(files)
        dataset.set_epoch(1)
        found.append([sample[0] for sample in DataLoader(dataset, batch_size=1, num_workers=workers)])
    sampler = DistributedSampler(files)
    sampler.set_epoch(1)
    found.append([bytes(files[index]) for index in sampler])
    results.put((rank, found))
    torch.distributed.destroy_process_group()


COUNT = 40
NAMES = [f"{number % 4}/{number:03}.bin" for number in range(COUNT)]


class Loaders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = DataService()
        for number, name in enumerate(NAMES):
            cls.service.write(name, content_of(number))
        cls.files = data.open("/files")
        cls.contents = [content_of(NAMES.index(name)) for name in cls.files.names]
        warnings.simplefilter("error", UserWarning)  # an order that was not announced

    def seen(self, loader):
        return sorted(bytes(sample.numpy()) for batch in loader for sample in batch)

    def test_map_style_without_and_with_processes(self):
        dataset = data.Dataset(self.files, as_tensor)
        self.assertEqual(len(dataset), COUNT)
        self.assertEqual(self.seen(DataLoader(dataset, batch_size=7)), sorted(self.contents))
        for method in ("fork", "spawn"):
            loader = DataLoader(dataset, batch_size=7, shuffle=True, num_workers=2,
                                multiprocessing_context=method)
            self.assertEqual(self.seen(loader), sorted(self.contents), method)

    def test_samples_are_bytes_and_targets_come_from_names(self):
        dataset = data.Dataset(self.files, target=length_of)
        self.assertEqual(dataset[3], (self.contents[3], len(self.files.names[3])))
        samples, targets = next(iter(DataLoader(dataset, batch_size=5)))
        self.assertEqual(list(samples), self.contents[:5])
        self.assertEqual(targets.tolist(), [9 - 0 for _ in range(5)])

    def test_iterable_covers_each_epoch_once_over_workers_and_ranks(self):
        for workers in (0, 2):
            seen = []
            for rank in range(2):
                dataset = data.IterableDataset(self.files, as_tensor, num_replicas=2, rank=rank, seed=5)
                dataset.set_epoch(3)
                seen += self.seen(DataLoader(dataset, batch_size=4, num_workers=workers))
            self.assertEqual(sorted(seen), sorted(self.contents))

    def test_iterable_takes_the_place_of_the_process_group_as_distributed_sampler_does(self):
        with tempfile.TemporaryDirectory() as folder:
            context = torch.multiprocessing.get_context("fork")
            results = context.SimpleQueue()
            ranks = [context.Process(target=rank_of_group, args=(folder, rank, results)) for rank in range(2)]
            for rank in ranks:
                rank.start()
            found = dict(results.get() for _ in ranks)
            for rank in ranks:
                rank.join()
        for workers in range(2):
            parts = [found[rank][workers] for rank in range(2)]
            self.assertEqual([len(part) for part in parts], [COUNT // 2] * 2)
            self.assertEqual(sorted(parts[0] + parts[1]), sorted(self.contents))
        # DistributedSampler's order by its own defaults, in the same group.
        for rank in range(2):
            self.assertEqual(found[rank][0], found[rank][2])

    def test_iterable_without_a_group_takes_its_place_from_the_environment(self):
        def parts(**place):
            with unittest.mock.patch.dict(os.environ, place):
                return list(data.IterableDataset(self.files, bytes))

        self.assertEqual(sorted(parts()), sorted(self.contents))
        halves = [parts(RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
        self.assertEqual([len(half) for half in halves], [COUNT // 2] * 2)
        self.assertEqual(sorted(halves[0] + halves[1]), sorted(self.contents))
        with unittest.mock.patch.dict(os.environ, RANK="1", WORLD_SIZE="2"):
            whole = data.IterableDataset(self.files, bytes, num_replicas=1, rank=0)
            self.assertEqual(sorted(whole), sorted(self.contents))
        with self.assertRaisesRegex(ValueError, "give num_replicas and rank"):
            parts(RANK="first", WORLD_SIZE="2")
        with self.assertRaises(ValueError):
            parts(RANK="2", WORLD_SIZE="2")

    def test_samplers_announce_their_epochs(self):
        dataset = data.Dataset(self.files, as_tensor)
        sampler = DistributedSampler(dataset, 2, 1, seed=4)
        sampler.set_epoch(2)
        dataset.announce(sampler)
        try:
            from fabricshm.torch import FabricSampler
        except ImportError:
            self.skipTest("built without PyTorch")
        sampler = FabricSampler(dataset, 8, num_replicas=2, rank=0)
        seen = [index for batch in sampler for index in batch]
        self.assertEqual(len(seen), COUNT // 2)
        self.assertEqual(sampler.position, COUNT)


if __name__ == "__main__":
    fabric_test.main()
