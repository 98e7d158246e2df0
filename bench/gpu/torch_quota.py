#!/usr/bin/python3
"""PyTorch under the quota shim, on a GPU, without fabricd: fabric_gpu_quota serves the limits.

  context  what a context counts, against nvidia-smi; then an allocation of 1 GiB
  oom      out of memory at the quota, within 2 MiB, with three allocators of PyTorch
  graphs   CUDA graphs captured and replayed while the quota shrinks and grows
  ipc      a tensor shared by two processes; each is killed, and its bytes are free within a second
  loop     a process at 95 % of its quota is granted more by the control loop
  shares   two loops of matrix products at 25/75 and 50/50 of the GPU's time
  cost     launches of a 5 us kernel and steps of ResNet-50, with and without the shim, in turn

Prints a table. Exit code 77, with a line that says why, without a torch that has a CUDA device; 1 when a check failed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position
from quota_program import MIB, Failed, QuotaProgram, Worker  # noqa: E402
from harness.endings import unwind_on_signals  # noqa: E402  its path comes with quota_program

SKIPPED = 77
GIB = 1 << 30
TOLERANCE = 2 * MIB  # a block of the driver
GONE_WITHIN = 1.0  # seconds
SHARE_TOLERANCE = 0.05  # of the whole
ALLOCATORS = ("default", "expandable_segments:True", "backend:cudaMallocAsync")
COST_ROUNDS = 9


@dataclass
class Row:
    """One line of the table. `good` None: a figure without a verdict."""

    what: str
    found: str
    wanted: str
    good: bool | None = None

    def cells(self):
        verdict = {True: "ok", False: "**FAILED**", None: ""}[self.good]
        return f"| {self.what} | {self.found} | {self.wanted} | {verdict} |"


def only_device(gpu):
    """What hides the other devices: one without a vGPU would keep the program from starting."""
    return {"CUDA_VISIBLE_DEVICES": gpu} if gpu.startswith("GPU-") else {}


def mib(count):
    """Bytes for people."""
    return f"{count / MIB:.1f} MiB"


@dataclass
class Machine:
    """The GPU that is checked, and the programs."""

    program: str
    shim: str
    gpu: str  # "GPU-...", or its number
    memory: int  # bytes of it
    quota: int  # bytes of the vGPU that the checks are made with
    scratch: str = ""
    wait_ms: int = 4000  # for the loop, whose answer comes within two windows of a second

    def folder(self, name):
        path = os.path.join(self.scratch, name)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def serve(self, name, vgpus, options=()):
        """fabric_gpu_quota with these vGPUs."""
        return QuotaProgram(self.program, self.folder(name), self.gpu, self.memory, vgpus, options)

    def worker(self, job, served=None, vgpu="a", **environment):
        """A job, under the shim when `served` is there."""
        environment = {**only_device(self.gpu), **environment}
        own = served.environment(self.shim, vgpu, **environment) if served else {**os.environ, **environment}
        return Worker(job, self.folder(f"worker-{job}"), own)


# ---- Judging: arithmetic alone -------------------------------------------------------------------

def judge_context(ours, shown):
    """What counts for a process, against what nvidia-smi shows (None: it does not list the process)."""
    if shown is None:
        return Row("context", mib(ours), "nvidia-smi lists no such process: not compared")
    # nvidia-smi cuts the last MiB off.
    good = abs(ours - shown) <= TOLERANCE + MIB
    return Row("context", f"{mib(ours)} count", f"{mib(shown)} (nvidia-smi), to 3 MiB", good)


def judge_growth(before, after, asked):
    """What an allocation added to the use."""
    added = after - before
    return Row("allocation", f"{mib(added)} more count", mib(asked), abs(added - asked) <= TOLERANCE)


def judge_full(allocator, quota, used, said):
    """Whether memory was refused at the quota and not before, and what the process takes for the whole."""
    left = quota - used
    good = 0 <= left <= TOLERANCE and said["total"] == quota and bool(said["refused"])
    found = f"{mib(left)} left of {mib(quota)}, total {mib(said['total'])}"
    return Row(f"out of memory, {allocator}", found, "0 to 2 MiB left, total = quota", good)


def judge_graphs(said, changes):
    """Graphs were captured and replayed, right each time, and the quota moved meanwhile."""
    good = said["captured"] > 0 and changes > 1
    return Row("graphs under a moving quota", f"{said['captured']} captured, {said['replayed']} replays, all right",
               f"while the quota changed {changes} times", good)


def judge_death(what, seconds):
    """How long bytes of a killed process counted."""
    found = "still counts" if seconds is None else f"{seconds:.3f} s"
    return Row(what, found, f"< {GONE_WITHIN:.0f} s", seconds is not None and seconds < GONE_WITHIN)


def judge_shares(wanted, rates):
    """The part of all work that each of two programs did, against its share."""
    total = sum(rates)
    parts = [rate / total if total else 0.0 for rate in rates]
    good = all(abs(part - share / sum(wanted)) <= SHARE_TOLERANCE for part, share in zip(parts, wanted))
    return Row("shares " + "/".join(str(share) for share in wanted), "/".join(f"{100 * part:.1f}" for part in parts),
               f"within {100 * SHARE_TOLERANCE:.0f}", good)


def judge_cost(what, bare, shimmed, unit="us"):
    """Paired figures: medians, and the median of the rounds' differences and ratios."""
    more = statistics.median(s - b for b, s in zip(bare, shimmed))
    ratio = statistics.median(s / b for b, s in zip(bare, shimmed))
    return Row(what, f"{statistics.median(bare):.2f} -> {statistics.median(shimmed):.2f} {unit}, {more:+.2f} {unit}",
               f"with / without: {ratio:.3f}")


# ---- The checks ----------------------------------------------------------------------------------

def shown_by_nvidia_smi(pid):
    """Bytes that a process has on the GPU, or None."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return bytes_of_process(done.stdout, pid)


def bytes_of_process(listing, pid):
    """Of the lines `PID, MIB`; a process with two contexts has two. None: not listed, or without a figure."""
    found = None
    for line in listing.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 2 and words[0] == str(pid) and words[1].isdigit():
            found = (found or 0) + int(words[1]) * MIB
    return found


def check_context(machine):
    with machine.serve("context", {"a": machine.quota}) as served, machine.worker("context", served) as worker:
        total = worker.hear()["total"]
        before = served.used("a")
        yield judge_context(before, shown_by_nvidia_smi(worker.pid))
        yield Row("total that PyTorch sees", mib(total), mib(machine.quota), total == machine.quota)
        asked = min(GIB, machine.quota // 2)
        worker.tell(str(asked))
        worker.hear()
        yield judge_growth(before, served.used("a"), asked)


def check_oom(machine):
    for number, allocator in enumerate(ALLOCATORS):
        # The second name is that of PyTorch 2.9 and later.
        names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if allocator != "default" else ()
        more = dict.fromkeys(names, allocator)
        with machine.serve(f"oom-{number}", {"a": machine.quota}) as served:
            try:
                with machine.worker("fill", served, **more) as worker:
                    said = worker.hear()
                    yield judge_full(allocator, machine.quota, served.used("a"), said)
            except Failed as failure:
                # The other allocators are checked all the same.
                yield Row(f"out of memory, {allocator}", str(failure), "0 to 2 MiB left", False)


def check_graphs(machine, seconds=4):
    with machine.serve("graphs", {"a": machine.quota}) as served, machine.worker("graphs", served) as worker:
        worker.hear()
        # Room for what a capture allocates, and for what the last one may still hold.
        least = min(served.used("a") + 512 * MIB, machine.quota)
        changes, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for quota in range(machine.quota, least - 1, -16 * MIB):
                served.ask(f"quota a {quota}")
                changes += 1
        worker.tell("stop")
        yield judge_graphs(worker.hear(), changes)


def check_ipc(machine):
    with machine.serve("ipc", {"a": machine.quota}) as served, machine.worker("ipc", served) as worker:
        said = worker.hear(120)
        reader = said["reader"]
        yield Row("a shared tensor, read", f"sum {said['sum']:.0f}", "3000", said["sum"] == 3000)
        held = served.processes("a")
        counted = reader in held and worker.pid in held
        yield Row("both processes count", str(len(held)), "2", counted)
        os.kill(reader, 9)
        yield judge_death("reader killed: its bytes are free", served.seconds_until(
            lambda: reader not in served.processes("a"), 5))
        worker.kill()
        yield judge_death("writer killed: use back to 0", served.seconds_until(lambda: served.used("a") == 0, 5))


def check_loop(machine):
    # No room but what the two have: what one gets the other lends.
    options = ["--loop", "--wait", str(machine.wait_ms), "--reserve", str(machine.memory - 2 * machine.quota)]
    with machine.serve("loop", {"a": machine.quota, "b": machine.quota}, options) as served:
        with machine.worker("grow", served) as worker:
            worker.hear()
            first = int(machine.quota * 0.95) - served.used("a")
            worker.tell(str(first // TOLERANCE * TOLERANCE))
            if not worker.hear()["granted"]:
                raise Failed("95 % of the quota were refused")
            asked = machine.quota // 8
            worker.tell(str(asked))
            said = worker.hear()
            yield Row(f"at 95 % of its quota, {mib(asked)} more", f"{'granted' if said['granted'] else 'refused'} after "
                      f"{said['seconds']:.1f} s, quota {mib(served.ask('used a')[1])}", "granted", said["granted"])


def check_shares(machine, warmup=3, seconds=4):
    quotas = {"a": machine.quota, "b": machine.quota}
    with machine.serve("shares", quotas) as served, machine.worker("matmul", served, "a") as first, \
            machine.worker("matmul", served, "b") as second:
        for worker in (first, second):
            worker.hear()
        for wanted in ((25, 75), (50, 50)):
            for name, share in zip("ab", wanted):
                served.ask(f"share {name} {share}")
            for worker in (first, second):
                worker.tell(f"{warmup} {seconds}")
            yield judge_shares(wanted, [worker.hear()["rate"] for worker in (first, second)])


def check_cost(machine):
    with machine.serve("cost", {"a": machine.memory}) as served, machine.worker("cost") as bare, \
            machine.worker("cost", served) as shimmed:
        for worker in (bare, shimmed):
            worker.hear(120)
        figures = {}
        for number in range(COST_ROUNDS):
            # Neither is always the second.
            order = (bare, shimmed) if number % 2 == 0 else (shimmed, bare)
            for worker in order:
                for what in ("launches", "steps"):
                    worker.tell(what)
                    for name, value in worker.hear().items():
                        figures.setdefault((name, worker is shimmed), []).append(value)
        for name, text in (("whole_us", "launch of a 5 us kernel, to its end"),
                           ("host_us", "launch, the host's time (aim: < 0.3 us more)"),
                           ("step_us", "step of ResNet-50, 32 images")):
            yield judge_cost(text, figures[name, False], figures[name, True])


CHECKS = {"context": check_context, "oom": check_oom, "graphs": check_graphs, "ipc": check_ipc, "loop": check_loop,
          "shares": check_shares, "cost": check_cost}


# ---- The program ---------------------------------------------------------------------------------

def parse_options(arguments):
    """The command line."""
    def names(text):
        words = text.split(",")
        for word in words:
            if word not in CHECKS:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(CHECKS)}")
        return words

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=names, default=list(CHECKS), help="default: all, " + ",".join(CHECKS))
    parser.add_argument("--build", default=os.path.join(SOURCE, "build", "gpu"), metavar="DIR")
    return parser.parse_args(arguments)


def torch_gpu(gpu):
    """(why there is none or None, bytes of the device), asked in a process of its own."""
    text = ("import torch; "
            "print(torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0)")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False,
                          env={**os.environ, **only_device(gpu)})
    if done.returncode != 0:
        return f"no torch in {sys.executable}", 0
    memory = int(done.stdout.split()[-1])
    return (None, memory) if memory else ("this torch has no CUDA device", 0)


def uuid_of_gpu():
    """As the daemon's device file would name device 0; "0" where nvidia-smi does not say."""
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return "0"
    try:
        done = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=uuid", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "0"
    uuid = done.stdout.strip()
    return uuid if uuid.startswith("GPU-") else "0"


def missing_programs(build):
    """The two paths, or the first that is missing."""
    program = os.path.join(build, "bench", "gpu", "fabric_gpu_quota")
    shim = os.path.join(build, "libfabricshm", "vgpu", "libfabricvgpu.so")
    lacking = next((path for path in (program, shim) if not os.path.exists(path)), None)
    return program, shim, lacking


def rows_of(name, machine):
    """The rows of a check; one that breaks off ends with a row that says why."""
    try:
        yield from CHECKS[name](machine)
    except Failed as failure:
        yield Row(name, str(failure), "", False)


def main(arguments=None):
    """0, 1 when a check failed, 77 where there is nothing to check on."""
    options = parse_options(arguments)
    gpu = uuid_of_gpu()
    why, memory = torch_gpu(gpu)
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    program, shim, lacking = missing_programs(options.build)
    if lacking:
        print(f"{lacking} is not built")
        return 1
    failed = False
    print("| what | found | wanted | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="fabric-quota-") as scratch:
        # Whole blocks of 2 MiB; small GPUs have room for two of them.
        quota = min(4 * GIB, memory // 3 // TOLERANCE * TOLERANCE)
        machine = Machine(program, shim, gpu, memory, quota, scratch)
        for name in options.checks:
            for row in rows_of(name, machine):
                failed = failed or row.good is False
                print(row.cells(), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
