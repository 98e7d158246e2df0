#!/usr/bin/env python3
"""How long does an optimiser step take where the pool is far, and what does local memory bring?

AdamW over float32 parameters, in turn: in the pool of an emulated machine, where `arena=[pool, local]`
puts it, and in the memory of this host under a daemon that emulates nothing. docs/optimisers.md.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A single host's expander with the figures of the multi-headed Niagara 2.0, which are within this
# emulator's reach: docs/emulator.md. The preset itself is of hosts that share no caches.
MACHINE = """
name = "one_host_niagara2"
source = "as mhd_niagara2, for one host"
nodes = ["host"]
[[device]]
name = "expander"
latency = "640ns"
bandwidth = "10.1GB/s"
[[link]]
name = "port"
from = "host"
to = "expander"
"""


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="", help="preset or machine file (default: one host's expander, 640 ns, 10.1 GB/s)")
    parser.add_argument("--elements", type=int, default=25_557_032, help="parameters (default: those of ResNet-50)")
    parser.add_argument("--ranks", type=int, default=2, help="default 2")
    parser.add_argument("--rounds", type=int, default=15, help="steps of each, in turn (default 15)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    return parser.parse_args(arguments)


def timed(group, held):
    group.barrier()
    begun = time.perf_counter()
    held.step(learning_rate=1e-3)
    return 1e3 * (time.perf_counter() - begun)


def run_rank(options, rank, far_socket, own_socket):
    """Milliseconds of each step by place, and where auto has put it."""
    import fabricshm

    shapes = {"w": options.elements}
    room = 2 * fabricshm.Parameters.bytes(shapes, options.ranks) + (256 << 20)
    with fabricshm.Session(socket=far_socket) as far, fabricshm.Session(socket=own_socket) as own:
        pool = far.arena("job", bytes=room)
        near = far.arena("job.local", bytes=room, local=True)
        group = pool.join("ranks", rank, options.ranks)
        own_group = own.arena("job", bytes=room).join("ranks", rank, options.ranks)
        sets = {"pool": (group, fabricshm.Parameters(group, "pool", shapes)),
                "auto": (group, fabricshm.Parameters(group, "auto", shapes, arena=[pool, near])),
                "DRAM": (own_group, fabricshm.Parameters(own_group, "dram", shapes))}
        for _, held in sets.values():
            held.gradients["w"][...] = 1e-3
        times = {name: [] for name in sets}
        for turn in range(options.rounds + 1):
            for name, (of, held) in sets.items():
                taken = timed(of, held)
                if turn:  # the first one touches every page
                    times[name].append(taken)
        return times, sets["auto"][1].arena.name


def main(arguments=None):
    options = parse_options(arguments)
    sys.path.insert(0, os.path.join(options.build, "python"))
    sys.path.insert(0, os.path.join(SOURCE, "tests", "python", "support"))
    os.environ.setdefault("FABRICD", os.path.join(options.build, "fabricd", "fabricd"))
    import fabric_test
    from fabricshm._daemon import EmbeddedDaemon

    with tempfile.TemporaryDirectory() as folder:
        machine = options.machine
        if not machine:
            machine = os.path.join(folder, "one_host_niagara2.toml")
            with open(machine, "w") as file:
                file.write(MACHINE)
        room = 5 * 4 * options.elements * (3 + options.ranks) + (2 << 30)
        with EmbeddedDaemon(pool_bytes=room, options=["--pool-backend", "emu", "--emulate", machine]) as far, \
                EmbeddedDaemon(pool_bytes=room, options=["--pool-backend", "emu"]) as own:  # fmt: skip
            ranks = fabric_test.Ranks(lambda rank, _: run_rank(options, rank, far.socket, own.socket), options.ranks)
            found = ranks.results(deadline=600)
    times, chosen = found[0]
    print(f"{options.elements:,} parameters, {options.ranks} ranks, {options.rounds} rounds; auto took {chosen}")
    paired = {name: statistics.median(a / b for a, b in zip(times["DRAM"], times[name])) for name in times}
    for name, samples in times.items():
        print(f"{name:5} {statistics.median(samples):8.1f} ms, least {min(samples):8.1f}; "
              f"{paired[name]:.2f} of the speed in DRAM")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"elements": options.elements, "ranks": options.ranks, "machine": options.machine or MACHINE,
                       "chosen": chosen, "ms": times}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
