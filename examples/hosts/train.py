"""Trains a CNN on Fashion-MNIST over several hosts, and goes on with those that are left when one dies.

On each of two hosts (docs/hosts.md):

  fabricrun --nnodes 2 --node-rank 0 --master-addr hostA --master-port 29500 --trusted 10.0.0.0/8 \
      --nproc-per-node 2 examples/hosts/train.py --steps 200

The gradients of all ranks are one array in the arena of each host, which group.all_reduce() averages over hosts: reduced in
each pool first, and once over the network. A rank that dies is an error of the others that names it and its host;
they shrink the group and go on from the furthest step.
"""

import argparse
import os
import sys
import time
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
from torch.nn import functional

import fabricshm

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fashion_mnist"))
import fashion_mnist  # noqa: E402


class StoreExchange:
    """Gathers bytes of all ranks through the store of torch.distributed: how the ranks of a group find each other."""

    def __init__(self, rank, world, name, timeout):
        self.rank, self.world, self.name = rank, world, name
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(address, port, world, rank == 0, timeout=timeout)
        self.calls = 0

    def __call__(self, mine):
        self.calls += 1
        prefix = f"{self.name}/{self.calls}/"
        self.store.set(prefix + str(self.rank), mine)
        return [self.store.get(prefix + str(peer)) for peer in range(self.world)]


def say(group, text):
    if group.rank == 0:
        print(text, flush=True)


def regroup(group, error, model, done):
    """The group of those that live, and how many steps are done. A rank may have died when some of the others had the sum
    already: the one that is furthest gives all its parameters."""
    begun = time.monotonic()
    smaller = group.shrink()
    steps = smaller.all_gather(numpy.array([done], "int64"))[:, 0]
    parameters = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    smaller.broadcast(parameters.numpy(), int(steps.argmax()))
    torch.nn.utils.vector_to_parameters(parameters, model.parameters())
    say(smaller, f"{error}\n{group.world} ranks were on {group.hosts} hosts; {smaller.world} ranks on {smaller.hosts} go on "
                 f"after {time.monotonic() - begun:.2f} s")
    return smaller, int(steps.max())


def train(options):
    here = fabricshm.launch()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images, labels = fashion_mnist.load("train")
    model = fashion_mnist.Cnn()
    optimiser = torch.optim.SGD(model.parameters(), lr=options.lr)
    exchange = StoreExchange(here.rank, here.world, options.name, timedelta(seconds=options.timeout))
    with fabricshm.Session(timeout=options.timeout) as session:
        arena = session.arena(os.environ.get("FABRIC_ARENA", options.name), bytes=128 << 20)
        group = arena.join(options.name, here.rank, here.world, exchange=exchange)
        say(group, f"{group.world} ranks on {group.hosts} hosts")
        # One array for all gradients, in memory that the ranks of this host reach.
        gradients = arena.empty(sum(each.numel() for each in model.parameters()), "float32")
        places = torch.from_numpy(gradients).split([each.numel() for each in model.parameters()])
        order = torch.Generator().manual_seed(here.rank)
        begun = time.monotonic()
        done = 0
        while done < options.steps:
            chosen = torch.randint(len(images), (options.batch,), generator=order)
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            for place, parameter in zip(places, model.parameters()):
                place.copy_(parameter.grad.view(-1))
            try:
                group.all_reduce(gradients, "avg")
            except fabricshm.PeerError as error:
                group, done = regroup(group, error, model, done)
                continue
            for place, parameter in zip(places, model.parameters()):
                parameter.grad.copy_(place.view_as(parameter))
            optimiser.step()
            done += 1
            if done % options.every == 0:
                say(group, f"step {done}  loss {loss.item():.3f}  {1000 * (time.monotonic() - begun) / done:.0f} ms a step")
        if group.rank == 0:
            test_images, test_labels = fashion_mnist.load("t10k")
            correct = fashion_mnist.count_correct(model, test_images, test_labels)
            print(f"{100 * correct / len(test_images):.1f} % of the test images right, with {group.world} ranks at the end",
                  flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps of training (default 200)")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="images per rank and step (default 32)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (default 0.05)")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="steps between two lines of output (default 20)")
    parser.add_argument("--name", default="train-hosts", help="of the arena and the group (default train-hosts)")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="of every wait (default 60)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
