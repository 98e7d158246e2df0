#!/usr/bin/python3
"""What does fabricd cost while others work?

Starts a fabricd of its own with the defaults (telemetry ten times a second, the control loop deciding
once a second without acting) and measures the processor time of all its threads: with no session attached,
then with jobs of a few ranks, each of which joins its peers in an all_reduce and reports a step, at
a rate. Attaching is not counted. Prints a table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position,import-outside-toplevel
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unwind_on_signals  # noqa: E402
from harness.fingerprint import fingerprint  # noqa: E402
from harness.usage import cpu_seconds  # noqa: E402

ARENA_BYTES = 32 << 20


def parse_options(arguments):
    """The command line; --member is for the processes that this program starts."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sessions", default="0,64", metavar="LIST", help="how many, in turn (default 0,64)")
    add("--world", type=int, default=4, help="ranks of a job (default 4)")
    add("--rate", type=float, default=10, help="steps of a rank per second (default 10)")
    add("--seconds", type=float, default=20, help="that are measured of each (default 20)")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--json", metavar="FILE", help="write everything measured")
    add("--member", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    counts = options.sessions.split(",")
    if not all(count.isdecimal() for count in counts):
        parser.error(f"--sessions is {options.sessions}: a list of numbers")
    if options.world < 1 or any(int(count) % options.world for count in counts):
        parser.error("--world is at least 1 and divides each of --sessions")
    if options.rate <= 0 or options.seconds <= 0:
        parser.error("--rate and --seconds are above 0")
    return options


def member(options):
    """A rank of a job: meets its peers and reports a step, until it is ended."""
    import fabricshm
    import numpy
    job, rank = divmod(options.member, options.world)
    with fabricshm.Session(label=f"job{job}") as session:
        arena = session.arena(f"job{job}", bytes=ARENA_BYTES)
        with arena.join("all", rank, options.world) as group:
            data = numpy.ones(256, "float32")
            group.all_reduce(data)
            print("ready", flush=True)
            while True:
                time.sleep(1 / options.rate)
                group.all_reduce(data)
                session.step(samples=32)


def start_members(options, count, socket):
    """The ranks, all attached and in their groups."""
    environment = {**os.environ, "FABRIC_SOCKET": socket, "OPENBLAS_NUM_THREADS": "1",
                   "PYTHONPATH": os.path.join(options.build, "python")}
    command = [sys.executable, os.path.abspath(__file__), "--world", str(options.world),
               "--sessions", "0", "--rate", str(options.rate)]
    members = [subprocess.Popen(command + ["--member", str(number)], stdout=subprocess.PIPE,
                                env=environment, preexec_fn=end_with_parent)
               for number in range(count)]
    for one in members:
        # Bounded: the fabric's own waits are, and a member that gives up closes its end.
        if one.stdout.readline().strip() != b"ready":
            raise SystemExit("daemon_cost: a member did not come up")
    return members


def measure(options, count):
    """Share of a core, with so many sessions."""
    with tempfile.TemporaryDirectory(prefix="fabric-cost-") as folder:
        pool = ARENA_BYTES * (count // options.world + 1) + (64 << 20)
        daemon = Daemon(os.path.join(options.build, "fabricd", "fabricd"), folder, pool)
        members = []
        try:
            problem = daemon.wait_ready()
            if problem:
                raise SystemExit(f"daemon_cost: fabricd did not start: {problem}")
            members = start_members(options, count, daemon.socket_path)
            used, began = cpu_seconds(daemon.pid), time.monotonic()
            time.sleep(options.seconds)
            used, took = cpu_seconds(daemon.pid) - used, time.monotonic() - began
            if any(one.poll() is not None for one in members):
                raise SystemExit("daemon_cost: a member ended early")
        finally:
            for one in members:
                one.kill()
            for one in members:
                one.wait()
            daemon.stop()
    return {"sessions": count, "seconds": took, "cpu_s": used, "share": used / took}


def main(arguments=None):
    """Measures, prints, writes."""
    options = parse_options(arguments)
    if options.member is not None:
        return member(options)
    print("| sessions | processor time of fabricd |\n|---:|---:|")
    rows = []
    for count in options.sessions.split(","):
        rows.append(measure(options, int(count)))
        print(f"| {count} | {rows[-1]['share']:.2%} of a core |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows, "rate": options.rate, "world": options.world,
                       "machine": fingerprint(SOURCE, {})}, file)
    return 0


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
