#!/usr/bin/python3
"""What does the optimiser step of several ranks cost, with its communication, and how much memory?

AdamW over the shapes of a model, f32. Contenders: the fabric's step over shared parameters (with and
without clipping); allreduces of OpenMPI, MPICH, gloo and the fabric followed by the same kernel over each
rank's own copy; PyTorch with gloo, with ZeroRedundancyOptimizer over gloo and over the fabric, and with
fabricshm.optim; and the limit, which moves the bytes without any waiting. All are started once and get
one turn each round, as in compare.py; docs/benchmarks.md has the method.
"""

import argparse
import dataclasses
import datetime
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import compare  # noqa: E402
from compare import find_program, say  # noqa: E402
from harness import contenders, fingerprint, report, shapes, usage  # noqa: E402
from harness.contenders import Builds, Entry, ProcessSet  # noqa: E402
from harness.daemon import Daemon  # noqa: E402
from harness.endings import unbroken, unwind_on_signals  # noqa: E402
from harness.line_trip import NEAR_BELOW_NS, LineTrip  # noqa: E402
from harness.ranks import Ranks  # noqa: E402
from harness.rounds import Bench, Case  # noqa: E402

# Families, in the order of the tables, and what each of them does.
ABOUT = {
    "limit-copy": "copy of one gradient, by all ranks together",
    "limit-shared": "limit: the bytes of the shared step, without waiting",
    "fabric-shared": "fabric: step over shared parameters",
    "fabric-clip": "fabric: the same, clipped to a norm",
    "fabric": "fabric: allreduce in the pool, local step",
    "openmpi": "OpenMPI: allreduce, local step",
    "mpich": "MPICH: allreduce, local step",
    "gloo": "gloo: allreduce, local step",
    "torch-shared": "PyTorch: fabricshm.optim.AdamW",
    "torch-ddp-gloo": "PyTorch: all_reduce over gloo, AdamW (foreach)",
    "torch-zero-gloo": "PyTorch: ZeroRedundancyOptimizer over gloo",
    "torch-zero-fabric": "PyTorch: ZeroRedundancyOptimizer over the fabric",
}
OURS = "fabric-shared"
# The best for vectors of this size in docs/perf; a run picks among them again.
PEER_SETTINGS = ("openmpi-default", "openmpi-eager-64k", "openmpi-ring-256k", "mpich-default",
                 "mpich-cells-256k", "gloo-chunked")
QUICK_SETTINGS = ("openmpi-default", "mpich-default", "gloo-chunked")


def parse_options(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=compare.list_of(str, tuple(shapes.MODELS)), default=["resnet50"],
        help=f"of {', '.join(shapes.MODELS)} (default resnet50)")
    add("--ranks", type=compare.list_of(int, (2, 3, 4)), default=[2], help="default 2")
    add("--rounds", type=int, help="samples per contender (default 7)")
    add("--seconds", type=float, metavar="S", help="of each model and number of ranks as many rounds as fit into S seconds")
    add("--sample-ms", type=float, help="least length of a sample (default 50)")
    add("--contenders", type=compare.list_of(str, tuple(ABOUT)), default=list(ABOUT),
        help="families (default: all)")
    add("--require", type=compare.list_of(str, tuple(ABOUT)), default=[],
        help="families that must have been measured, else exit with 1")
    add("--near-below", type=float, default=NEAR_BELOW_NS, help=argparse.SUPPRESS)
    add("--quick", action="store_true", help="of each peer one setting, 3 rounds of 5 ms")
    add("--json", metavar="FILE", help="write everything measured")
    add("--markdown", metavar="FILE", help="write the tables as a page")
    add("--title", default="Optimiser steps compared")
    add("--build", default=os.path.join(compare.SOURCE, "build", "release"), metavar="DIR")
    add("--timeout", type=float, default=120, help="seconds a turn may take (default 120)")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.sample_ms = options.sample_ms or (5 if options.quick else 50)
    options.pairs = 1  # asked for by the harness, as of collectives
    return options


class StepBench(Bench):
    """Settings are scouted one after the other, and keep their memory only if all fit."""

    _kept_sets = None  # names; None while settings are scouted

    def _choose(self, case, memory_budget):
        self._kept_sets = None
        kept = super()._choose(case, memory_budget)
        self._kept_sets = {result.entry.process_set for result in kept.values()}
        return kept

    def measure_for(self, case, memory_budget, seconds):
        """As measure(), with the time for scouting on top of that of the rounds."""
        self._kept[case] = self._choose(case, memory_budget)
        self.measure(case, memory_budget, None if seconds is None else time.monotonic() + seconds)

    def _is_large(self, case, memory_budget):
        if self._kept_sets is None:
            return True
        # Gradient, parameters and two states of each rank; most share less.
        return len(self._kept_sets) * 4 * case.bytes * case.ranks > memory_budget


def model_bytes(name):
    """Of its gradient."""
    return 4 * shapes.elements_of(shapes.MODELS[name]())


def write_shapes(folder, names):
    """A file for each model, called as its gradient has bytes."""
    os.makedirs(folder)
    for name in names:
        with open(os.path.join(folder, str(model_bytes(name))), "w") as file:
            file.writelines(" ".join(map(str, shape)) + "\n" for shape in shapes.MODELS[name]())


def torch_set(options, ranks, scratch, socket, arena_bytes):
    """The ranks in PyTorch, or none."""
    python = os.path.join(options.build, "python")
    try:
        import torch.distributed  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel
    except ImportError as problem:
        say(f"without PyTorch: {problem}")
        return None
    has_fabric = socket and os.path.isdir(os.path.join(python, "fabricshm", "torch"))
    command = [sys.executable, "-B", os.path.join(compare.SOURCE, "bench", "optimiser_rank.py"),
               "--world", str(ranks), "--store", scratch, "--shapes", os.path.join(scratch, "shapes"),
               "--arena", f"torch-{ranks}", "--arena-bytes", str(arena_bytes)]
    command += ["--socket", socket] if has_fabric else []
    return ProcessSet("torch", command, True, {"PYTHONPATH": python})


def fabric_sets(fabric, scratch):
    """One for each form, so that none gives up its memory for another's turn."""
    for name in ("fabric", "fabric-shared", "fabric-clip"):
        command = list(fabric.command)
        command[command.index("--arena") + 1] += f"-{name}"
        command += ["--shapes", os.path.join(scratch, "shapes")]
        yield dataclasses.replace(fabric, name=name, command=command)


def wanted_sets(options, ranks, scratch, socket):
    """(process set, its entries) of all contenders that can be started here."""
    largest = max(model_bytes(name) for name in options.models)
    builds = Builds(os.path.join(options.build, "bench"), socket)
    # Twice, since the limit has parameters and both states in one stretch.
    found = contenders.process_sets(builds, ranks, scratch, 2 * largest, 1, (False,))
    for limit in found["limit"]:
        # The copy is a set of its own, so that it keeps its memory.
        for name, family, ways in (("limit", "limit-shared", ("push", "push-ahead")),
                                   ("limit-copy", "limit-copy", ("copy",))):
            yield dataclasses.replace(limit, name=name), [
                Entry(f"{family}-{how}", family, name, how, "arena", "shared") for how in ways]
    for fabric in found["fabric"]:
        for process_set in fabric_sets(fabric, scratch):
            name = process_set.name
            form = ("clip" if name == "fabric-clip" else "auto", "arena",
                    "" if name == "fabric" else "shared")
            yield process_set, [Entry(name, name, name, *form)]
    settings = QUICK_SETTINGS if options.quick else PEER_SETTINGS
    for family in contenders.PEERS:
        for process_set in found[family]:
            yield process_set, [entry for entry in contenders.entries_of(family, process_set)
                                if entry.name in settings]
    process_set = torch_set(options, ranks, scratch, socket, 5 * largest * 2 + (1 << 30))
    if process_set:
        yield process_set, [Entry(family, family, "torch", family.removeprefix("torch-"))
                            for family in ABOUT if family.startswith("torch-")]


def start(options, ranks, scratch, socket):
    """Running process sets by name, and the entries they serve."""
    control = os.path.join(scratch, f"control-{ranks}")
    os.makedirs(control, mode=0o700)
    starting = []
    try:
        for process_set, entries in wanted_sets(options, ranks, scratch, socket):
            own = [entry for entry in entries if entry.family in options.contenders]
            with unbroken():
                if own:
                    starting.append((Ranks(process_set, ranks, control, scratch), own))
        return compare.those_that_come_up(starting, options)
    except BaseException:
        for ranks_of_set, _ in starting:
            ranks_of_set.stop()
        raise


def measure_memory(running, entries, case):
    """Bytes of all ranks together that a case takes, by family: what its first turn adds."""
    found = {}
    for entry in entries:
        if entry.family in found or entry.process_set not in running:
            continue
        ranks = running[entry.process_set]
        ranks.order("drop", 120)
        before = sum(map(usage.proportional_bytes, ranks.pids))
        answers = ranks.order(f"measure step {case.bytes} {entry.place or case.place} {entry.memory} "
                              f"{entry.algorithm} 1 0 1 {int(entry.is_checked)}", 300)
        if all(words[0] == "time" for words in answers):
            found[entry.family] = sum(map(usage.proportional_bytes, ranks.pids)) - before
        ranks.order("drop", 120)
    return found


def run_world(options, ranks, scratch, socket, line_trip, document):
    """Measures all models with so many ranks; the families that answered."""
    running, entries = start(options, ranks, scratch, socket)
    bench = StepBench(running, entries, options, say, line_trip)
    try:
        say(f"{ranks} ranks: {', '.join(entry.name for entry in entries)}")
        for ranks_of_set in running.values():
            document["versions"][ranks_of_set.name] = ranks_of_set.version
        for model in options.models:
            case = Case("step", model_bytes(model), "in", ranks)
            memory = measure_memory(running, entries, case)
            budget = 0.6 * fingerprint.memory_available()
            bench.measure_for(case, budget, options.seconds)
            results = bench.results(case)
            for row in report.rows_of(case, results, document["limits"]):
                say_row(row)
                document["rows"].append({**row, "model": model, "memory": memory,
                                         "ratios": ratios_of(results, row["state"])})
    finally:
        document["faults"] += bench.faults
        document["mixed"] += bench.mixed
        for ranks_of_set in running.values():
            ranks_of_set.stop()
    return bench.measured


def say_row(row):
    """The medians."""
    times = ", ".join(f"{family} {report.time_text(found['median_ns'])}"
                      for family, found in row["families"].items())
    say(f"  {row['bytes']} {row['state']}: {times}")


def ratios_of(results, state):
    """How many times as fast as each family our step is, round by round."""
    views = report.views_of(results, state, False)
    ours = report.best_of(views, OURS)
    return {family: report.paired_ratio(report.best_of(views, family), ours) for family in ABOUT}


def table_of(row):
    """Markdown of one model, number of ranks and state of the cores."""
    lines = [["contender", "setting", "samples", "ms per step", "quartiles", "least",
              "time / ours", "GB/s", "memory MiB"]]
    for family, about in ABOUT.items():
        found = row["families"].get(family)
        if not found:
            continue
        samples = [value / 1e6 for value in found["samples_ns"]]
        low, high = quartiles(samples)
        ratio, memory = row["ratios"].get(family), row["memory"].get(family)
        # Of a copy: read and written.
        rate = 2 * row["bytes"] / found["median_ns"] if family == "limit-copy" else found["gb_per_s"]
        setting = found["entry"].removeprefix(family).removeprefix("-")
        lines.append([about, setting, str(len(samples)), f"{found['median_ns'] / 1e6:.1f}",
                      f"{low:.1f} - {high:.1f}", f"{min(samples):.1f}", "" if ratio is None else f"{ratio:.2f}",
                      f"{rate:.1f}",
                      "" if memory is None else f"{memory / 2**20:.0f}"])
    return report.aligned(lines)


def quartiles(samples):
    """Of few samples their ends."""
    if len(samples) < 4:
        return min(samples), max(samples)
    low, _, high = statistics.quantiles(samples, n=4)
    return low, high


def markdown(document):
    """The page."""
    machine = document["machine"]
    versions = ", ".join(sorted(set(machine["versions"].values())))
    lines = [f"# {document['title']}", "",
             f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['vector'])}), "
             f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, huge pages "
             f"{machine['thp']}/{machine['thp_shmem']} (anonymous/shared), load "
             f"{document['load'][0]:.1f} at the start and {document['load'][1]:.1f} at the end. "
             f"Commit {machine['commit']}. {versions}.",
             "", "Machine: " + ", ".join(f"{key} {value}"
                                         for key, value in document["limits"].items()) + ".", "",
             "`time / ours` is the median over the rounds of a contender's time by that of the step over "
             "shared parameters in the same round; GB/s counts what a shared step has to move, whatever "
             "the contender moves (of the copy: what it reads and writes); memory is what the case adds to the proportional set sizes of all ranks "
             "together.", ""]
    for row in document["rows"]:
        state = {"near": ", near cores", "far": ", far cores"}.get(row["state"], "")
        elements = row["bytes"] // 4
        lines += [f"## {row['model']} ({elements:,} parameters), {row['ranks']} ranks{state}", "",
                  f"At least {row['minimum_bytes'] / 1e6:.0f} MB are moved.", "", table_of(row), ""]
    if document["mixed"]:
        lines += [f"Samples dropped because the cores' distance changed: {document['mixed']}."]
    lines += [f"FAULT: {fault}" for fault in document["faults"]]
    return "\n".join(lines).rstrip() + "\n"


def start_daemon(options, scratch):
    """A daemon of this build, or None."""
    program = find_program(options.build, "fabricd")
    if not program:
        say("without the fabric: no fabricd")
        return None
    largest = max(model_bytes(name) for name in options.models)
    with unbroken():
        # Five arenas with at most 12 gradients each, see wanted_sets(); memory is used as it is needed,
        # but not even promised beyond what the machine has.
        wanted = 5 * (24 * largest + (1 << 30))
        daemon = Daemon(program, scratch, min(wanted, int(0.9 * fingerprint.memory_available())))
    problem = daemon.wait_ready()
    if problem:
        daemon.stop()
        raise SystemExit(f"fabricd did not start: {problem}")
    return daemon


def main(arguments=None):
    """0; 1 when a contender gave a wrong result or died."""
    options = parse_options(arguments)
    left_out = ("json", "markdown", "build")
    document = {"title": options.title, "versions": {}, "rows": [], "faults": [], "mixed": 0,
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "load": [os.getloadavg()[0]],
                "options": {key: value for key, value in vars(options).items()
                            if key not in left_out}}
    document["limits"] = {} if options.quick else compare.measure_limits(options)
    line_trip = LineTrip(find_program(options.build, "bench_line_trip"), options.near_below)
    daemon, measured = None, set()
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as scratch:
        write_shapes(os.path.join(scratch, "shapes"), options.models)
        try:
            daemon = start_daemon(options, scratch)
            socket = daemon.socket_path if daemon else None
            for ranks in options.ranks:
                measured |= run_world(options, ranks, scratch, socket, line_trip, document)
        finally:
            line_trip.stop()
            if daemon:
                daemon.stop()
    document["load"].append(os.getloadavg()[0])
    document["faults"] += [f"{family} was not measured" for family in options.require
                           if family not in measured]
    document["machine"] = fingerprint.fingerprint(compare.SOURCE, document.pop("versions"))
    write_results(options, document)
    return 1 if document["faults"] else 0


def write_results(options, document):
    """The page to the standard output, and the files that were asked for."""
    page = markdown(document)
    print(page, end="")
    for path, text in ((options.markdown, page),
                       (options.json, compare.json.dumps(document, indent=1) + "\n")):
        if path:
            with open(path, "w") as file:
                file.write(text)


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
