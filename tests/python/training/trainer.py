#!/usr/bin/env python3
"""One rank of a training: an ordinary DistributedDataParallel script, with the backend as option.

  RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29512 trainer.py fashion_cnn --backend gloo
"""

import argparse
import os
from datetime import timedelta

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from workloads import WORKLOADS  # noqa: E402

TIMEOUT = timedelta(seconds=120)


def train(name, backend, rank, world, init_method, steps=None):
    """Trains with `backend` and returns the losses and what the model has learnt."""
    workload = WORKLOADS[name]
    if backend == "fabricshm":
        import fabricshm.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group(
        backend, init_method=init_method, rank=rank, world_size=world, timeout=TIMEOUT
    )
    assert dist.get_backend() == backend
    data = workload.load()
    model = DistributedDataParallel(workload.model())
    optimizer = workload.optimizer(model.parameters())
    losses = []
    for step in range(steps or workload.steps[world]):
        inputs, targets = workload.draw(data, step, rank)
        optimizer.zero_grad()
        loss = workload.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
    module = model.module
    return {
        "losses": losses,
        "parameters": {name: value.detach().clone() for name, value in module.named_parameters()},
        "buffers": {name: value.clone() for name, value in module.named_buffers()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--backend", default="fabricshm", help="fabricshm (default) or gloo")
    parser.add_argument("--steps", type=int, help="default: what the test runs")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    result = train(options.workload, options.backend, rank, world, "env://", options.steps)
    if rank == 0:
        print("losses:", " ".join(f"{loss:.4f}" for loss in result["losses"]))


if __name__ == "__main__":
    main()
