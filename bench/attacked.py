#!/usr/bin/python3
"""What do hostile clients of fabricd cost a job that behaves?

A job of two ranks runs small all_reduces on buffers in its arena. Next to it, in turn and again in each round: nothing; plain
busy loops, as many as there are attackers, and one more, since fabricd works for the attackers; attackers of several kinds. Every
process is in a session of its own, as those of different users are. Prints a table with the job's 99th percentile next to
each, and its ratios to those next to the loops of the same round.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position,import-outside-toplevel
from harness import attackers  # noqa: E402
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unwind_on_signals  # noqa: E402
from harness.fingerprint import fingerprint  # noqa: E402
from harness.report import size_text, time_text  # noqa: E402
from harness.usage import cpu_seconds  # noqa: E402

KINDS = ("storm", "half-open", "garbage", "held")
ARENA_BYTES = 16 << 20


def parse_options(arguments):
    """The command line; the hidden ones are for the processes that this program starts."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--attackers", type=int, default=2, metavar="N", help="processes of each attack (default 2)")
    add("--connections", type=int, default=10000, metavar="N",
        help="sessions of the attack that holds its own (default 10000)")
    add("--kinds", default=",".join(KINDS), metavar="LIST", help=f"of {', '.join(KINDS)} (default all)")
    add("--sizes", default="8,65536", metavar="LIST", help="bytes, multiples of 8 (default 8,65536)")
    add("--rounds", type=int, default=9, metavar="N", help="(default 9)")
    add("--seconds", type=float, default=1.0, metavar="S", help="of each measurement (default 1)")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--json", metavar="FILE", help="write everything measured")
    add("--rank", type=int, help=argparse.SUPPRESS)
    add("--attacker", help=argparse.SUPPRESS)
    add("--socket", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.kinds = options.kinds.split(",")
    options.sizes = [int(size) for size in options.sizes.split(",")]
    if not set(options.kinds) <= set(KINDS):
        parser.error(f"--kinds: of {', '.join(KINDS)}")
    if any(size < 8 or size % 8 for size in options.sizes):
        parser.error("--sizes: multiples of 8")
    if min(options.attackers, options.connections, options.rounds) < 1 or options.seconds <= 0:
        parser.error("--attackers, --connections, --rounds and --seconds are above 0")
    return options


# ---- The job -------------------------------------------------------------------------------------


def percentiles(times):
    """Of nanoseconds."""
    times.sort()
    return {"count": len(times), "p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100],
            "max": times[-1]}


def measure_operations(group, data, seconds, decides):
    """Until the rank that decides puts a one into the sum, so that both end after the same operation."""
    times = []
    until = time.perf_counter() + seconds
    while True:
        data[0] = 1.0 if decides and time.perf_counter() > until else 0.0
        began = time.perf_counter_ns()
        group.all_reduce(data)
        times.append(time.perf_counter_ns() - began)
        if data[0] != 0.0:
            return times


def rank(options):
    """Measures a size for some seconds whenever a line asks for it."""
    import fabricshm
    with fabricshm.Session(label="job") as session:
        arena = session.arena("job", bytes=ARENA_BYTES)
        with arena.join("all", options.rank, 2) as group:
            buffers = {size: arena.zeros(size // 8, "float64") for size in options.sizes}
            print("up", flush=True)
            for line in sys.stdin:
                size, seconds = line.split()
                times = measure_operations(group, buffers[int(size)], float(seconds), options.rank == 0)
                print(json.dumps(percentiles(times)), flush=True)


class Job:
    """The two ranks, which measure when asked."""

    def __init__(self, options, socket_path):
        environment = {**os.environ, "FABRIC_SOCKET": socket_path,
                       "PYTHONPATH": os.path.join(options.build, "python")}
        sizes = ",".join(map(str, options.sizes))
        self.ranks = [subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--rank", str(number), "--sizes", sizes],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            start_new_session=True, preexec_fn=end_with_parent) for number in range(2)]
        wait_up(self.ranks)

    def measure(self, size, seconds):
        """The slower rank's percentiles."""
        for one in self.ranks:
            one.stdin.write(f"{size} {seconds}\n")
            one.stdin.flush()
        found = [json.loads(one.stdout.readline()) for one in self.ranks]
        return max(found, key=lambda each: each["p99"])

    def end(self):
        """Closing its input ends a rank."""
        for one in self.ranks:
            one.kill()
            one.wait()


# ---- What runs next to it ------------------------------------------------------------------------


def wait_up(processes):
    """Each says so in its first line."""
    for one in processes:
        if one.stdout.readline().strip() != "up":
            raise SystemExit("attacked: a process did not come up")


class Others:
    """Attackers or busy loops, for the time of a `with`; afterwards `connections` is what they made."""

    def __init__(self, options, kind, count, socket_path):
        self.connections = 0
        command = [sys.executable, os.path.abspath(__file__), "--attacker", kind, "--socket", socket_path,
                   "--connections", str(max(1, options.connections // max(1, count)))]
        self.processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True,
                                           preexec_fn=end_with_parent) for _ in range(count)]

    def __enter__(self):
        wait_up(self.processes)
        return self

    def __exit__(self, *_):
        for one in self.processes:
            one.terminate()
        for one in self.processes:
            self.connections += int(one.stdout.readline() or 0)
            one.wait()


def turns(options):
    """(name, kind, how many processes) of what a round has."""
    many = options.attackers
    return [("nothing", "burn", 0), ("loops", "burn", many), ("loops and one", "burn", many + 1),
            *((kind, kind, many) for kind in options.kinds)]


def settle(daemon):
    """Until fabricd has ended what the last attackers left, or for 20 s."""
    for _ in range(100):
        used = cpu_seconds(daemon.pid)
        time.sleep(0.2)
        if cpu_seconds(daemon.pid) - used < 0.015:
            return


def measure_round(options, job, daemon, number):
    """{name: {size: percentiles, ...}} of a round. Each begins with another of them."""
    found = {}
    order = turns(options)
    order = order[number % len(order):] + order[:number % len(order)]
    for name, kind, count in order:
        settle(daemon)
        with Others(options, kind, count, daemon.socket_path) as others:
            used, began = cpu_seconds(daemon.pid), time.monotonic()
            measured = {size: job.measure(size, options.seconds) for size in options.sizes}
            took = time.monotonic() - began
            share = (cpu_seconds(daemon.pid) - used) / took
        found[name] = {"sizes": measured, "connections": others.connections, "daemon": share, "seconds": took,
                       "load": os.getloadavg()[0]}
    return found


def table(options, rounds):
    """For people. A ratio is that within a round, its median over the rounds."""
    lines = ["| bytes | next to the job | p50 | p99 | to loops | quartiles | to loops and one | quartiles | connections | fabricd |",
             "|---:|---|---:|---:|---:|---|---:|---|---:|---:|"]
    for size in options.sizes:
        for name, _, _ in turns(options):
            def p99(found, of=name, size=size):
                return found[of]["sizes"][size]["p99"]
            ratios = []
            for other in ("loops", "loops and one"):
                each = sorted(p99(found) / p99(found, other) for found in rounds)
                ratios += [f"{statistics.median(each):.2f}",
                           f"{each[len(each) // 4]:.2f} to {each[len(each) * 3 // 4]:.2f}"]
            rows = [found[name] for found in rounds]
            lines.append(
                f"| {size_text(size)} | {name} | {time_text(statistics.median(r['sizes'][size]['p50'] for r in rows))} "
                f"| {time_text(statistics.median(map(p99, rounds)))} | {' | '.join(ratios)} "
                f"| {sum(r['connections'] for r in rows)} "
                f"| {statistics.median(r['daemon'] for r in rows):.0%} |")
    return "\n".join(lines)


def measure(options):
    """All rounds, with one daemon and one job."""
    with tempfile.TemporaryDirectory(prefix="fabric-attacked-") as folder:
        most = 2 * options.connections + 1000
        daemon = Daemon(os.path.join(options.build, "fabricd", "fabricd"), folder, 1 << 30,
                        f"[limits]\nsessions = {most}\nsessions_per_user = {most}\n")
        job = None
        try:
            problem = daemon.wait_ready()
            if problem:
                raise SystemExit(f"attacked: fabricd did not start: {problem}")
            job = Job(options, daemon.socket_path)
            return [measure_round(options, job, daemon, number) for number in range(options.rounds)]
        finally:
            if job is not None:
                job.end()
            daemon.stop()


def main(arguments=None):
    """Measures, prints, writes."""
    options = parse_options(arguments)
    if options.rank is not None:
        return rank(options)
    if options.attacker == "burn":
        return attackers.burn()
    if options.attacker is not None:
        return attackers.attack(options.attacker, options.socket, options.connections, os.getpid())
    # Two of fabricd's for each connection, and some for itself; children inherit it.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if "held" in options.kinds and hard < 2 * options.connections + 1000:
        print(f"attacked: {hard} descriptors are too few for --connections {options.connections}", file=sys.stderr)
        return 2
    rounds = measure(options)
    print(table(options, rounds))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rounds": rounds, "attackers": options.attackers, "connections": options.connections,
                       "machine": fingerprint(SOURCE, {})}, file)
    return 0


if __name__ == "__main__":
    if not {"--rank", "--attacker"} & set(sys.argv):
        unwind_on_signals()
    sys.exit(main())
