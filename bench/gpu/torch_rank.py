#!/usr/bin/python3
"""One rank of PyTorch's allreduce for bench/harness: takes turns from its pipe as bench/driver.hpp says."""

import argparse
import os
import time


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=("gloo", "nccl"))
    for name in ("--control", "--name", "--store"):
        parser.add_argument(name, required=True)
    for name in ("--rank", "--world"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args()


class Rank:
    """In place, float32, sums: what the turn says besides the number of bytes is the same for all."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.options = torch, dist, options
        torch.set_num_threads(1)
        self.on_device = options.backend == "nccl"
        if self.on_device:
            torch.cuda.set_device(options.rank)
        self.device = f"cuda:{options.rank}" if self.on_device else "cpu"
        dist.init_process_group(options.backend, init_method=f"file://{options.store}", rank=options.rank,
                                world_size=options.world)
        self.tensor = None
        self.word = torch.zeros(1, device=self.device)
        self.barrier()

    def finish(self):
        if self.on_device:
            self.torch.cuda.synchronize()

    def barrier(self):
        self.dist.all_reduce(self.word)
        self.finish()

    def run(self, times):
        for _ in range(times):
            self.dist.all_reduce(self.tensor)
        self.finish()

    def is_wrong(self):
        """One allreduce of numbers that every rank knows, and zeros again."""
        self.tensor.fill_(self.options.rank + 1)
        self.run(1)
        wrong = bool((self.tensor != self.options.world * (self.options.world + 1) // 2).any())
        self.tensor.zero_()
        self.barrier()
        return wrong

    def measure(self, words):
        collective, size, place = words[0], int(words[1]), words[2]
        warmup, iterations, check = (int(word) for word in words[6:9])
        if collective != "allreduce" or place != "in":
            return "unsupported only allreduce in place"
        if self.tensor is None or self.tensor.numel() * 4 != size:
            self.tensor = self.torch.zeros(size // 4, device=self.device)
        if check and self.is_wrong():
            return "wrong sum"
        self.barrier()
        self.run(warmup)
        self.barrier()
        begun = time.perf_counter_ns()
        self.run(iterations)
        length = time.perf_counter_ns() - begun
        self.barrier()
        return f"time {length}"


def main():
    options = parse_options()
    base = os.path.join(options.control, f"{options.name}.{options.rank}")
    # Both ends block until the orchestrator has opened its own.
    orders = open(base + ".in", buffering=1)
    answers = open(base + ".out", "w", buffering=1)
    rank = Rank(options)
    print(f"hello {os.getpid()} torch {rank.torch.__version__} {options.backend}", file=answers, flush=True)
    for line in orders:
        words = line.split()
        if words[0] == "quit":
            break
        if words[0] == "drop":
            rank.tensor = None
            print("dropped", file=answers, flush=True)
        else:
            print(rank.measure(words[1:]), file=answers, flush=True)
    rank.dist.destroy_process_group()


if __name__ == "__main__":
    main()
