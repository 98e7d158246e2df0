#!/usr/bin/env python3
"""Trains a CNN on Fashion-MNIST over the fabric, and over gloo as well, and compares.

Started by scripts/demo; or, with any number of ranks:

  fabricrun --nproc-per-node 4 examples/fashion_mnist/demo.py --epochs 2
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import fashion_mnist

BLOCK_STEPS = 6  # steps that one contender trains before the next trains the same
ALLREDUCE_ROUNDS = 30
LEARNING_RATE, MOMENTUM = 0.03, 0.9


class Contender:
    """A replica of the model whose gradients meet through one backend, or nowhere (`alone`)."""

    def __init__(self, name, group, alone=False):
        torch.manual_seed(1)  # all contenders begin with the same parameters
        self.name = name
        self.group = group
        self._alone = alone
        self.model = DistributedDataParallel(fashion_mnist.Cnn(), process_group=group)
        self._optimizer = torch.optim.SGD(
            self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM
        )
        self.seconds = []  # per step, one entry per block

    def train_block(self, batches):
        """Trains on `batches`; the time counts from when all ranks are ready to begin."""
        dist.barrier()
        started = time.perf_counter()
        for images, labels in batches:
            if self._alone:
                with self.model.no_sync():
                    self._step(images, labels)
            else:
                self._step(images, labels)
        self.seconds.append((time.perf_counter() - started) / len(batches))

    def _step(self, images, labels):
        """The gradients meet within backward(): there is no step of its own to time."""
        self._optimizer.zero_grad()
        functional.cross_entropy(self.model(images), labels).backward()
        self._optimizer.step()

    def slowest_rank(self):
        """The seconds per step of every block, on the rank that took longest."""
        seconds = torch.tensor(self.seconds)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds

    def accuracy(self, images, labels):
        """Each rank scores its share of the test images; the counts meet over this backend."""
        rank, world = dist.get_rank(), dist.get_world_size()
        right = torch.tensor(
            [fashion_mnist.count_correct(self.model.module, images[rank::world], labels[rank::world])]
        )
        dist.all_reduce(right, group=self.group)
        return right.item() / len(images)


class Progress:
    """One line that is rewritten on a terminal; on anything else, a line now and then."""

    def __init__(self, total):
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._terminal = sys.stdout.isatty()

    def advance(self, text):
        """Every rank counts, rank 0 prints."""
        self._done += 1
        if dist.get_rank() != 0:
            return
        tenth = max(1, self._total // 10)
        if not self._terminal and self._done % tenth and self._done != self._total:
            return
        left = (time.monotonic() - self._started) * (self._total / self._done - 1)
        line = f"  {self._done * 100 // self._total:3} %  {text}, {left:3.0f} s left "
        print("\r" + line if self._terminal else line, end="" if self._terminal else "\n", flush=True)
        if self._terminal and self._done == self._total:
            print()


def say(text=""):
    """Once for all ranks."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def blocks_of(data, epoch, batch, limit):
    """This rank's batches of an epoch, in blocks. The order depends on the epoch alone."""
    images, labels = data
    rank, world = dist.get_rank(), dist.get_world_size()
    # Seeded by the epoch, so that all ranks and all contenders see the same order.
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    steps = len(order) // (batch * world)
    mine = order[: steps * batch * world].view(steps, world, batch)[:, rank]
    mine = mine[:limit] if limit else mine
    for block in mine.split(BLOCK_STEPS):
        yield [(images[chosen], labels[chosen]) for chosen in block]


def train(contenders, data, test, options):
    """All contenders train on the same batches, in turns whose order rotates."""
    steps = len(data[0]) // (options.batch * dist.get_world_size())
    steps = min(steps, options.steps) if options.steps else steps
    progress = Progress(options.epochs * -(-steps // BLOCK_STEPS))
    for epoch in range(options.epochs):
        for number, block in enumerate(blocks_of(data, epoch, options.batch, options.steps)):
            # The contender that goes first finds cold caches: that is each one's turn.
            turn = number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                contender.train_block(block)
            fabric, gloo = contenders[0].seconds[-1], contenders[1].seconds[-1]
            progress.advance(
                f"epoch {epoch + 1}: {fabric * 1e3:5.1f} ms per step over the fabric, "
                f"{gloo * 1e3:5.1f} over gloo"
            )
        accuracy = contenders[0].accuracy(*test)
        say(f"  epoch {epoch + 1}: {accuracy:.1%} of the test images right")


def time_allreduce(contenders, count):
    """Seconds of an allreduce of `count` floats, alone, by contender: medians of paired rounds."""
    gradients = torch.ones(count)
    samples = {contender.name: [] for contender in contenders}
    for _ in range(ALLREDUCE_ROUNDS):
        for contender in contenders:
            # Together: what a round takes should not be waiting for a late rank.
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(gradients, group=contender.group)
            samples[contender.name].append(time.perf_counter() - started)
            # The sum is in it now, and would grow with each round.
            gradients.fill_(1)
    return {name: torch.tensor(seconds).median().item() for name, seconds in samples.items()}


def milliseconds(value):
    return f"{value * 1e3:8.2f} ms"


def report(fabric, gloo, alone, test, options):
    """Every rank takes part, for the numbers are those of the slowest; rank 0 prints."""
    times = {contender: contender.slowest_rank() for contender in (fabric, gloo, alone)}
    step = {contender: seconds.median().item() for contender, seconds in times.items()}
    exposed = {
        contender: (times[contender] - times[alone]).median().item() for contender in (fabric, gloo)
    }
    right = {contender: contender.accuracy(*test) for contender in (fabric, gloo)}
    count = sum(parameter.numel() for parameter in fabric.model.parameters())
    reduce = time_allreduce((fabric, gloo), count)
    # Both began with the same parameters and saw the same batches.
    pairs = zip(fabric.model.parameters(), gloo.model.parameters())
    apart = max((left - other).abs().max().item() for left, other in pairs)
    steps = len(fabric.seconds)
    say(f"\n{count:,} parameters, {dist.get_world_size()} ranks x {options.batch} images per step")
    say(f"{'':26}{'fabric':>11}{'gloo':>11}{'neither':>11}  gloo / fabric")
    say(f"{'accuracy':26}{right[fabric]:>11.1%}{right[gloo]:>11.1%}")
    say(
        f"{'step':26}{milliseconds(step[fabric])}{milliseconds(step[gloo])}"
        f"{milliseconds(step[alone])}{step[gloo] / step[fabric]:>12.2f}x"
    )
    # On a busy machine noise can exceed what is to be measured.
    measurable = min(exposed.values()) > 0
    ratio = f"{exposed[gloo] / exposed[fabric]:>12.1f}x" if measurable else "     in the noise"
    say(
        f"{'exposed communication':26}{milliseconds(exposed[fabric])}{milliseconds(exposed[gloo])}"
        f"{'':11}{ratio}"
    )
    say(
        f"{'allreduce of all gradients':26}{milliseconds(reduce['fabric'])}"
        f"{milliseconds(reduce['gloo'])}{'':11}{reduce['gloo'] / reduce['fabric']:>12.1f}x"
    )
    say(
        f"""
Paired: all three trained on the same batches in the same processes, {BLOCK_STEPS} steps in turn, {steps} turns
each; medians over the turns, time of the slowest rank. "neither" computes the same without any
communication (DDP under no_sync). Exposed communication is a step's time beyond that of the same
steps without communication: what computing does not hide. The allreduce of {count * 4 / 1e6:.1f} MB
alone is the median of {ALLREDUCE_ROUNDS}. After training, no parameter of the two differs by more than {apart:.1g}."""
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2, help="times through the 60,000 images (2)")
    parser.add_argument("--batch", type=int, default=64, help="images per rank and step (64)")
    parser.add_argument("--steps", type=int, default=0, help="stop an epoch after so many (all)")
    options = parser.parse_args()
    if options.epochs < 1 or options.batch < 1 or options.steps < 0:
        parser.error("--epochs and --batch are at least 1, --steps at least 0")
    return options


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # for what is not measured: barriers and the figures
    over_fabric = dist.new_group(backend=os.environ.get("DEMO_BACKEND", "fabricshm"))
    fabric = Contender("fabric", over_fabric)
    gloo = Contender("gloo", dist.new_group(backend="gloo"))
    alone = Contender("neither", over_fabric, alone=True)
    data, test = fashion_mnist.load("train"), fashion_mnist.load("t10k")
    say(
        f"Training on {len(data[0]):,} images, {options.epochs} epoch(s), "
        f"{dist.get_world_size()} ranks on {len(os.sched_getaffinity(0))} cores"
    )
    train([fabric, gloo, alone], data, test, options)
    report(fabric, gloo, alone, test, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
