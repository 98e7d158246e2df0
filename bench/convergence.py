#!/usr/bin/python3
"""How fast do AdamW, AdaBelief and both modes of max-AdaBelief learn, on two small networks, by steps?

The networks and data of examples/shared_parameters, ranks that share one copy of the parameters, and
several seeds: of the initial values and of the batches, the same for all rules. Not a measurement of time.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(SOURCE, "examples", "shared_parameters"))
# pylint: disable=wrong-import-position,import-outside-toplevel
from harness import curves, fingerprint  # noqa: E402
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unwind_on_signals  # noqa: E402

SKIPPED = 77  # exit code of a test that can't run here
# By name: the class of fabricshm.optim, and what it is made with.
RULES = {
    "AdamW": ("AdamW", {}),
    "AdaBelief": ("AdaBelief", {}),
    "max-AdaBelief": ("MaxAdaBelief", {}),
    "max-AdaBelief, moment": ("MaxAdaBelief", {"mode": "moment"}),
}
TASKS = ("images", "characters")
SETTINGS = ("ranks", "steps", "every", "batch", "seeds", "lr", "eps", "belief_eps")
DECAY = 0.01  # AdamW's default, for all


def parse_options(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="processes (default 2)")
    add("--steps", type=int, default=300, help="of each training (default 300)")
    add("--every", type=int, default=25, help="steps between two looks at what was held out (default 25)")
    add("--batch", type=int, default=16, help="samples per rank and step (default 16)")
    add("--seeds", default="1,2,3", help="default 1,2,3")
    add("--tasks", default=",".join(TASKS), help="of images, characters")
    add("--lr", type=float, default=1e-3, help="learning rate of all (default 0.001)")
    add("--eps", type=float, default=1e-8, help="epsilon of AdamW (default 1e-8)")
    add("--belief-eps", type=float, default=1e-16, help="epsilon of the others (default 1e-16)")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--kept", metavar="FILE,FILE", help="tables and picture of what --json has written, of several runs together")
    add("--json", metavar="FILE", help="write everything measured")
    add("--markdown", metavar="FILE", help="write the tables as a page")
    add("--plot", metavar="FILE", help="draw the curves; the ending says the format")
    options = parser.parse_args(arguments)
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    options.tasks = options.tasks.split(",")
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"there is no task {sorted(unknown)[0]}")
    if min(options.ranks, options.steps, options.every, options.batch) < 1:
        parser.error("--ranks, --steps, --every and --batch are 1 at least")
    return options


# ---- One rank ------------------------------------------------------------------------------------

def train(task, rule, seed, group, arena, options):
    """One training, by all ranks; [(step, loss of training, held-out loss, part that is right)]."""
    import numpy
    import torch
    from fabricshm import optim

    kind, more = RULES[rule]
    eps = options.eps if kind == "AdamW" else options.belief_eps
    name = f"{task.name}-{rule}-{seed}"
    torch.manual_seed(seed)
    task.reset()
    optimiser = getattr(optim, kind)(task.task.model.parameters(), options.lr, eps=eps, weight_decay=DECAY,
                                     group=group, name=name, **more)
    generator = torch.Generator().manual_seed(1000 * seed + group.rank)
    curve, losses = [], []
    for step in range(1, options.steps + 1):
        optimiser.zero_grad()
        loss = task.task.loss(generator, options.batch)
        loss.backward()
        losses.append(loss.item())
        optimiser.step()
        if step % options.every == 0 or step == options.steps:
            mean = group.all_reduce(numpy.array([statistics.fmean(losses)]), op="avg")
            losses.clear()
            # No rank moves the parameters before rank 0 calls the next step.
            if group.rank == 0:
                curve.append((step, float(mean[0]), *task.task.held_out()))
    optimiser.shared.set.close()
    group.barrier()
    if group.rank == 0:
        arena.free_parameters(name)
    return curve


class Task:
    """A network of which the values can be drawn again."""

    def __init__(self, name):
        import tasks
        self.name = name
        self.task = tasks.TASKS[name]()
        self.parameters = sum(tensor.numel() for tensor in self.task.model.parameters())

    def reset(self):
        """New values, by the seed of torch, in memory of this process."""
        self.task.model = self.task.new_model()


def serve(rank, options, report):
    """All trainings; rank 0 writes a line of JSON for each."""
    import torch
    import fabricshm

    torch.set_num_threads(1)
    # Ranks wait long for each other where others have the cores.
    with fabricshm.Session(timeout=600) as session:
        arena = session.arena("convergence", bytes=256 << 20)
        with arena.join("ranks", rank, options.ranks) as group:
            for name in options.tasks:
                task = Task(name)
                for seed in options.seeds:
                    for rule in RULES:
                        curve = train(task, rule, seed, group, arena, options)
                        if rank == 0:
                            row = {"task": name, "parameters": task.parameters, "rule": rule, "seed": seed,
                                   "curve": curve}
                            report.write(json.dumps(row) + "\n")
                            report.flush()


def start_rank(rank, options, write_end):
    """The pid of a rank that ends with this program."""
    child = os.fork()
    if child:
        return child
    end_with_parent()
    status = 1
    try:
        with os.fdopen(write_end, "w") as report:
            serve(rank, options, report)
        status = 0
    except SystemExit as error:  # data that is not installed
        print(error, file=sys.stderr, flush=True)
        status = SKIPPED
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def measure(options):
    """(rows, the worst exit code of a rank)."""
    rows, children = [], []
    read_end, write_end = os.pipe()
    for rank in range(options.ranks):
        children.append(start_rank(rank, options, write_end))
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        for line in lines:
            rows.append(json.loads(line))
            last = rows[-1]["curve"][-1]
            print(f"{rows[-1]['task']}, {rows[-1]['rule']}, seed {rows[-1]['seed']}: step {last[0]}, held-out "
                  f"loss {last[2]:.3f}, {100 * last[3]:.1f} % right", file=sys.stderr, flush=True)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return rows, max(codes, key=abs)


# ---- What came of it -----------------------------------------------------------------------------

def table_of(rows, task):
    """Lines of Markdown: of each rule its last values, of all seeds."""
    lines = ["| rule | loss, training | loss, held out: median (each seed) | right, held out: median |",
             "|---|---:|---:|---:|"]
    for rule in RULES:
        last = [row["curve"][-1] for row in rows if row["task"] == task and row["rule"] == rule]
        if not last:
            continue
        training, held, right = zip(*((each[1], each[2], each[3]) for each in last))
        each = ", ".join(f"{value:.3f}" for value in held)
        lines.append(f"| {rule} | {statistics.median(training):.3f} | {statistics.median(held):.3f} ({each}) | "
                     f"{100 * statistics.median(right):.1f} % |")
    return lines


def page_of(machine, settings, rows):
    """The tables, with the settings."""
    lines = [f"{settings['ranks']} ranks with {settings['batch']} samples each, {settings['steps']} steps, seeds "
             f"{', '.join(map(str, settings['seeds']))}; learning rate {settings['lr']:g}, β = (0.9, 0.999), "
             f"λ = {DECAY:g}, ε = {settings['eps']:g} of AdamW and {settings['belief_eps']:g} of the others. Commit "
             f"{machine['commit']}, PyTorch {machine['versions']['torch']}.", ""]
    for task in dict.fromkeys(row["task"] for row in rows):
        of = [row for row in rows if row["task"] == task]
        lines += [f"## {task} ({of[0]['parameters']:,} parameters)", "", *table_of(rows, task), ""]
    return "\n".join(lines)


def run(options):
    """(what --json writes, exit code)."""
    python = os.path.join(options.build, "python")
    program = os.path.join(options.build, "fabricd", "fabricd")
    if not os.path.exists(os.path.join(python, "fabricshm", "torch", "_backend.so")) or not os.path.exists(program):
        print(f"skipped: {options.build} has no module for PyTorch or no fabricd", file=sys.stderr)
        return None, SKIPPED
    sys.path.insert(0, python)
    with tempfile.TemporaryDirectory(prefix="fabric-convergence-") as folder:
        daemon = Daemon(program, folder, 512 << 20)
        try:
            if trouble := daemon.wait_ready():
                print(f"fabricd: {trouble}", file=sys.stderr)
                return None, 1
            os.environ["FABRIC_SOCKET"] = daemon.socket_path
            rows, code = measure(options)
        finally:
            daemon.stop()
    if code != 0:
        return None, abs(code)
    import torch
    settings = {name: getattr(options, name) for name in SETTINGS}
    machine = fingerprint.fingerprint(SOURCE, {"torch": torch.__version__})
    return {"machine": machine, "settings": settings, "rows": rows}, 0


def join(paths):
    """What several runs have written, as one; their settings are the same but for the tasks."""
    found = []
    for path in paths:
        with open(path) as file:
            found.append(json.load(file))
    for other in found[1:]:
        if other["settings"] != found[0]["settings"]:
            raise SystemExit(f"the runs have other settings: {found[0]['settings']}, {other['settings']}")
        found[0]["rows"] += other["rows"]
    return found[0]


def main(arguments=None):
    options = parse_options(arguments)
    unwind_on_signals()
    if options.kept:
        kept = join(options.kept.split(","))
    else:
        kept, code = run(options)
        if kept is None:
            return code
    if options.json:
        with open(options.json, "w") as file:
            json.dump(kept, file)
    page = page_of(**kept)
    print(page)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(page + "\n")
    if options.plot:
        curves.plot(kept["rows"], options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
