"""What the recipes of this folder run: a sum over the ranks, as a training's gradients."""

import os

import fabricshm

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with fabricshm.Session() as session:
    arena = session.arena("ci", bytes=64 << 20)
    group = arena.join("world", rank, world)
    gradient = arena.zeros(1_000_000, "float32")
    gradient += rank + 1
    group.all_reduce(gradient)
    assert (gradient == sum(range(1, world + 1))).all()
print(f"rank {rank} of {world}: the sum is right")
