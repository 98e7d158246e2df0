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

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
from harness import contenders, fingerprint, report  # noqa: E402
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unbroken, unwind_on_signals  # noqa: E402
from harness.ranks import ContenderFailed, Ranks  # noqa: E402
from harness.rounds import Bench, Case  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ALL_SIZES = "8,64,512,2Ki,8Ki,32Ki,64Ki,128Ki,512Ki,2Mi,8Mi,32Mi,128Mi,256Mi"
QUICK_SIZES = "8,8Ki,512Ki,8Mi"


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
    add("--sizes", type=list_of(parse_size), help=f"default {ALL_SIZES}")
    add("--collectives", type=list_of(str, contenders.COLLECTIVES),
        default=list(contenders.COLLECTIVES), help="default: all five")
    # Not the same for all: in place saves a copy here and costs one there.
    add("--places", type=list_of(str, ("out", "in")), default=["out", "in"],
        help="out of place, in place: out,in (default)")
    add("--rounds", type=int, help="samples per contender and case (default 7)")
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
        help="measure the libfabricshm.so in this folder, too: columns `before`")
    add("--socket", help="attach to a fabricd that runs already; else one is started")
    add("--timeout", type=float, default=120, help="seconds a turn may take (default 120)")
    options = parser.parse_args(arguments)
    quick = options.quick
    options.sizes = options.sizes or [parse_size(s) for s in
                                      (QUICK_SIZES if quick else ALL_SIZES).split(",")]
    options.rounds = options.rounds or (3 if quick else 7)
    options.sample_ms = options.sample_ms or (5 if quick else 20)
    return options


def cases_for(options, ranks):
    """The cases of one world size, in the order of the report."""
    for collective in options.collectives:
        if collective == "barrier":
            yield Case("barrier", 0, "out", ranks)
            continue
        # A broadcast has one buffer per rank: there is only one place.
        places = options.places if collective != "broadcast" else ["out"]
        for place in places:
            for size in options.sizes:
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


def start_contenders(options, ranks, scratch, socket):
    """Running process sets and the entries they serve; those that fail are left out and named."""
    control = os.path.join(scratch, f"control-{ranks}")
    os.makedirs(control, mode=0o700)
    build = os.path.join(options.build, "bench")
    families = contenders.process_sets(build, ranks, scratch, socket, max(options.sizes),
                                       options.pairs, options.against)
    starting = []
    try:
        # All of them are started before the first is waited for: they take seconds to come up.
        launch(starting, families, options, lambda one: Ranks(one, ranks, control, scratch))
        return those_that_come_up(starting, options)
    except BaseException:
        # Interrupted: nobody else knows of them yet.
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


def run_world(options, ranks, scratch, socket, document):
    """Measures every case of one world size and adds to the document."""
    running, entries = start_contenders(options, ranks, scratch, socket)
    bench = Bench(running, entries, options, say)
    try:
        say(f"{ranks} ranks: {', '.join(entry.name for entry in entries) or 'nobody'}")
        # A case that would swap is measured one contender at a time, see Bench.measure().
        budget = 0.4 * fingerprint.memory_available()
        for ranks_of_set in running.values():
            document["versions"][ranks_of_set.name] = ranks_of_set.version
            ranks_of_set.start_idle_watch()
        for case in cases_for(options, ranks):
            results = bench.measure(case, budget)
            if not results:
                continue  # too small to be split among the ranks
            row = report.row_of(case, results, document["limits"])
            document["rows"].append(row)
            times = ", ".join(f"{name} {report.time_text(found['median_ns'])}"
                              for name, found in row["families"].items())
            say(f"  {case.collective} {report.size_text(case.bytes)} {case.place}: {times}")
    finally:
        for ranks_of_set in running.values():
            document["idle_cpu"][f"{ranks_of_set.name}/{ranks}"] = ranks_of_set.idle_share()
        document["faults"] += bench.faults
        for ranks_of_set in running.values():
            ranks_of_set.stop()


def start_daemon(options, scratch):
    """(daemon, socket); without a daemon the fabric is left out."""
    if options.socket:
        return None, options.socket
    program = find_program(options.build, "fabricd")
    if not program:
        return None, None
    most = max(options.ranks)
    # Two buffers for each rank and pair, one shared result, and what heaps and groups need.
    pool = (most * 2 * options.pairs + 1) * max(options.sizes) + (2 << 30)
    daemon = None
    try:
        with unbroken():
            daemon = Daemon(program, scratch, pool)
        problem = daemon.wait_ready()
    except BaseException:
        if daemon:
            daemon.stop()
        raise
    if problem:
        say(f"without fabric: fabricd did not start: {problem}")
        daemon.stop()
        return None, None
    return daemon, daemon.socket_path


def main(arguments=None):
    """0; 1 when a contender gave a wrong result or died."""
    options = parse_options(arguments)
    document = {"title": options.title, "versions": {}, "rows": [], "idle_cpu": {}, "faults": [],
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                # What the figures do not depend on stays out of the document.
                "options": {key: value for key, value in vars(options).items()
                            if key not in ("json", "plot", "markdown", "build", "socket")}}
    document["limits"] = measure_limits(options)
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as scratch:
        daemon, socket = start_daemon(options, scratch)
        try:
            for ranks in options.ranks:
                run_world(options, ranks, scratch, socket, document)
        finally:
            if daemon:
                daemon.stop()
    measured = {family for row in document["rows"] for family in row["families"]}
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
            plot(document["rows"], options.plot)
        except ImportError:
            say("without a plot: matplotlib is not installed")


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
