#!/usr/bin/python3
"""How do the fabric's collectives compare with OpenMPI, MPICH, gloo and the machine's own limits?

All contenders are started once and sleep; then, round by round and case by case, each gets one turn,
so that all see the same machine in the same minute. Absolute times mean little; ratios within one
run are what is reported. Method and reading: docs/benchmarks.md.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
from harness import contenders, fingerprint, report  # noqa: E402
from harness.daemon import Daemon  # noqa: E402
from harness.contenders import Builds  # noqa: E402
from harness.endings import end_with_parent, unbroken, unwind_on_signals  # noqa: E402
from harness.line_trip import NEAR_BELOW_NS, LineTrip  # noqa: E402
from harness.ranks import ContenderFailed, Ranks  # noqa: E402
from harness.rounds import Bench, Case  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ALL_SIZES = "8,64,512,2Ki,8Ki,32Ki,64Ki,128Ki,512Ki,2Mi,8Mi,32Mi,128Mi,256Mi"
QUICK_SIZES = "8,8Ki,512Ki,8Mi"
SEND_SIZES = "8,64,512,4Ki,64Ki,1Mi"
# A run of a minute has no time to start and to scout every setting.
QUICK_CONTENDERS = ("fabric", "openmpi-default", "openmpi-eager-64k", "openmpi-no-cma-64k",
                    "openmpi-sm-8k", "openmpi-sm-256k", "mpich-default")


def say(text):
    """Progress goes to the error output, so that the table can be redirected."""
    print(text, file=sys.stderr, flush=True)


def parse_size(text):
    """'8', '64Ki', '2Mi', '1Gi' in bytes; a multiple of 4."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", text.strip())
    size = int(match[1]) * {None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[match[2]] if match else 0
    if size < 4 or size % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give 8, 64Ki, 2Mi (a multiple of 4)")
    return size


def list_of(convert, allowed=None):
    """An argparse type for comma-separated values."""
    def parse(text):
        values = [convert(word) for word in text.split(",") if word]
        for value in values:
            if allowed and value not in allowed:
                raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(map(str, allowed))}")
        return values
    return parse


def parse_options(arguments):
    """The command line; --quick only changes defaults."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=list_of(int, (2, 3, 4)), default=[2, 4], help="2,4 (default)")
    add("--bytes", "--sizes", dest="sizes", type=list_of(parse_size),
        help=f"default {ALL_SIZES}; of send_recv {SEND_SIZES}")
    add("--only", "--collectives", dest="collectives", type=list_of(str, contenders.COLLECTIVES),
        default=list(contenders.COLLECTIVES), help="default: all seven")
    # Not the same for all: in place saves a copy here and costs one there.
    add("--places", type=list_of(str, ("out", "in")), default=["out", "in"],
        help="out of place, in place: out,in (default)")
    add("--rounds", type=int, help="samples per contender and case (default 7)")
    add("--seconds", type=float, metavar="S", help="measure as many rounds as fit into S seconds, "
        "and without --contenders only " + ",".join(QUICK_CONTENDERS) + " when S is 90 or less")
    add("--sweeps", type=int, help="how often to go through all cases (default 1; with more than "
        "90 --seconds 4): each sees the cores near and far")
    add("--pinned", choices=("no", "yes", "both"), default="no",
        help="each rank bound to a core, from its start (default no)")
    add("--near-below", type=float, default=NEAR_BELOW_NS, metavar="NS",
        help="one way of a cache line in near cores takes less than this (default %(default)s)")
    add("--sample-ms", type=float, help="least length of a sample (default 20)")
    add("--pairs", type=int, default=1, help="buffers used in turn; more than the cache holds = cold")
    add("--contenders", type=list_of(str), default=[],
        help="families or entries: openmpi,mpich,gloo,fabric,fabric-staged,fabric:direct,limit ...")
    add("--require", type=list_of(str), default=[], metavar="LIST",
        help="families that must have been measured, else exit with 1")
    add("--quick", action="store_true", help=f"sizes {QUICK_SIZES}, 3 rounds of 5 ms")
    add("--json", metavar="FILE", help="write everything measured")
    add("--plot", metavar="FILE", help="draw a PNG (needs matplotlib)")
    add("--markdown", metavar="FILE", help="write the tables as a page")
    add("--title", default="Collectives compared")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--against", metavar="DIR",
        help="measure another build, too, in the same rounds: its bench_fabric_driver and fabricd")
    add("--socket", help="attach to a fabricd that runs already; else one is started")
    add("--timeout", type=float, default=120, help="seconds a turn may take (default 120)")
    options = parser.parse_args(arguments)
    quick = options.quick
    options.send_sizes = options.sizes or [parse_size(s) for s in SEND_SIZES.split(",")]
    options.sizes = options.sizes or [parse_size(s) for s in
                                      (QUICK_SIZES if quick else ALL_SIZES).split(",")]
    options.rounds = options.rounds or (3 if quick else 7)
    short = options.seconds is not None and options.seconds <= 90
    options.sweeps = options.sweeps or (4 if options.seconds and not short else 1)
    options.sample_ms = options.sample_ms or (3 if short else 5 if quick else 20)
    if short and not options.contenders:
        options.contenders = list(QUICK_CONTENDERS)
    if options.against and not find_program(options.against, "bench_fabric_driver"):
        parser.error(f"--against: no bench_fabric_driver in {options.against}")
    return options


def cases_for(options, ranks):
    """The cases of one world size, in the order of the report."""
    for collective in options.collectives:
        if collective == "barrier":
            yield Case("barrier", 0, "out", ranks)
            continue
        # A broadcast has one buffer per rank: there is only one place.
        places = options.places if collective not in ("broadcast", "send_recv") else ["out"]
        sizes = options.sizes if collective != "send_recv" else options.send_sizes
        for place in places:
            for size in sizes:
                yield Case(collective, size, place, ranks)


def find_program(build, name):
    """Where the build left a program, or None."""
    for folder in ("", "bench", "fabricd", "bin"):
        path = os.path.join(build, folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def measure_limits(options):
    """Memory bandwidth and ping-pong of the machine, in front of everything else."""
    program = find_program(options.build, "bench_limits")
    if not program:
        say("without the machine's limits: bench_limits is not built")
        return {}
    size = "33554432" if options.quick else "268435456"
    done = subprocess.run([program, "--bytes", size, "--rounds", "5"], capture_output=True,
                          text=True, timeout=300, check=True, preexec_fn=end_with_parent)
    return json.loads(done.stdout)


def start_contenders(options, ranks, scratch, builds):
    """Running process sets and the entries they serve; those that fail are left out and named."""
    control = os.path.join(scratch, f"control-{ranks}")
    os.makedirs(control, mode=0o700)
    pinning = {"no": (False,), "yes": (True,), "both": (False, True)}[options.pinned]
    families = contenders.process_sets(builds, ranks, scratch, max(options.sizes), options.pairs,
                                       pinning)
    starting = []
    try:
        # All of them are started before the first is waited for: they take seconds to come up.
        launch(starting, families, options, lambda one: Ranks(one, ranks, control, scratch))
        return those_that_come_up(starting, options)
    except BaseException:
        # Interrupted: nothing else knows of them yet.
        for ranks_of_set, _ in starting:
            ranks_of_set.stop()
        raise


def launch(starting, families, options, start):
    """Starts what is wanted, and adds it and its entries to `starting`."""
    for family, sets in families.items():
        wanted = [(s, [e for e in contenders.entries_of(family, s)
                       if contenders.is_wanted(e, options.contenders)]) for s in sets]
        if not sets and (not options.contenders or family in options.contenders):
            say(f"without {family}: not installed, not built, or no fabricd")
        for process_set, own in wanted:
            with unbroken():
                if own:
                    starting.append((start(process_set), own))


def those_that_come_up(starting, options):
    """By name, and the entries of all of them."""
    running, entries = {}, []
    for ranks_of_set, own in starting:
        try:
            ranks_of_set.wait_ready(options.timeout)
            running[ranks_of_set.name] = ranks_of_set
            entries += own
        except ContenderFailed as failure:
            say(f"without {ranks_of_set.name}: {failure}")
            ranks_of_set.stop()
    return running, entries


class Clock:
    """Gives each case its share of the time that is left."""

    def __init__(self, seconds, turns):
        self._end = None if seconds is None else time.monotonic() + seconds
        self._turns = turns

    def next_turn(self):
        """Until when the next case may go on; None: by rounds."""
        left, self._turns = self._turns, self._turns - 1
        if self._end is None:
            return None
        now = time.monotonic()
        return now + max(0.0, self._end - now) / max(left, 1)


def run_world(options, ranks, scratch, builds, line_trip, clock, document):
    """Measures every case of one world size and adds to the document; the families that answered."""
    measured = set()
    running, entries = start_contenders(options, ranks, scratch, builds)
    bench = Bench(running, entries, options, say, line_trip)
    cases = list(cases_for(options, ranks))
    try:
        say(f"{ranks} ranks: {', '.join(entry.name for entry in entries) or 'none'}")
        # A case that would swap is measured one contender at a time, see Bench.measure().
        budget = 0.4 * fingerprint.memory_available()
        for ranks_of_set in running.values():
            document["versions"][ranks_of_set.name] = ranks_of_set.version
            ranks_of_set.start_idle_watch()
        for _ in range(options.sweeps):
            for case in cases:
                bench.measure(case, budget, clock.next_turn())
                say_progress(case, bench.results(case))
        for case in cases:
            # Without results: too small to be split among the ranks.
            document["rows"] += report.rows_of(case, bench.results(case), document["limits"])
    finally:
        for ranks_of_set in running.values():
            document["idle_cpu"][f"{ranks_of_set.name}/{ranks}"] = ranks_of_set.idle_share()
        document["faults"] += bench.faults
        document["mixed"] += bench.mixed
        measured |= bench.measured
        for ranks_of_set in running.values():
            ranks_of_set.stop()
    return measured


def say_progress(case, results):
    """The medians so far, of both states together."""
    best = {}
    for result in results.values():
        name = result.entry.family + (contenders.PINNED if result.entry.pinned else "")
        best[name] = min(best.get(name, result.median), result.median)
    times = ", ".join(f"{name} {report.time_text(median)}" for name, median in best.items())
    say(f"  {case.collective} {report.size_text(case.bytes)} {case.place}: {times}")


def start_daemon(options, build, scratch):
    """A daemon of that build, or None: without one the fabric is left out."""
    program = find_program(build, "fabricd")
    if not program:
        return None
    most = max(options.ranks) * (2 if options.pinned == "both" else 1)
    # Two buffers for each rank and pair, one shared result, and what heaps and groups need.
    pool = (most * 2 * options.pairs + 2) * max(options.sizes) + (3 << 30)
    daemon = None
    os.makedirs(scratch, mode=0o700)
    try:
        with unbroken():
            daemon = Daemon(program, scratch, pool)
        problem = daemon.wait_ready()
    except BaseException:
        if daemon:
            daemon.stop()
        raise
    if problem:
        say(f"without the fabric of {build}: fabricd did not start: {problem}")
        daemon.stop()
        return None
    return daemon


def start_daemons(options, scratch, started):
    """The builds that are measured; the daemons that were started for them are added to `started`."""
    def serve(build, name):
        daemon = start_daemon(options, build, os.path.join(scratch, name))
        started.extend([daemon] if daemon else [])
        return daemon.socket_path if daemon else None

    socket = options.socket or serve(options.build, "now")
    drivers = os.path.join(options.build, "bench")
    if not options.against:
        return Builds(drivers, socket)
    return Builds(drivers, socket, os.path.join(options.against, "bench"),
                  serve(options.against, "before"))


def main(arguments=None):
    """0; 1 when a contender gave a wrong result or died."""
    options = parse_options(arguments)
    turns = options.sweeps * sum(len(list(cases_for(options, n))) for n in options.ranks)
    clock = Clock(options.seconds, turns)
    document = {"title": options.title, "versions": {}, "rows": [], "idle_cpu": {}, "faults": [],
                "mixed": 0,
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                # What the figures do not depend on stays out of the document.
                "options": {key: value for key, value in vars(options).items()
                            if key not in ("json", "plot", "markdown", "build", "socket")}}
    short = options.seconds is not None and options.seconds <= 90
    document["limits"] = {} if short else measure_limits(options)
    line_trip = LineTrip(find_program(options.build, "bench_line_trip"), options.near_below)
    daemons, measured = [], set()
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as scratch:
        try:
            builds = start_daemons(options, scratch, daemons)
            for ranks in options.ranks:
                measured |= run_world(options, ranks, scratch, builds, line_trip, clock, document)
        finally:
            line_trip.stop()
            for daemon in daemons:
                daemon.stop()
    document["faults"] += [f"{family} was not measured" for family in options.require
                           if family not in measured]
    # At the end, when the versions of all contenders are known.
    document["machine"] = fingerprint.fingerprint(SOURCE, document.pop("versions"))
    write_results(options, document)
    return 1 if document["faults"] else 0


def write_results(options, document):
    """The page to the standard output, and the files that were asked for."""
    page = report.markdown(document)
    print(page, end="")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(page)
    if options.plot:
        try:
            from harness.plot import plot  # pylint: disable=import-outside-toplevel
            say("\n".join(plot(document["rows"], options.plot)))
        except ImportError:
            say("without a plot: matplotlib is not installed")


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
