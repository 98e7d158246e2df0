"""What a rank of job_test.py runs: adds up over its job, and writes one line.

    job_rank.py                     ends
    job_rank.py fail CODE [ONCE]    rank 1 ends with CODE, the first time alone with ONCE; the others wait
    job_rank.py hold                all wait
"""

import os
import sys
import time

import fabricshm

here = fabricshm.launch()
get = os.environ.get


def add_up():
    with fabricshm.Session(label=f"rank {here.rank}") as session:
        arena = session.arena(get("FABRIC_ARENA"), bytes=int(get("FABRIC_ARENA_BYTES")))
        group = arena.join("world-" + get("TORCHELASTIC_RESTART_COUNT"), here.rank, here.world)
        values = arena.zeros(1000, "float32")
        values += here.rank + 1
        group.all_reduce(values)
        assert (values == values[0]).all()
        print(f"sum {values[0]:g} world {here.world} local {here.local_rank}/{here.local_world} node {here.node}/{here.nodes}",
              *(get(f"FABRIC_{name}") for name in ("JOB_NAME", "JOB_GROUP", "JOB_KIND", "DEVICE", "JOB_SHARES", "ARENA_BYTES")),
              get("MASTER_ADDR"), get("TORCHELASTIC_RUN_ID"), *sys.argv[1:], flush=True)
        if sys.argv[1:] and sys.argv[1] in ("fail", "hold"):
            is_due = sys.argv[1] == "fail" and (sys.argv[3:] != ["ONCE"] or get("TORCHELASTIC_RESTART_COUNT") == "0")
            if is_due and here.rank == 1:
                sys.exit(int(sys.argv[2]))
            if is_due or sys.argv[1] == "hold":
                time.sleep(600)


add_up()
