"""What a job of these tests runs: joins the group of its job by what Slurm and the plugin set, adds up, and says so.

    trainer.py sum
    trainer.py die             rank 1 is killed
    trainer.py hold FILE       goes on until FILE is there
    trainer.py leave FILE      leaves a process behind that has the arena; its number is in FILE
    trainer.py torch           the same sum by torch.distributed
"""

import os
import signal
import sys
import time

import fabricshm

here = fabricshm.launch()


def say(total):
    # One write, so that lines of ranks do not mix.
    sys.stdout.write(f"sum {total:g} rank {here.rank} of {here.world} local {here.local_rank} of {here.local_world} "
                     f"node {here.node} of {here.nodes} launcher {here.launcher} arena {os.environ['FABRIC_ARENA']}\n")
    sys.stdout.flush()


def open_arena(session):
    return session.arena(os.environ["FABRIC_ARENA"], bytes=int(os.environ["FABRIC_ARENA_BYTES"]))


def stay(path):
    """In a process that Slurm does not know: its parents are gone and its session is its own."""
    if os.fork() != 0:
        while not os.path.exists(path):
            time.sleep(0.01)
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    for number in range(3):  # or srun would wait for the end of its output
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    with fabricshm.Session(label="left behind") as session:
        arena = open_arena(session)
        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + ".new", path)
        time.sleep(600)
        del arena


def add_up(mode):
    with fabricshm.Session(label=f"rank {here.rank}") as session:
        arena = open_arena(session)
        group = arena.join("world", here.rank, here.world)
        values = arena.zeros(1000, "float32")
        values += here.rank + 1
        group.all_reduce(values)
        assert (values == values[0]).all()
        if mode == "die" and here.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        say(values[0])
        if mode == "hold":
            while not os.path.exists(sys.argv[2]):
                time.sleep(0.01)
        if mode == "die":
            time.sleep(600)  # not in an operation, which would end with an error: Slurm has to end it


def add_up_with_torch():
    import torch
    import torch.distributed as dist

    import fabricshm.torch  # noqa: F401
    dist.init_process_group("fabricshm", rank=here.rank, world_size=here.world)
    values = torch.full((1000,), float(here.rank + 1))
    dist.all_reduce(values)
    assert (values == values[0]).all()
    with fabricshm.Session() as session:  # the group is in the job's arena
        assert session.arena(os.environ["FABRIC_ARENA"]) is not None
    say(values[0].item())
    dist.destroy_process_group()


chosen = sys.argv[1]
if chosen == "torch":
    add_up_with_torch()
elif chosen == "leave":
    stay(sys.argv[2])
else:
    add_up(chosen)
