#!/usr/bin/env python3
"""Trains the CNN with DistributedDataParallel: an ordinary script, one process per rank.

Nothing in it knows the fabric but the name of the backend:

  fabricrun --nproc-per-node 4 examples/fashion_mnist/train.py --backend fabricshm
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

import fashion_mnist


def train_epoch(model, optimizer, data, order, batch):
    """One pass over `data` in this order; the last batch's loss."""
    images, labels = data
    indices = torch.tensor(list(order))
    for chosen in indices.split(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
    return loss.item()


def test_accuracy(model, rank, world):
    """Every rank scores its part of the test images; the counts meet in an allreduce."""
    images, labels = fashion_mnist.load("t10k")
    correct = fashion_mnist.count_correct(model, images[rank::world], labels[rank::world])
    total = torch.tensor([correct])
    dist.all_reduce(total)
    return total.item() / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="fabricshm", help="fabricshm (default) or gloo")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64, help="images per rank and step")
    options = parser.parse_args()
    if options.backend == "fabricshm":
        import fabricshm.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(options.backend, init_method="env://")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = fashion_mnist.load("train")
    sampler = DistributedSampler(data[0], drop_last=True)
    model = DistributedDataParallel(fashion_mnist.Cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        started = time.perf_counter()
        loss = train_epoch(model, optimizer, data, sampler, options.batch)
        seconds = time.perf_counter() - started
        accuracy = test_accuracy(model.module, rank, world)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss:.3f}, {accuracy:.1%} right, {seconds:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
