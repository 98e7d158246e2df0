#!/usr/bin/env python3
"""Trains one workload with gloo and with the fabric and compares what was learnt.

Two ranks: a sum of two numbers has one order only, so the parameters agree to the last bit. Four:
gloo adds in another order than the fabric, so they agree within rounding. Always: all ranks of one
run hold the same bits, and the loss has fallen.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

from embedded_fabric import fabric_for  # noqa: E402

ARENA_BYTES = 512 << 20  # ResNet-50's buckets of four ranks take 410 MB
RUN_SECONDS = 150
# Rounding, grown by the steps of the training: relative to the largest value of each tensor, or to
# SMALL_VALUE where all are smaller (biases that began at zero a few steps ago).
TOLERANCE = {"digits_mlp": 1e-4, "fashion_cnn": 1e-4, "gloss_transformer": 1e-4, "resnet50": 1e-4}
SMALL_VALUE = 0.01


def run_rank(folder, name, backend, rank, world):
    """A forked child: trains, saves what it learnt, and ends without the parent's clean-up."""
    status = 1
    try:
        import torch
        import trainer

        init_method = f"file://{folder}/rendezvous-{backend}"
        result = trainer.train(name, backend, rank, world, init_method)
        torch.save(result, os.path.join(folder, f"{backend}-{rank}.pt"))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_ranks(folder, name, backend, world):
    """Forks the ranks and waits for them; when one fails, or time is up, the others are killed."""
    sys.stdout.flush()
    alive = {}
    for rank in range(world):
        child = os.fork()
        if child == 0:
            run_rank(folder, name, backend, rank, world)
        alive[child] = rank
    signal.alarm(RUN_SECONDS)  # SIGALRM interrupts waitpid below
    try:
        while alive:
            child, status = os.wait()
            rank = alive.pop(child)
            if status != 0:
                raise RuntimeError(f"{backend}: rank {rank} of {world} failed ({status:#x})")
    finally:
        signal.alarm(0)
        for child in alive:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def train_with(folder, name, backend, world):
    import torch

    started = time.monotonic()
    run_ranks(folder, name, backend, world)
    seconds = time.monotonic() - started
    results = [torch.load(os.path.join(folder, f"{backend}-{rank}.pt")) for rank in range(world)]
    mean = [sum(step) / world for step in zip(*(result["losses"] for result in results))]
    print(f"  {backend}: loss {mean[0]:.4f} -> {mean[-1]:.4f}, {seconds:.1f} s", flush=True)
    if not mean[-1] < mean[0]:
        raise RuntimeError(f"{backend} did not learn")
    return results


def largest_difference(left, right):
    """The largest difference of any tensor, relative to that tensor's values, and its name."""
    worst = (0.0, "")
    for name, value in left.items():
        value, other = value.double(), right[name].double()
        scale = max(value.abs().max().item(), SMALL_VALUE)
        worst = max(worst, ((value - other).abs().max().item() / scale, name))
    return worst


def same_bits(left, right):
    return all(value.equal(right[name]) for name, value in left.items())


def check(name, world, expected, actual):
    """Raises with what differs, or prints what was compared."""
    for results in (expected, actual):
        for rank, result in enumerate(results):
            if not same_bits(result["parameters"], results[0]["parameters"]):
                raise RuntimeError(f"rank {rank} has other parameters than rank 0")
    worst, tensor = largest_difference(expected[0]["parameters"], actual[0]["parameters"])
    count = sum(value.numel() for value in expected[0]["parameters"].values())
    if world == 2:
        for rank in range(world):
            for kind in ("parameters", "buffers"):
                if not same_bits(expected[rank][kind], actual[rank][kind]):
                    raise RuntimeError(f"rank {rank}: {kind} differ, {tensor} by {worst:.1e}")
        if expected[0]["losses"] != actual[0]["losses"]:
            raise RuntimeError("the losses differ")
        print(f"  {count:,} parameters equal to the last bit, and the same on all ranks")
        return
    if worst > TOLERANCE[name]:
        raise RuntimeError(f"{tensor} differs by {worst:.1e} of its largest value")
    print(f"  {count:,} parameters within {worst:.1e}, and the same on all ranks")


def raise_timeout(number, frame):
    raise RuntimeError(f"not finished after {RUN_SECONDS} s")


def compare(options, world):
    print(f"{options.workload}, {world} ranks", flush=True)
    with tempfile.TemporaryDirectory(prefix="training-") as folder:
        expected = train_with(folder, options.workload, options.reference, world)
        actual = train_with(folder, options.workload, options.backend, world)
        check(options.workload, world, expected, actual)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=TOLERANCE)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=[2, 4])
    parser.add_argument("--reference", default="gloo")
    parser.add_argument("--backend", default="fabricshm")
    options = parser.parse_args()
    try:
        import torch
        import torchvision  # noqa: F401  here once, not in every rank
    except ImportError as error:
        print(f"skipped: {error} (Debian: python3-torch, python3-torchvision)")
        return 77
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, raise_timeout)
    with fabric_for(options.backend, ARENA_BYTES):
        for world in options.ranks:
            compare(options, world)
    return 0


if __name__ == "__main__":
    sys.exit(main())
