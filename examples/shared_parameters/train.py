#!/usr/bin/env python3
"""Trains a model of which there is one copy for all ranks: parameters and optimiser state live in the pool.

No DistributedDataParallel, no allreduce: each rank computes its own gradient, and the step of the optimiser
reads them all. The ranks are processes that this script starts itself, so that they may be killed:

  fabricrun examples/shared_parameters/train.py --ranks 4
  fabricrun examples/shared_parameters/train.py --ranks 4 --task characters --survive --kill 30
"""

import argparse
import math
import os
import pathlib
import signal
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

import fabricshm
from fabricshm import optim

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fashion_mnist"))

OPTIMISERS = {"sgd": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW, "adabelief": optim.AdaBelief,
              "max_adabelief": optim.MaxAdaBelief}  # fmt: skip
WORDNET = "/usr/share/wordnet/data.noun"  # Debian's wordnet-base


class Images:
    """Fashion-MNIST and its CNN of 421,642 parameters."""

    def __init__(self):
        import fashion_mnist

        self.model = fashion_mnist.Cnn()
        self.images, self.labels = fashion_mnist.load("train")

    def loss(self, generator, count):
        chosen = torch.randint(len(self.images), (count,), generator=generator)
        return functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])


class Characters:
    """The definitions of WordNet's nouns, and a transformer that foretells their next character."""

    def __init__(self, width=128, length=64):
        self.length = length
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.model = nn.ModuleDict({
            "characters": nn.Embedding(128, width),
            "positions": nn.Embedding(length, width),
            "layers": nn.TransformerEncoder(layer, 2),
            "scores": nn.Linear(width, 128),
        })
        try:
            lines = pathlib.Path(WORDNET).read_text("ascii", "ignore").splitlines()
        except FileNotFoundError:
            raise SystemExit(f"{WORDNET} is missing: apt install wordnet-base")
        text = "\n".join(line.rsplit("| ", 1)[-1].strip() for line in lines if not line.startswith("  "))
        self.text = torch.frombuffer(bytearray(text.encode("ascii")), dtype=torch.uint8).long()

    def loss(self, generator, count):
        starts = torch.randint(len(self.text) - self.length - 1, (count, 1), generator=generator)
        windows = self.text[starts + torch.arange(self.length + 1)]
        x = self.model["characters"](windows[:, :-1]) + self.model["positions"](torch.arange(self.length))
        later = torch.full((self.length, self.length), -math.inf).triu(1)
        scores = self.model["scores"](self.model["layers"](x, later))
        return functional.cross_entropy(scores.transpose(1, 2), windows[:, 1:])


TASKS = {"images": Images, "characters": Characters}


def shared_bytes():
    """This process's share of the memory that it has in common with others, from /proc."""
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line and "-" not in line)
    return int(fields["Pss_Shmem"].split()[0]) * 1024


def train(rank, options):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    task = TASKS[options.task]()
    generator = torch.Generator().manual_seed(1000 + rank)
    count = sum(tensor.numel() for tensor in task.model.parameters())
    with fabricshm.Session() as session:
        room = 4 * count * (4 + options.ranks) + (64 << 20)
        group = session.arena(f"train-{os.getppid()}", bytes=room).join("ranks", rank, options.ranks)
        make = OPTIMISERS[options.optimiser]
        optimiser = make(task.model.parameters(), lr=options.lr, group=group, survive=options.survive)
        started = time.perf_counter()
        for step in range(1, options.steps + 1):
            optimiser.zero_grad()
            loss = task.loss(generator, options.batch)
            loss.backward()
            if step == options.kill and rank == options.ranks - 1:
                print(f"step {step}: rank {rank} is killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            optimiser.step()
            if step % options.every == 0 or step == options.steps:
                mean = numpy.array([loss.item()])
                optimiser.group.all_reduce(mean, op="avg")
                if optimiser.group.rank == 0:
                    seconds = (time.perf_counter() - started) / step
                    print(f"step {step} of {options.steps}: loss {mean[0]:.3f}, {optimiser.group.world} ranks, "
                          f"{1000 * seconds:.0f} ms a step", flush=True)  # fmt: skip
        report(optimiser, count, options)
        optimiser.group.barrier()


def report(optimiser, count, options):
    arrays = 1 + len(optimiser.state_names)
    once = 4 * count * arrays / 1e6
    held = numpy.array([float(shared_bytes())])
    optimiser.group.all_reduce(held)
    if optimiser.group.rank != 0:
        return
    print(f"{count:,} parameters and their state: {once:.1f} MB, once for all ranks; a copy for each of "
          f"{options.ranks} would be {options.ranks * once:.1f} MB")  # fmt: skip
    print(f"shared memory that the ranks touch, gradients included, by /proc: {held[0] / 1e6:.1f} MB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--task", choices=TASKS, default="images")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and step (default 32)")
    parser.add_argument("--every", type=int, default=50, help="steps between two lines (default 50)")
    parser.add_argument("--survive", action="store_true", help="go on when a rank dies")
    parser.add_argument("--kill", type=int, default=0, metavar="STEP", help="the last rank dies in this step")
    options = parser.parse_args()
    if options.ranks < 1 or options.steps < 1 or options.every < 1 or options.batch < 1:
        parser.error("--ranks, --steps, --every and --batch are 1 at least")
    children = {}
    for rank in range(options.ranks):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            train(rank, options)
            os._exit(0)
        children[child] = rank
    worst = 0
    while children:
        child, status = os.wait()
        rank = children.pop(child)
        code = os.waitstatus_to_exitcode(status)
        expected = options.survive and code == -signal.SIGKILL
        if code != 0 and not expected:
            print(f"rank {rank} ended with {code}", file=sys.stderr)
            worst = worst or 1
    sys.exit(worst)


if __name__ == "__main__":
    main()
