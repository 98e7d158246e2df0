"""One rank of the contenders in PyTorch, asked as bench/driver.hpp says; started by optimiser.py.

The algorithms of a step, all AdamW over the same shapes:
  ddp-gloo      all_reduce of one flat gradient over gloo, then torch.optim.AdamW(foreach=True)
  zero-gloo     the same, then ZeroRedundancyOptimizer, which broadcasts what each rank has moved
  zero-fabric   the same over the fabric's backend
  shared        fabricshm.optim.AdamW: gradients and parameters in the pool
"""

import argparse
import ctypes
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-2
PERIOD = 31  # of the values that a check fills gradients with


def trim():
    """What is free goes back to the machine: the memory of a case is looked at from outside."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def read_shapes(folder, size):
    """As optimiser.py has written them."""
    with open(os.path.join(folder, str(size))) as file:
        return [tuple(int(word) for word in line.split()) for line in file]


class Flat:
    """Parameters and gradients as views of two flat tensors: the most that buckets could gain."""

    def __init__(self, shapes):
        counts = [torch.Size(shape).numel() for shape in shapes]
        flat = torch.zeros(sum(counts))
        self.gradient = torch.zeros(sum(counts))
        self.parameters = []
        for shape, values, gradient in zip(shapes, flat.split(counts), self.gradient.split(counts)):
            parameter = torch.nn.Parameter(values.view(shape))
            parameter.grad = gradient.view(shape)
            self.parameters.append(parameter)


class Reduced:
    """A sum of gradients over `group`, then a step of `make(parameters)`."""

    def __init__(self, shapes, group, world, make):
        self.model = Flat(shapes)
        self.group, self.world = group, world
        self.optimiser = make(self.model.parameters)

    def run(self):
        """A step."""
        dist.all_reduce(self.model.gradient, group=self.group)
        self.model.gradient.div_(self.world)
        self.optimiser.step()

    def parameters(self):
        """With their gradients."""
        return self.model.parameters

    def close(self):
        """Nothing but memory."""


class Shared:
    """Of the fabric."""

    def __init__(self, shapes, arena, group):
        from fabricshm import optim  # pylint: disable=import-outside-toplevel
        self._parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        self._arena, self._group = arena, group
        self._optimiser = optim.AdamW(self._parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY,
                                      group=group, name="step")
        self.run = self._optimiser.step

    def parameters(self):
        """With their gradients, both in the pool."""
        return self._parameters

    def close(self):
        """Views of the set go before it."""
        shared = self._optimiser.shared
        for parameter in self._parameters:
            parameter.grad = None
            parameter.data = torch.empty(0)
        self._parameters.clear()
        shared.gradients.clear()
        shared.masters.clear()
        shared.states.clear()
        self._optimiser.state.clear()
        gc.collect()
        shared.set.close()
        self._group.barrier()
        if self._group.rank == 0:
            self._arena.free_parameters("step")
        self._group.barrier()


class Rank:
    """Serves turns."""

    def __init__(self, options):
        self.options = options
        self.holds = None  # what was asked for last
        self.step = None
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.world))
        store = dist.FileStore(os.path.join(options.store, f"torch-{options.world}"), options.world)
        dist.init_process_group("gloo", store=store, rank=options.rank, world_size=options.world)
        self.fabric = self.arena = self.group = None
        if options.socket:
            import fabricshm  # pylint: disable=import-outside-toplevel
            import fabricshm.torch  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel
            os.environ["FABRIC_SOCKET"] = options.socket
            os.environ["FABRIC_ARENA_BYTES"] = str(options.arena_bytes)
            self.fabric = dist.new_group(backend="fabricshm")
            self.session = fabricshm.Session(options.socket, timeout=60.0)
            self.arena = self.session.arena(f"{options.arena}-steps", bytes=options.arena_bytes)
            self.group = self.arena.join("steps", options.rank, options.world)

    def make(self, algorithm, shapes):
        """None: it does not go here."""
        world = self.options.world

        def zero(group):
            return lambda parameters: ZeroRedundancyOptimizer(
                parameters, torch.optim.AdamW, process_group=group, parameters_as_bucket_view=True,
                lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

        if algorithm == "ddp-gloo":
            return Reduced(shapes, None, world, lambda parameters: torch.optim.AdamW(
                parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, foreach=True))
        if algorithm == "zero-gloo":
            return Reduced(shapes, dist.group.WORLD, world, zero(dist.group.WORLD))
        if algorithm == "zero-fabric" and self.fabric is not None:
            return Reduced(shapes, self.fabric, world, zero(self.fabric))
        if algorithm == "shared" and self.group is not None:
            return Shared(shapes, self.arena, self.group)
        return None

    def drop(self):
        """Frees what the last case had."""
        if self.step is not None:
            self.step.close()
        self.step = self.holds = None
        trim()

    def check(self):
        """The first step from zeros, and zeros in the gradients again; empty: it was right."""
        world, rank = self.options.world, self.options.rank
        for parameter in self.step.parameters():
            index = torch.arange(parameter.numel())
            parameter.grad.copy_(((index * 7 + rank * 13) % PERIOD).view(parameter.shape))
        dist.barrier()
        self.step.run()
        dist.barrier()
        wrong = ""
        for parameter in self.step.parameters():
            index = torch.arange(parameter.numel())
            mean = sum((index * 7 + other * 13) % PERIOD for other in range(world)) / world
            moved = -LEARNING_RATE * mean / (mean + 1e-8)
            worst = (parameter.data.flatten() - moved).abs().max().item()
            if not worst < 1e-6:
                wrong = f"a parameter was moved {worst} from where it belongs"
        dist.barrier()
        for parameter in self.step.parameters():
            parameter.grad.zero_()
        return wrong

    def measure(self, words):
        """The answer to an order."""
        collective, size, _, _, algorithm = words[:5]
        warmup, iterations, check = (int(word) for word in words[6:9])
        if collective != "step":
            return "unsupported steps alone"
        if self.holds != (size, algorithm):
            self.drop()
            self.step = self.make(algorithm, read_shapes(self.options.shapes, size))
            if self.step is None:
                return "unsupported no such step here"
            self.holds = size, algorithm
        wrong = self.check() if check else ""
        if wrong:
            return f"wrong {wrong}"
        dist.barrier()
        for _ in range(warmup):
            self.step.run()
        dist.barrier()
        start = time.perf_counter_ns()
        for _ in range(iterations):
            self.step.run()
        length = time.perf_counter_ns() - start
        dist.barrier()
        if check:
            trim()
        return f"time {length}"


def serve(options):
    """Until an order to quit, or the orchestrator is gone."""
    base = os.path.join(options.control, f"{options.name}.{options.rank}")
    with open(f"{base}.in") as orders, open(f"{base}.out", "w", buffering=1) as answers:
        rank = Rank(options)
        answers.write(f"hello {os.getpid()} torch {torch.__version__}\n")
        while (line := orders.readline().split()) and line[0] != "quit":
            if line[0] == "drop":
                rank.drop()
                answers.write("dropped\n")
            else:
                answers.write(rank.measure(line[1:]) + "\n")
        rank.drop()


def main(arguments=None):
    """Of one process."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("control", "name", "store", "shapes", "arena"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rank", "world", "arena-bytes"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--socket", default="")
    serve(parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
