#!/usr/bin/python3
"""What does the sum of the ranks' symmetric matrices cost, as triangles and as Cholesky factors, against
the full allreduce?

Starts a fabricd of its own. In each round every way gets one turn, so that what else the machine does
falls on all of them; a turn takes as long as its slowest rank. Prints medians as a table, and with
--json all of it with the machine."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import fingerprint  # noqa: E402
from harness.daemon import Daemon  # noqa: E402

WAYS = ("full", "packed", "cholesky")
TYPES = {"float32": 4, "float64": 8}


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--build", default="build/release", help="build folder to measure")
    add("--ranks", type=int, default=2)
    add("--sizes", default="256,1024,4096", help="n, with commas")
    add("--types", default="float32,float64")
    add("--place", choices=("arena", "private"), default="arena", help="where the matrices lie")
    add("--machine", default="", help="to emulate: a preset of fabricd --emulate list")
    add("--ways", default=",".join(WAYS), help="which to measure; full and packed always")
    add("--rounds", type=int, default=11)
    add("--json", help="file for the result and the machine")
    return parser.parse_args()


def arena_bytes(sizes, ranks):
    """A rank's input and output, two packed matrices, and the group's slots."""
    return ranks * 3 * max(sizes) ** 2 * 8 + (256 << 20)


def turn(group, way, mine, out):
    """Seconds of this rank, from when all have come; and the report of a symmetric sum."""
    group.barrier()
    start = time.perf_counter()
    if way == "full":
        group.all_reduce(mine, out=out)
        report = None
    else:
        report = group.allreduce_symmetric(mine, method=way, out=out)
    return time.perf_counter() - start, report


def measure_case(arena, group, given, size, dtype):
    import numpy  # pylint: disable=import-outside-toplevel
    make = arena.empty if given.place == "arena" else numpy.empty
    mine, out = make((size, size), dtype), make((size, size), dtype)
    values = numpy.random.default_rng(group.rank).standard_normal((size, size)).astype(dtype)
    mine[:] = (values + values.T) / 2 + numpy.eye(size, dtype=dtype) * 4 * numpy.sqrt(size)
    ways = [way for way in WAYS if way != "cholesky" or way in given.ways]
    seconds = {way: [] for way in ways}
    reports = {}
    for number in range(-1, given.rounds):  # the first warms up: memory, plans, LAPACK's threads
        for way in ways:
            spent, reports[way] = turn(group, way, mine, out)
            if number >= 0:
                seconds[way].append(spent)
    last = reports[ways[-1]]
    return {"n": size, "type": dtype, "seconds": seconds, "packed_bytes": last.sent_bytes,
            "error": last.error, "went_as": last.method}


def serve_rank(given, rank, socket, pipe):
    """The cases of one rank, as a line of JSON."""
    sys.path.insert(0, os.path.join(given.build, "python"))
    import fabricshm  # pylint: disable=import-outside-toplevel,import-error
    sizes = [int(size) for size in given.sizes.split(",")]
    cases = []
    with fabricshm.Session(socket, timeout=300) as session:
        arena = session.arena("symmetric", arena_bytes(sizes, given.ranks))
        with arena.join("all", rank, given.ranks) as group:
            for dtype in given.types.split(","):
                cases += [measure_case(arena, group, given, size, dtype) for size in sizes]
            group.barrier()
    with os.fdopen(pipe, "w") as file:
        json.dump(cases, file)


def start_ranks(given, socket):
    """A pipe and a process for each rank."""
    started = []
    for rank in range(given.ranks):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(read_end)
                serve_rank(given, rank, socket, write_end)
                code = 0
            finally:
                os._exit(code)  # pylint: disable=protected-access
        os.close(write_end)
        started.append((child, read_end))
    return started


def collect(started):
    """What the ranks measured; ends the program when one failed."""
    cases = []
    for child, pipe in started:
        with os.fdopen(pipe) as file:
            text = file.read()
        _, status = os.waitpid(child, 0)
        if status != 0:
            sys.exit("symmetric: a rank failed")
        cases.append(json.loads(text))
    return cases


def merge(cases_of_ranks):
    """Each turn as long as on its slowest rank."""
    merged = []
    for cases in zip(*cases_of_ranks):
        case = dict(cases[0])
        case["seconds"] = {way: [max(turn) for turn in zip(*(each["seconds"][way] for each in cases))]
                           for way in case["seconds"]}
        merged.append(case)
    return merged


def milliseconds(case, way):
    return statistics.median(case["seconds"][way]) * 1e3


def print_table(cases):
    print("| type | n | full MiB | packed MiB | full ms | packed ms | full / packed | cholesky ms | error |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for case in cases:
        full = case["n"] ** 2 * TYPES[case["type"]] / 2**20
        packed = case["packed_bytes"] / 2**20
        times = {way: milliseconds(case, way) for way in ("full", "packed")}
        ratios = [whole / part for whole, part in
                  zip(case["seconds"]["full"], case["seconds"]["packed"])]
        factors = " | "
        if "cholesky" in case["seconds"]:
            note = "" if case["went_as"] == "cholesky" else " (as packed)"
            factors = f"{milliseconds(case, 'cholesky'):.3g}{note} | {case['error']:.1e}"
        print(f"| {case['type']} | {case['n']} | {full:.2f} | {packed:.2f} | {times['full']:.3g} | "
              f"{times['packed']:.3g} | {statistics.median(ratios):.2f} | {factors} |")


def main():
    given = options()
    # A thread for each rank: they have a core each.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sizes = [int(size) for size in given.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        pool = arena_bytes(sizes, given.ranks) + (64 << 20)
        daemon = Daemon(os.path.join(given.build, "fabricd", "fabricd"), folder, pool,
                        f'[emulate]\nmachine = "{given.machine}"\n')
        try:
            problem = daemon.wait_ready()
            if problem:
                sys.exit(f"symmetric: fabricd: {problem}")
            cases = merge(collect(start_ranks(given, daemon.socket_path)))
        finally:
            daemon.stop()
    print_table(cases)
    if given.json:
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
        with open(given.json, "w") as file:
            json.dump({"ranks": given.ranks, "place": given.place, "emulated": given.machine, "cases": cases,
                       "machine": fingerprint.fingerprint(root, {})}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
