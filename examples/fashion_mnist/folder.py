#!/usr/bin/env python3
"""Trains the CNN on a folder of JPEG files: an ordinary script that knows neither the fabric nor the data cache.

  fabricrun --nproc-per-node 4 examples/fashion_mnist/folder.py --data FOLDER/train

FOLDER is what export.py wrote, wherever it is mounted from. Prints of each epoch its time, for how long the slowest
rank waited for samples, and a checksum of all that was read.
"""

import argparse
import io
import os
import time
import zlib

import numpy
import torch
import torch.distributed as dist
from PIL import Image
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import fashion_mnist


class Folder(Dataset):
    """FOLDER/LABEL/NAME.jpeg: images as float32 [1, 28, 28], labels, and the checksum of the file."""

    def __init__(self, folder):
        self.files = sorted(
            (os.path.join(folder, label, name), int(label))
            for label in os.listdir(folder)
            for name in os.listdir(os.path.join(folder, label))
        )

    def __len__(self):
        return len(self.files)

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def __getitem__(self, index):
        path, label = self.files[index]
        content = self.read(path)
        pixels = numpy.asarray(Image.open(io.BytesIO(content)), dtype=numpy.float32)
        image = torch.from_numpy((pixels / 255 - fashion_mnist.MEAN) / fashion_mnist.DEVIATION)
        return image.unsqueeze(0), label, zlib.crc32(content)


def train_epoch(model, optimizer, loader):
    """One pass; the last batch's loss, the seconds in which there was no batch, and the sum of the checksums."""
    waited, checksum = 0.0, 0
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked
        if batch is None:
            return loss.item(), waited, checksum
        images, labels, checksums = batch
        checksum += int(checksums.sum())
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def main(open_data=Folder):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the folder with a folder for each label")
    parser.add_argument("--backend", default="fabricshm", help="fabricshm (default) or gloo")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=50, help="images per rank and step")
    parser.add_argument("--workers", type=int, default=0, help="processes that load, per rank")
    options = parser.parse_args()
    if options.backend == "fabricshm":
        import fabricshm.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(options.backend, init_method="env://")
    data = open_data(options.data)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, options.batch, sampler=sampler, num_workers=options.workers, drop_last=True)
    model = DistributedDataParallel(fashion_mnist.Cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        started = time.perf_counter()
        loss, waited, checksum = train_epoch(model, optimizer, loader)
        seconds = time.perf_counter() - started
        longest, total = torch.tensor([waited]), torch.tensor([checksum])
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(
                f"epoch {epoch + 1}: loss {loss:.6f}, {seconds:.2f} s, waited {longest.item():.2f} s, "
                f"read {total.item():x}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
