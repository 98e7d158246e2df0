"""What a job of these tests runs: joins the group of its job by what Slurm and the plugin set, adds up, and says so."""

import os
import signal
import sys
import time

import numpy

import fabricshm

here = fabricshm.launch()
mode = sys.argv[1] if len(sys.argv) > 1 else "sum"

with fabricshm.Session(label=f"rank {here.rank}") as session:
    # The size comes from the option, by way of the environment.
    arena = session.arena(os.environ["FABRIC_ARENA"], bytes=int(os.environ["FABRIC_ARENA_BYTES"]))
    group = arena.join("world", here.rank, here.world)
    values = arena.zeros(1000, "float32")
    values += here.rank + 1
    group.all_reduce(values)
    if mode == "die" and here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hold":
        time.sleep(float(sys.argv[2]))
    # One write, so that lines of ranks do not mix.
    sys.stdout.write(f"sum {values[0]:g} {values[-1]:g} rank {here.rank} of {here.world} "
                     f"local {here.local_rank} of {here.local_world} node {here.node} of {here.nodes} "
                     f"launcher {here.launcher} arena {os.environ['FABRIC_ARENA']}\n")
    sys.stdout.flush()
    if mode == "die":
        group.barrier()  # ends with the error that names the rank that died, or with the step
