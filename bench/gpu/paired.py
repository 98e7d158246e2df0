#!/usr/bin/python3
"""Our allreduce against PyTorch's, on a machine without a daemon, turn by turn in one run.

  gloo  ranks of the CPU, as processes, against torch.distributed over gloo on the loopback interface,
        and against the limit of this memory (bench/limit_driver.cpp)
  nccl  a rank for each GPU, on streams, against torch.distributed over NCCL

In place, float32 sums. Method and reading: docs/benchmarks.md. Exit code 77, with a line that says why, where there is
nothing to compare with; 1 when a result was wrong or a side did not run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
# pylint: disable=wrong-import-position
from compare import Clock, find_program, list_of, parse_size  # noqa: E402
from harness import fingerprint, report  # noqa: E402
from harness.contenders import Entry, ProcessSet  # noqa: E402
from harness.endings import unwind_on_signals  # noqa: E402
from harness.line_trip import LineTrip  # noqa: E402
from harness.ranks import ContenderFailed, Ranks  # noqa: E402
from harness.rounds import Bench, Case  # noqa: E402

SKIPPED = 77
SIZES = "8,64,512,4Ki,32Ki,256Ki,2Mi,16Mi,64Mi"
# Ways of moving the bytes, of those in bench/limit_driver.cpp: the best at each size is the limit.
LIMITS = ("push", "push-nt", "push-ahead", "push-split", "push-nt-split", "pull", "pull-nt")


@dataclass(frozen=True)
class Unchecked(Entry):
    """Its buffers are where the CPU can't look: the ranks check themselves when they start."""

    @property
    def is_checked(self):
        return False


def say(text):
    """Progress goes to the error output."""
    print(text, file=sys.stderr, flush=True)


def parse_options(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("peer", choices=("gloo", "nccl"))
    add("--ranks", type=list_of(int), help="default 8,16; of nccl: as many as there are devices, 4 at most")
    add("--sizes", type=list_of(parse_size), default=[parse_size(s) for s in SIZES.split(",")], help=f"default {SIZES}")
    add("--seconds", type=float, default=60, help="for measuring, all cases together (default 60)")
    add("--sample-ms", type=float, default=5, help="least length of a sample (default 5)")
    add("--timeout", type=float, default=120, help="seconds a turn may take (default 120)")
    add("--build", default=os.path.join(SOURCE, "build", "gpu"), metavar="DIR")
    options = parser.parse_args(arguments)
    options.pairs, options.rounds = 1, None
    return options


def torch_says():
    """What is missing or None, the number of CUDA devices, whether there are gloo and NCCL. Asked in another process."""
    text = ("import torch, torch.distributed as d; has = d.is_available(); "
            "print(torch.cuda.device_count(), int(has and hasattr(d, 'ProcessGroupGloo')), int(has and d.is_nccl_available()))")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"no torch in {sys.executable}", 0, False, False
    devices, gloo, nccl = (int(word) for word in done.stdout.split()[-3:])
    return None, devices, bool(gloo), bool(nccl)


def reason_to_skip(options, missing, devices, gloo, nccl):
    """Why there is nothing to compare, or None."""
    if missing:
        return missing
    if options.peer == "gloo":
        return None if gloo else "this torch has no gloo"
    if devices < 2:
        return "one device" if devices == 1 else "no CUDA device"
    return None if nccl else "this torch has no NCCL"


def torch_set(options, ranks, scratch):
    """The ranks of PyTorch."""
    store = os.path.join(scratch, f"store-{ranks}")
    # gloo connects by the address of an interface: the loopback's, whatever the host is called.
    environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, os.path.join(HERE, "torch_rank.py"), options.peer, "--world", str(ranks), "--store", store]
    return ProcessSet(options.peer, command, True, environment)


def gloo_sets(options, ranks, scratch):
    """(process set, its entries) of all that is compared on CPUs."""
    area = str(2 * max(options.sizes) + (8 << 20))
    ours = find_program(os.path.join(options.build, "bench"), "gpu/fabric_gpu_cpu_driver")
    limit = find_program(options.build, "bench_limit_driver")
    if not ours:
        raise ContenderFailed("fabric_gpu_cpu_driver is not built")
    sets = [(ProcessSet("fabric", [ours, "--world", str(ranks), "--area-bytes", area]),
             [Entry("fabric", "fabric", "fabric", "auto", "arena"),
              Entry("fabric-staged", "fabric-staged", "fabric", "auto", "heap")]),
            (torch_set(options, ranks, scratch), [Entry("gloo", "gloo", "gloo")])]
    if limit and ranks <= 16:
        sets.append((ProcessSet("limit", [limit, "--world", str(ranks), "--area-bytes", area]),
                     [Entry(f"limit-{name}", "limit", "limit", name, "arena") for name in LIMITS]))
    return sets


def nccl_sets(options, ranks, scratch):
    """The same on GPUs."""
    ours = find_program(os.path.join(options.build, "bench"), "gpu/fabric_gpu_stream_driver")
    if not ours:
        raise ContenderFailed("fabric_gpu_stream_driver is not built")
    return [(ProcessSet("fabric", [ours, "--world", str(ranks)]),
             [Entry("fabric", "fabric", "fabric", "auto", "arena"),
              Unchecked("fabric-staged", "fabric-staged", "fabric", "auto", "heap")]),
            (torch_set(options, ranks, scratch), [Unchecked("nccl", "nccl", "nccl")])]


def start(sets, ranks, scratch, timeout):
    """The running process sets by name. All are started before the first is waited for."""
    control = os.path.join(scratch, f"control-{ranks}")
    os.makedirs(control, mode=0o700)
    running = {}
    try:
        for process_set, _ in sets:
            running[process_set.name] = Ranks(process_set, ranks, control, scratch)
        for one in running.values():
            one.wait_ready(timeout)
    except BaseException:
        for one in running.values():
            one.stop()
        raise
    return running


def measure_world(options, ranks, scratch, clock):
    """Rows of one number of ranks, versions, and what went wrong."""
    sets = (gloo_sets if options.peer == "gloo" else nccl_sets)(options, ranks, scratch)
    running = start(sets, ranks, scratch, options.timeout)
    try:
        bench = Bench(running, [entry for _, own in sets for entry in own], options, say, LineTrip(None))
        rows = []
        budget = 0.5 * fingerprint.memory_available()
        for size in options.sizes:
            case = Case("allreduce", size, "in", ranks)
            bench.measure(case, budget, clock.next_turn())
            rows += [with_ratios(row, bench.results(case), options.peer)
                     for row in report.rows_of(case, bench.results(case), {})]
        faults = bench.faults + [f"{family} was not measured" for family in ("fabric", options.peer)
                                 if family not in bench.measured]
        return rows, sorted(one.version for one in running.values()), faults
    finally:
        for one in running.values():
            one.stop()


def cells(row, peer):
    """One line of the table: times, how many times faster than the peer, and the share of the limit."""
    found = row["families"]

    def time_of(family):
        return report.time_text(found[family]["median_ns"]) if family in found else ""

    line = [report.size_text(row["bytes"]), time_of(peer)]
    for family in ("fabric", "fabric-staged"):
        # Below 512 KiB waiting and not the bytes decides.
        share = found.get(family, {}).get("share_of_limit") if row["bytes"] >= 512 << 10 else None
        line += [time_of(family), _format(found.get(family, {}).get("ratio"), ".2f"), _format(share, ".0%")]
    return line + [time_of("limit")]


def _format(value, form):
    return "" if value is None else format(value, form)


def with_ratios(row, results, peer):
    """The row with how many times faster ours is than the peer: the median over the rounds, each against itself."""
    for family in ("fabric", "fabric-staged"):
        if family in row["families"]:
            row["families"][family]["ratio"] = report.paired_ratio(results.get(peer), results.get(family))
    return row


def heading(peer, ranks, processors):
    """More ranks than processors wait for each other's turn: the title says so."""
    if peer == "nccl":
        return f"{ranks} ranks, a GPU each"
    note = ", oversubscribed" if ranks > processors else ""
    return f"{ranks} ranks on {processors} processors{note}"


def table(rows, peer):
    """A Markdown table."""
    head = ["bytes", peer, "ours in the pool", "ratio", "limit %", "ours staged", "ratio", "limit %", "limit"]
    if peer == "nccl":
        head[2], head[5] = "ours, in the pool", "ours, on the device"
    return report.aligned([head] + [cells(row, peer) for row in rows])


def main(arguments=None):
    """0; 1 when something was wrong; 77 with nothing to compare."""
    options = parse_options(arguments)
    missing, devices, gloo, nccl = torch_says()
    why = reason_to_skip(options, missing, devices, gloo, nccl)
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    options.ranks = options.ranks or ([8, 16] if options.peer == "gloo" else [min(devices, 4)])
    processors = len(os.sched_getaffinity(0))
    clock = Clock(options.seconds, len(options.ranks) * len(options.sizes))
    faults = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="fabric-paired-") as scratch:
            try:
                rows, versions, wrong = measure_world(options, ranks, scratch, clock)
            except ContenderFailed as failure:
                faults.append(str(failure))
                continue
        print(f"{heading(options.peer, ranks, processors)} ({', '.join(versions)}):\n")
        print(table(rows, options.peer) + "\n", flush=True)
        faults += wrong
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
