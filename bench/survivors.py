#!/usr/bin/env python3
"""How long after a rank's death do the others have their next optimiser step?

Ranks step AdamW over shared parameters; one of them is killed, in or between its steps. The others
shrink the group, settle the step and step again. From the kill to the end of that step. docs/optimisers.md.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=25_557_032, help="parameters (default: those of ResNet-50)")
    parser.add_argument("--ranks", type=int, default=3, help="default 3")
    parser.add_argument("--rounds", type=int, default=20, help="deaths (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of death (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    return parser.parse_args(arguments)


def run_rank(elements, rank, world):
    """Seconds on the clock: of the error, of the new group, of the recovery, of the next step."""
    import fabricshm

    with fabricshm.Session(timeout=30) as session:
        shapes = {"w": elements}
        arena = session.arena("job", bytes=fabricshm.Parameters.bytes(shapes, world) + (256 << 20))
        group = arena.join("ranks", rank, world)
        held = fabricshm.Parameters(group, "model", shapes)
        held.gradients["w"][...] = 1e-3
        for _ in range(2):
            held.step(learning_rate=1e-3)
        group.barrier()
        print("ready", flush=True)
        try:
            while True:
                held.step(learning_rate=1e-3)
        except fabricshm.PeerError:
            times = [time.monotonic()]
        smaller = group.shrink()
        times.append(time.monotonic())
        held.recover(smaller)
        times.append(time.monotonic())
        held.step(learning_rate=1e-3)
        times.append(time.monotonic())
        return times


def main(arguments=None):
    options = parse_options(arguments)
    sys.path.insert(0, os.path.join(options.build, "python"))
    sys.path.insert(0, os.path.join(SOURCE, "tests", "python", "support"))
    os.environ.setdefault("FABRICD", os.path.join(options.build, "fabricd", "fabricd"))
    import fabric_test
    from fabricshm._daemon import EmbeddedDaemon

    chance = random.Random(options.seed)
    found = []
    room = 4 * options.elements * (4 + options.ranks) + (2 << 30)
    with EmbeddedDaemon(pool_bytes=room, options=["--pool-backend", "emu"]) as daemon:
        os.environ["FABRIC_SOCKET"] = daemon.socket
        for _ in range(options.rounds):
            ready, report = os.pipe()

            def body(rank, world, sink=report):
                os.dup2(sink, 1)
                return run_rank(options.elements, rank, world)

            ranks = fabric_test.Ranks(body, options.ranks)
            os.close(report)
            seen = b""
            while seen.count(b"ready") < options.ranks:
                more = os.read(ready, 4096)
                if not more:
                    break  # what went wrong is in the results
                seen += more
            time.sleep(chance.uniform(0, 0.1))
            victim = chance.randrange(options.ranks)
            killed = time.monotonic()
            os.kill(ranks.pids[victim], signal.SIGKILL)
            results = ranks.results(dead=(victim,))
            os.close(ready)
            found.append([max(times) - killed for times in zip(*(r for r in results if r is not None))])
    for name, values in zip(("noticed", "shrunk", "recovered", "next step"), zip(*found)):
        print(f"{name:10} median {1e3 * statistics.median(values):7.1f} ms, worst {1e3 * max(values):7.1f} ms")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"elements": options.elements, "ranks": options.ranks, "seed": options.seed, "seconds": found}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
