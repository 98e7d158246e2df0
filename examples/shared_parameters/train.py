#!/usr/bin/env python3
"""Trains a model of which there is one copy for all ranks: parameters and optimiser state live in the pool.

No DistributedDataParallel, no allreduce: each rank computes its own gradient, and the step of the optimiser
reads them all. The ranks are processes that this script starts itself, so that they may be killed:

  fabricrun examples/shared_parameters/train.py --ranks 4
  fabricrun examples/shared_parameters/train.py --ranks 4 --task characters --survive --kill 30
"""

import argparse
import os
import signal
import sys
import time

import numpy
import torch
from tasks import TASKS

import fabricshm
from fabricshm import optim

OPTIMISERS = {"sgd": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW, "adabelief": optim.AdaBelief,
              "max_adabelief": optim.MaxAdaBelief}  # fmt: skip


def shared_bytes():
    """This process's share of the memory that it has in common with others, from /proc."""
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line and "-" not in line)
    return int(fields["Pss_Shmem"].split()[0]) * 1024


def train(rank, options):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    task = TASKS[options.task]()
    more = {"mode": options.mode} if options.mode else {}
    generator = torch.Generator().manual_seed(1000 + rank)
    count = sum(tensor.numel() for tensor in task.model.parameters())
    with fabricshm.Session() as session:
        room = 4 * count * (4 + options.ranks) + (64 << 20)
        group = session.arena(f"train-{os.getppid()}", bytes=room).join("ranks", rank, options.ranks)
        make = OPTIMISERS[options.optimiser]
        optimiser = make(task.model.parameters(), lr=options.lr, group=group, survive=options.survive,
                         overlap=options.overlap, bucket_bytes=1 << 18, **more)  # fmt: skip
        started, exposed = time.perf_counter(), 0.0
        for step in range(1, options.steps + 1):
            optimiser.zero_grad()
            loss = task.loss(generator, options.batch)
            loss.backward()
            if step == options.kill and rank == options.ranks - 1:
                print(f"step {step}: rank {rank} is killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            optimiser.step()
            exposed += optimiser.exposed_ms
            if step % options.every == 0 or step == options.steps:
                mean = numpy.array([loss.item()])
                optimiser.group.all_reduce(mean, op="avg")
                if optimiser.group.rank == 0:
                    seconds = (time.perf_counter() - started) / step
                    print(f"step {step} of {options.steps}: loss {mean[0]:.3f}, {optimiser.group.world} ranks, "
                          f"{1000 * seconds:.0f} ms a step, {exposed / step:.1f} of them in step()", flush=True)  # fmt: skip
        report(optimiser, count, options)
        optimiser.group.barrier()


def report(optimiser, count, options):
    """What there is once instead of once for each rank, and what that saves by what /proc counts."""
    held = numpy.array([float(shared_bytes())])
    optimiser.group.all_reduce(held)
    if optimiser.group.rank != 0:
        return
    held = held[0] / 1e6
    arrays = 1 if options.mode == "moment" else 1 + len(optimiser.state_names)
    once, gradients = 4 * count * arrays / 1e6, 4 * count * options.ranks / 1e6
    print(f"{count:,} parameters and their state: {once:.1f} MB, once for all ranks; a copy for each of "
          f"{options.ranks} would be {options.ranks * once:.1f} MB")  # fmt: skip
    print(f"shared memory that the ranks touch, gradients included, by /proc: {held:.1f} MB", flush=True)
    if options.mode == "moment":
        print("the moments are each rank's own")
    else:
        copies = options.ranks * once + gradients
        print(f"copies and gradients would be {copies:.1f} MB: {copies - held:.1f} MB are saved", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--task", choices=TASKS, default="images")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="adamw")
    parser.add_argument("--mode", choices=("gradient", "moment"), help="of max_adabelief (default gradient)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and step (default 32)")
    parser.add_argument("--every", type=int, default=50, help="steps between two lines (default 50)")
    parser.add_argument("--overlap", action="store_true", help="step layers while backward goes on")
    parser.add_argument("--survive", action="store_true", help="go on when a rank dies")
    parser.add_argument("--kill", type=int, default=0, metavar="STEP", help="the last rank dies in this step")
    options = parser.parse_args()
    if options.ranks < 1 or options.steps < 1 or options.every < 1 or options.batch < 1:
        parser.error("--ranks, --steps, --every and --batch are 1 at least")
    if options.mode and options.optimiser != "max_adabelief":
        parser.error("--mode is of --optimiser max_adabelief")
    if options.overlap and options.mode == "moment":
        parser.error("--overlap is not for --mode moment")
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
