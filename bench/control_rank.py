"""One rank of bench/control.py: real training, on a device of a prescribed speed."""

import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# pylint: disable=wrong-import-position,import-outside-toplevel
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "examples", "fashion_mnist"))
from harness.endings import end_with_parent  # noqa: E402

LEARNING_RATE, MOMENTUM = 0.1, 0.9
NEIGHBOUR_BYTES = 64 << 20
APPETITE = 12  # quarters of that which the neighbour wants in the pool


def make_network():
    """A perceptron: 15 us of this machine per image, so that the prescribed speeds are the limit, not
    the processors that the ranks share. 85 % of Fashion-MNIST within an epoch."""
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


class WrittenDirectives:
    """Directives from a file in place of a daemon: a JSON list, each with the step from which it is
    there. For trying the trainer's side alone."""

    def __init__(self, path):
        with open(path) as file:
            self._rows = json.load(file)
        self._steps = 0

    def read(self):
        """The newest row that is due."""
        from fabricshm.torch import Directives
        due = [row for row in self._rows if row.get("step", 0) <= self._steps]
        if not due:
            return None
        fields = {name: value for name, value in due[-1].items() if name != "step"}
        return Directives(serial=len(due), **fields)

    def report(self, **_figures):
        """Counts the steps; no daemon reads them."""
        self._steps += 1


class Device:
    """Slows this process down to a device that does so many samples per second."""

    def __init__(self, rate, speeds):
        from fabricshm.devices.pacer import Pacer
        self.pacer = Pacer()
        self._rate, self._speeds = rate, speeds
        self._seconds = 0.0

    def begin(self, samples, phase):
        """The samples of a step are there."""
        self._seconds = samples / (self._rate * self._speeds[phase])
        self.pacer.begin()

    def computed(self, gradient):
        """Hook of the parameter whose gradient is the last: before it is given to be merged."""
        self.pacer.finish(self._seconds)
        self.pacer.ask()
        return gradient


class Rank:
    """What one process holds."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist
        import fashion_mnist
        import fabricshm.torch as fabric
        self.torch, self.dist, self.options = torch, dist, options
        self.fashion = fashion_mnist
        torch.set_num_threads(1)
        dist.init_process_group("fabricshm", init_method=f"file://{options.store}",
                                rank=options.rank, world_size=options.ranks)
        torch.manual_seed(1)
        network = make_network()
        plan = json.loads(options.plan)
        self.ends = plan["ends"]
        self.device = Device(plan["rate"], [row[options.rank] for row in plan["speeds"]])
        self.neighbour_phase = plan["neighbour"]
        network[1].weight.register_hook(self.device.computed)
        self.model = torch.nn.parallel.DistributedDataParallel(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE, MOMENTUM)
        self.data = fashion_mnist.load("train")
        self.sampler = fabric.FabricSampler(self.data[0], options.batch, seed=options.seed)
        session = WrittenDirectives(options.directives) if options.directives else None
        self.control = fabric.Control(self.model, self.sampler, self.optimizer, session=session)
        self.steps, self.kept = [], []

    def phase_of(self, step):
        """The row of speeds that holds."""
        return sum(step >= end for end in self.ends[:-1])

    def train(self):
        """All steps; times count from when all ranks are ready."""
        self.dist.barrier()
        self.started = self.last = time.monotonic()
        self.device.pacer.ask()
        step, neighbour = 0, None
        while step < self.ends[-1]:
            self.sampler.set_epoch(step // len(self.sampler))
            for mine in self.sampler:
                phase = self.phase_of(step)
                if phase == self.neighbour_phase and neighbour is None and self.options.rank == 0:
                    neighbour = start_neighbour()
                self.step(mine, step, phase)
                step += 1
                if step == self.ends[-1]:
                    break
        if neighbour is not None:
            neighbour.terminate()
            neighbour.wait()

    def step(self, mine, number, phase):
        """One step, and what is to be reported of it."""
        images, labels = self.data[0][mine], self.data[1][mine]
        counts = self.sampler.step_counts
        self.device.begin(counts[self.options.rank], phase)
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        serial, interval = self.control.serial, self.control.sync_interval
        self.control.step(loss)
        now = time.monotonic()
        self.steps.append({"t": now - self.started, "s": now - self.last, "counts": counts,
                           "serial": serial, "interval": interval, "phase": phase,
                           "loss": self.control.last_loss})
        self.last = now
        if (number + 1) % self.options.keep_every == 0:
            flat = self.torch.cat([p.detach().flatten() for p in self.model.parameters()])
            self.kept.append((now - self.started, flat))

    def accuracies(self):
        """[seconds, share of the test images that are right] of what was kept on the way."""
        images, labels = self.fashion.load("t10k")
        rank, world = self.options.rank, self.options.ranks
        found = []
        for seconds, flat in self.kept:
            self.torch.nn.utils.vector_to_parameters(flat, self.model.parameters())
            right = self.torch.tensor([self.fashion.count_correct(
                self.model.module, images[rank::world], labels[rank::world])])
            self.dist.all_reduce(right)
            found.append([seconds, right.item() / len(images)])
        return found


def start_neighbour():
    """The process of neighbour() below."""
    words = [sys.executable, os.path.join(HERE, "control.py"), "--neighbour"]
    return subprocess.Popen(words, preexec_fn=end_with_parent,
                            env={**os.environ, "FABRIC_DEVICE": "neighbour"})


def neighbour():
    """Copies memory half of the time, and wants ever more of the pool than its device's quota, until
    it is ended."""
    import numpy
    import fabricshm
    source = numpy.ones(NEIGHBOUR_BYTES // 8)
    target = source.copy()
    held = []
    with fabricshm.Session(label="neighbour") as session:
        arena = session.arena("neighbour", bytes=4 * NEIGHBOUR_BYTES)
        while True:
            began = time.monotonic()
            target[:] = source
            try:
                if len(held) < APPETITE:
                    held.append(arena.empty(NEIGHBOUR_BYTES // 4, "uint8"))
            except fabricshm.OutOfMemoryError:
                pass  # the daemon counts what it refuses
            session.step(samples=0)
            time.sleep(max(time.monotonic() - began, 0.1))


def main(options):
    """Trains; writes what this rank saw."""
    rank = Rank(options)
    rank.train()
    found = {"steps": rank.steps, "accuracy": rank.accuracies(),
             "started": rank.started, "late": rank.device.pacer.late, "real_s": rank.device.pacer.real_s}
    if options.rank != 0:
        found["steps"] = []
    with open(f"{options.result}-{options.rank}.json", "w") as file:
        json.dump(found, file)
    rank.dist.barrier()
    rank.dist.destroy_process_group()
    return 0
