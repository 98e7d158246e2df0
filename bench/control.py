#!/usr/bin/python3
"""What does the control loop gain when ranks differ in speed?

Four ranks train a perceptron on Fashion-MNIST, each slowed to a device of a prescribed speed: 1, 1, 0.5 and
0.25. After a while rank 1 falls to 0.4; then a neighbour takes memory bandwidth and rank 0 falls to
0.7. The same training runs twice, with the control loop of fabricd off and on; with several seeds,
twice for each of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position,import-outside-toplevel
from harness import settling  # noqa: E402
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unwind_on_signals  # noqa: E402
from harness.fingerprint import fingerprint  # noqa: E402
from harness.usage import cpu_seconds  # noqa: E402

SKIPPED = 77
WANTED = 0.85  # accuracy
# A row per phase, a speed per rank.
SPEEDS = ([1, 1, 0.5, 0.25], [1, 0.4, 0.5, 0.25], [0.7, 0.4, 0.5, 0.25])
POOL_BYTES = 1 << 30
LOOK_S = 5  # between two looks at the quotas: each costs the daemon about 2 ms


def parse_options(arguments):
    """The command line; --rank, --store, --plan and --result are for the ranks it starts."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=470, help="of each run (default 470: two epochs)")
    add("--batch", type=int, default=256, help="images of a step over all ranks (default 256)")
    add("--actions", metavar="LIST",
        help="control.actions of the runs with the loop (default: the daemon's own; "
        "shares,quota,pool also moves quotas of the pool to the neighbour)")
    add("--rate", type=float, default=400,
        help="samples per second of a device of speed 1 (default 400)")
    add("--window", type=float, default=1, metavar="SECONDS",
        help="of the control loop (default 1)")
    add("--keep-every", type=int, default=20, metavar="STEPS",
        help="between two measured accuracies (default 20)")
    add("--runs", default="off,on", help="of off, on and written (default off,on)")
    add("--directives", metavar="FILE",
        help="for the run `written`: a JSON list of directives, each with its step, without the loop")
    add("--reuse", metavar="FILE",
        help="take runs that an earlier --json has, of the same plan, from there")
    add("--seeds", default="1", metavar="LIST",
        help="of what the steps draw; each has all the runs, in turn (default 1)")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--json", metavar="FILE", help="write everything measured")
    add("--markdown", metavar="FILE", help="write the tables as a page")
    add("--plot", metavar="FILE", help="draw shares, step time and quotas over time (PNG)")
    add("--ranks", type=int, default=4, choices=[2, 3, 4], help="the first of these (default 4)")
    for name in ("--rank", "--seed"):
        add(name, type=int, help=argparse.SUPPRESS)
    add("--neighbour", action="store_true", help=argparse.SUPPRESS)
    for name in ("--store", "--plan", "--result"):
        add(name, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    runs = options.runs.split(",")
    if not set(runs) <= {"off", "on", "written"}:
        parser.error(f"--runs is {options.runs}: a list of off, on and written")
    if not all(seed.isdecimal() for seed in options.seeds.split(",")):
        parser.error(f"--seeds is {options.seeds}: a list of numbers")
    if "written" in runs and not options.directives:
        parser.error("--directives: the run `written` needs a file")
    if options.steps < 6 or options.batch < 4 or options.rate <= 0 or options.window <= 0:
        parser.error("--steps is at least 6, --batch at least 4, --rate and --window above 0")
    return options


def turns(options):
    """What is measured, in this order: label, run, seed."""
    seeds, names = options.seeds.split(","), options.runs.split(",")
    # Every other seed's runs come in reverse: a machine that gets slower over time favours none of them.
    return [(name if len(seeds) == 1 else f"{name}, seed {seed}", name, int(seed))
            for number, seed in enumerate(seeds)
            for name in (names if number % 2 == 0 else names[::-1])]


def say(text):
    """Progress goes to the error output."""
    print(text, file=sys.stderr, flush=True)


def plan_of(options):
    """When which speeds hold: half of the steps, then a quarter each."""
    ends = [options.steps // 2, options.steps * 3 // 4, options.steps]
    # Fewer ranks than the plan has take its first columns.
    speeds = [row[: options.ranks] for row in SPEEDS]
    return {"ends": ends, "speeds": speeds, "rate": options.rate, "batch": options.batch,
            "neighbour": 2}


def config_of(options, name):
    """Configuration of the daemon besides what each benchmark has."""
    if not knows_control(options):
        return ""
    mode = "on" if name == "on" else "off"
    actions = f'actions = "{options.actions}"\n' if options.actions and name == "on" else ""
    return f'[control]\nmode = "{mode}"\nwindow = "{int(options.window * 1000)}ms"\n{actions}'


def knows_control(options):
    """Whether this build's fabricd has a control loop."""
    # An older build is measured, too, as the run without a loop.
    done = subprocess.run([os.path.join(options.build, "fabricd", "fabricd"), "--help"],
                          capture_output=True, text=True, check=False)
    return "--control-mode" in done.stdout


class Watch:
    """Looks, again and again, at what changes over time."""

    def __init__(self, options, daemon):
        self._words = [os.path.join(options.build, "fabricd", "ctl", "fabricctl")]
        self._admin = os.path.join(os.path.dirname(daemon.socket_path), "admin.sock")
        self._pid = daemon.pid
        self.quotas = []
        self.cpu = []

    def ask(self, *words):
        """What the command shows as JSON; None when it does not."""
        done = subprocess.run([*self._words, *words, "--json", "--socket", self._admin],
                              capture_output=True, text=True, check=False)
        try:
            return json.loads(done.stdout) if done.returncode == 0 else None
        except ValueError:
            return None

    def look(self):
        """Notes the quotas of the devices, and what the daemon has used."""
        self.cpu.append([time.monotonic(), cpu_seconds(self._pid)])
        shown = self.ask("devices") or {"devices": []}
        self.quotas.append([time.monotonic(), {
            d["name"]: [d["vgpu_memory_bytes"], d["bytes_used"]] for d in shown["devices"]}])

    def cpu_share(self, began, ended):
        """Of a core, between two times; None when there was not a look each side of something."""
        # Attaching is no training: the daemon makes the arenas' pages present then, half a second for a GiB.
        looks = [look for look in self.cpu if began <= look[0] <= ended]
        if len(looks) < 2:
            return None
        return (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])


def write_devices(folder, options):
    """A device per rank, so that quotas are counted: DDP's buckets and the neighbour's appetite."""
    path = os.path.join(folder, "devices.toml")
    with open(path, "w") as file:
        for rank in range(options.ranks):
            file.write(f'[[device]]\nname = "gpu{rank}"\nkind = "gpu"\n'
                       f'gflops = {100 * SPEEDS[0][rank]}\nmemory = "256MiB"\n'
                       'vgpu_memory = "64MiB"\nlink_gbytes_per_s = 10\n')
        file.write('[[device]]\nname = "neighbour"\nkind = "gpu"\ngflops = 50\nmemory = "512MiB"\n'
                   'vgpu_memory = "64MiB"\nlink_gbytes_per_s = 10\n')
    return path


def start_ranks(options, name, seed, folder, socket):
    """The processes of a run."""
    environment = {**os.environ, "FABRIC_SOCKET": socket, "FABRIC_ARENA_BYTES": "256M",
                   "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.path.join(options.build, "python")}
    command = [sys.executable, os.path.abspath(__file__), "--store",
               os.path.join(folder, f"store-{name}"), "--plan", json.dumps(plan_of(options)),
               "--result", os.path.join(folder, name), "--seed", str(seed),
               "--batch", str(options.batch), "--keep-every", str(options.keep_every),
               "--steps", str(options.steps), "--ranks", str(options.ranks)]
    if name == "written":
        command += ["--directives", options.directives]
    return [subprocess.Popen(command + ["--rank", str(rank)], preexec_fn=end_with_parent,
                             env={**environment, "FABRIC_DEVICE": f"gpu{rank}"})
            for rank in range(options.ranks)]


def wait_for(processes, watch):
    """Looks at the quotas until all ranks have ended; fails with the first of them."""
    # A rank that failed ends the run at once: its peers would wait for it until their deadlines.
    while any(process.poll() is None for process in processes):
        if any(process.poll() not in (None, 0) for process in processes):
            for process in processes:
                process.terminate()
            raise SystemExit("bench: a rank failed")
        watch.look()
        time.sleep(LOOK_S)
    if any(process.returncode for process in processes):
        raise SystemExit("bench: a rank failed")


def run(options, name, seed):
    """One training; what was seen."""
    with tempfile.TemporaryDirectory(prefix="fabric-control-") as folder:
        devices = write_devices(folder, options)
        extra = config_of(options, name) + f'[devices]\nfile = "{devices}"\n'
        daemon = Daemon(os.path.join(options.build, "fabricd", "fabricd"), folder, POOL_BYTES, extra)
        try:
            problem = daemon.wait_ready()
            if problem:
                raise SystemExit(f"bench: fabricd did not start: {problem}")
            watch = Watch(options, daemon)
            wait_for(start_ranks(options, name, seed, folder, daemon.socket_path), watch)
            decisions = watch.ask("decisions") if name == "on" else None
            if name == "on" and decisions is None:
                say("control: fabricd reported no loop; this run is one without")
        finally:
            daemon.stop()
        ranks = []
        for rank in range(options.ranks):
            with open(os.path.join(folder, f"{name}-{rank}.json")) as file:
                ranks.append(json.load(file))
    found = ranks[0]
    found["late"] = [rank["late"] for rank in ranks]
    found["real_s"] = [rank["real_s"] for rank in ranks]
    # Of the same clock as the steps, which count from when the training began.
    found["quotas"] = [[at - found["started"], quotas] for at, quotas in watch.quotas]
    found["decisions"] = decisions
    # Answering this benchmark included.
    found["daemon_cpu_share"] = watch.cpu_share(
        found["started"], found["started"] + found["steps"][-1]["t"])
    return found


def earlier_runs(options):
    """The runs of --reuse; an error when they followed another plan."""
    if not options.reuse:
        return {}
    with open(options.reuse) as file:
        earlier = json.load(file)
    if earlier["plan"] != plan_of(options):
        raise SystemExit(f"bench: --reuse: {options.reuse} has runs of another plan")
    return earlier["runs"]


def percent(value):
    """Of a share; a dash when there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value, form):
    """As `form` says; a dash when there is none."""
    return "-" if value is None else form.format(value)


def page_of(results, options):
    """The tables as Markdown."""
    results = {**results, **medians_of(results, options)}
    lines = ["| run | seconds | of the ideal | accuracy | time to 85 % | late steps "
             "| daemon |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    for name, (found, figures) in results.items():
        lines.append(
            f"| {name} | {figures['seconds']:.1f} | {percent(figures['of_ideal'])} | "
            f"{percent(figures['final_accuracy'])} | {number(figures['time_to_accuracy_s'], '{:.1f} s')} | "
            f"{late_of(found, options)} | "
            f"{number(found.get('daemon_cpu_share'), '{:.2%} of a core')} |")
    lines += ["", "| run | speeds | samples/s | ideal | of the ideal | once settled | settled after "
              "| changes | reversals |", "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for name, (_, told) in results.items():
        for phase in told["phases"]:
            lines.append(
                f"| {name} | {', '.join(str(s) for s in phase['speeds'])} | "
                f"{phase['samples_per_s']:.0f} | {phase['ideal_samples_per_s']:.0f} | "
                f"{percent(phase['of_ideal'])} | {percent(phase['settled_of_ideal'])} | "
                f"{number(phase['settled_windows'], '{:.3g} windows')} | {phase['changes']:g} | "
                f"{phase['reversals']:g} |")
    told = "".join(decisions_of(name, found) for name, (found, _) in results.items())
    return "\n".join(lines) + "\n" + told


def medians_of(results, options):
    """A row per run over all seeds; nothing when there is one seed."""
    if len(results) == len(options.runs.split(",")):
        return {}
    found = {}
    for name in options.runs.split(","):
        mine = [pair for label, pair in results.items() if label.startswith(f"{name}, seed ")]
        shares = [run["daemon_cpu_share"] for run, _ in mine if run.get("daemon_cpu_share")]
        found[f"{name}, median"] = (
            {"late": [], "decisions": None,
             "daemon_cpu_share": statistics.median(shares) if shares else None},
            settling.medians([told for _, told in mine]))
    return found


def late_of(found, options):
    """How many steps took longer than the devices'; a dash where no run is meant."""
    steps = options.steps * options.ranks
    return f"{sum(found['late'])} of {steps}" if found["late"] else "-"


def decisions_of(name, found):
    """What the loop did, in a line; empty without a loop."""
    rows = (found["decisions"] or {}).get("decisions", [])
    if not rows:
        return ""
    counts = {}
    for row in rows:
        key = (row["kind"], row["outcome"] or "open")
        counts[key] = counts.get(key, 0) + 1
    summary = ", ".join(f"{count} {kind} {outcome}" for (kind, outcome), count in counts.items())
    return f"\nDecisions of the run {name}: {summary}.\n"


def missing():
    """Why it can't run here; empty when it can."""
    try:
        import torch
    except ImportError as error:
        return str(error)
    folder = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
    if not torch.distributed.is_available() or not os.path.isdir(folder):
        return f"torch has no distributed, or there is no {folder}"
    return ""


def main(arguments=None):
    """0; 77 where something is missing."""
    options = parse_options(arguments)
    if options.rank is not None:
        import control_rank
        return control_rank.main(options)
    if options.neighbour:
        import control_rank
        return control_rank.neighbour()
    problem = missing()
    if problem:
        say(f"skipped: {problem}")
        return SKIPPED
    if "on" in options.runs.split(",") and not knows_control(options):
        say("control: this build's fabricd has no control loop; --runs off,written needs none")
        return 1
    results = {}
    earlier = earlier_runs(options)
    for label, name, seed in turns(options):
        if label not in earlier:
            say(f"run with the loop {label}" if name != "written" else "run with written directives")
        found = earlier.get(label) or run(options, name, seed)
        results[label] = (found, settling.figures(found, plan_of(options), options.window, WANTED))
    page = page_of(results, options)
    print(page, end="")
    if options.json:
        everything = {"plan": plan_of(options), "window_s": options.window,
                      "machine": fingerprint(SOURCE, {}),
                      "runs": {name: {**found, **told} for name, (found, told) in results.items()}}
        with open(options.json, "w") as file:
            json.dump(everything, file)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(f"# The control loop on ranks of unequal speed\n\n{page}")
    if options.plot:
        from harness import control_plot
        control_plot.plot(results, plan_of(options), options.plot)
    return 0


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
