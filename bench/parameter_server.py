#!/usr/bin/python3
"""What does a parameter server cost without staleness, and what does staleness bring where one rank is slow?

Two questions, each by turns in the same processes, so that a slow minute of the machine hits both sides:
a step of ParameterServer(staleness=0) against an allreduce in the pool and each rank's own optimiser step (AdamW of
the fabric on float32), and samples per second of a staleness against steps by all, with the last rank's computing
slowed down by sleeping. docs/parameter_server.md.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness.fingerprint import fingerprint  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=4_000_000, help="parameters (default 4,000,000)")
    parser.add_argument("--ranks", type=int, default=2, help="default 2")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each side (default 11)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn (default 10)")
    parser.add_argument("--compute", type=float, default=20, metavar="MS", help="of a fast rank's step (default 20)")
    parser.add_argument("--slow", type=float, default=4, help="times as long for the last rank (default 4)")
    parser.add_argument("--staleness", type=int, default=2, help="default 2")
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    return parser.parse_args(arguments)


class Together:
    """Steps of a server, and of an allreduce with an optimiser of each rank's own."""

    def __init__(self, options, group, own):
        import fabricshm
        import torch

        self.group = group
        self.tensor = torch.nn.Parameter(torch.zeros(options.elements))
        self.server = fabricshm.ParameterServer([self.tensor], "adamw", group=group, name="together", lr=1e-3)
        self.server.zero_grad()
        self.tensor.grad.fill_(1e-3)
        # Of this rank alone; its gradient is in the pool, where the allreduce sums in place.
        self.own = fabricshm.Parameters(own, f"own-{group.rank}", {"w": options.elements}, optimiser="adamw")
        self.own.gradients["w"][...] = 1e-3
        self.scale = 1 / group.world

    def serve(self):
        self.server.step()

    def reduce(self):
        self.group.all_reduce(self.own.gradients["w"])
        self.own.step(learning_rate=1e-3, scale=self.scale)


def timed(group, function, steps):
    group.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        function()
    group.barrier()
    return 1e3 * (time.perf_counter() - begun) / steps


def compare_steps(options, group, own):
    """Milliseconds of a step, by side and turn."""
    sides = Together(options, group, own)
    times = {"server": [], "allreduce": []}
    for turn in range(options.rounds + 1):
        order = ("server", "allreduce") if turn % 2 else ("allreduce", "server")
        for side in order:
            taken = timed(group, sides.serve if side == "server" else sides.reduce, options.steps)
            if turn:  # the first one touches every page
                times[side].append(taken)
    return times


def samples_per_second(options, group, staleness, name, seconds):
    """Of all ranks, each of which computes one sample a step."""
    import fabricshm
    import numpy
    import torch

    tensor = torch.nn.Parameter(torch.zeros(min(options.elements, 100_000)))
    server = fabricshm.ParameterServer([tensor], "sgd", staleness=staleness, group=group, name=name, lr=1e-3)
    is_slow = group.rank == group.world - 1
    compute = options.compute / 1e3 * (options.slow if is_slow else 1)
    count = 0
    group.barrier()
    begun = time.perf_counter()
    # Steps by all have to be as many on all ranks: those of the slow one.
    target = None if staleness else max(2, round(seconds / (options.compute / 1e3 * options.slow)))
    while count < target if target else time.perf_counter() - begun < seconds:
        server.zero_grad()
        time.sleep(compute)
        server.step()
        count += 1
    total = numpy.array([float(count)])
    server.close()
    taken = time.perf_counter() - begun
    group.all_reduce(total)
    return total[0] / taken


def compare_speeds(options, group):
    """Samples a second, by side and turn."""
    seconds = options.steps * options.compute * options.slow / 1e3 / 2
    speeds = {"together": [], "stale": []}
    for turn in range(options.rounds):
        for side in ("together", "stale") if turn % 2 else ("stale", "together"):
            staleness = options.staleness if side == "stale" else 0
            speeds[side].append(samples_per_second(options, group, staleness, f"{side}-{turn}", seconds))
    return speeds


def run_rank(options, rank):
    import fabricshm

    room = (24 + 24 * options.ranks) * options.elements + (512 << 20)
    with fabricshm.Session(timeout=120) as session:
        arena = session.arena("bench", bytes=room)
        group = arena.join("ranks", rank, options.ranks)
        # In the same arena: what an allreduce sums in place.
        own = arena.join(f"own-{rank}", 0, 1)
        return {"step_ms": compare_steps(options, group, own), "samples_per_s": compare_speeds(options, group)}


def fork_rank(options, rank, path):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        found = run_rank(options, rank)
        if rank == 0:
            with open(path, "w") as file:
                json.dump(found, file)
        code = 0
    finally:
        os._exit(code)


def quartiles(values):
    values = sorted(values)
    return values[len(values) // 4], values[(3 * len(values)) // 4]


def show(title, unit, sides, ratio_of):
    print(title)
    for side, values in sides.items():
        low, high = quartiles(values)
        print(f"  {side:10} {statistics.median(values):8.2f} {unit}, middle half {low:.2f} to {high:.2f}")
    ratios = [ratio_of(*pair) for pair in zip(*sides.values())]
    low, high = quartiles(ratios)
    print(f"  ratio {statistics.median(ratios):.2f}, middle half {low:.2f} to {high:.2f}, of {len(ratios)} pairs")
    return statistics.median(ratios)


def main(arguments=None):
    options = parse_options(arguments)
    sys.path.insert(0, os.path.join(options.build, "python"))
    os.environ.setdefault("FABRICD", os.path.join(options.build, "fabricd", "fabricd"))
    os.environ["OMP_NUM_THREADS"] = "1"
    from fabricshm._daemon import EmbeddedDaemon

    pool = (options.ranks + 2) * (48 * options.elements) + (2 << 30)
    daemon = EmbeddedDaemon(pool_bytes=pool)
    os.environ["FABRIC_SOCKET"] = daemon.socket
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "found")
            children = [fork_rank(options, rank, path) for rank in range(options.ranks)]
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            if any(codes):
                print(f"parameter_server: ranks ended with {codes}", file=sys.stderr)
                return 1
            with open(path) as file:
                found = json.load(file)
    finally:
        daemon.stop()
    found["options"] = {key: value for key, value in vars(options).items() if key != "build"}
    found["step_ratio"] = show(f"a step of AdamW, {options.elements:,} float32, {options.ranks} ranks", "ms",
                               found["step_ms"], lambda server, allreduce: server / allreduce)
    found["speed_ratio"] = show(
        f"staleness {options.staleness}, last of {options.ranks} ranks {options.slow:g} times as slow", "samples/s",
        found["samples_per_s"], lambda together, stale: stale / together)
    if options.json:
        found["machine"] = fingerprint(SOURCE, {})
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
