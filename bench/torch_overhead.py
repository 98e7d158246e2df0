#!/usr/bin/python3
"""What does PyTorch pay for communication through the fabric, against gloo, in the same processes?

Two questions, asked of both backends in turn, round by round:
  operation  the time of one all_reduce, from 4 bytes (pure overhead) to the size of a DDP bucket
  training   the communication that DistributedDataParallel does not hide: a step of ResNet-50 on one
             image of 64x64 (the communication-bound case), less a step without any communication
Method and reading: docs/benchmarks.md.
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
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unwind_on_signals  # noqa: E402

SKIPPED = 77  # exit code of a test that can't run here


def say(text):
    """Progress goes to the error output."""
    print(text, file=sys.stderr, flush=True)


def parse_options(arguments):
    """The command line; --rank and --store are for the ranks that this program starts."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="processes (default 2)")
    add("--rounds", type=int, default=7, help="samples per backend (default 7)")
    add("--steps", type=int, default=4, help="training steps per sample (default 4)")
    add("--sizes", default="4,4096,65536,1048576,26214400", help="bytes of the all_reduce")
    add("--backends", default="gloo,fabricshm")
    add("--model", default="resnet50", help="resnet50, tiny or none")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--socket", help="attach to a fabricd that runs already; else one is started")
    add("--require-fabric", action="store_true", help="exit with 1 when the fabric is left out")
    add("--json", metavar="FILE", help="write everything measured")
    add("--markdown", metavar="FILE", help="write the tables as a page")
    add("--plot", metavar="FILE", help=argparse.SUPPRESS)
    add("--rank", type=int, help=argparse.SUPPRESS)
    add("--store", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# ---- One rank ------------------------------------------------------------------------------------

def make_model(name):
    """(model, images): one image of 64x64 per rank for ResNet-50."""
    import torch
    if name == "tiny":
        layers = [torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 64), torch.nn.ReLU(),
                  torch.nn.Linear(64, 10)]
        return torch.nn.Sequential(*layers), torch.randn(4, 3, 8, 8)
    from torchvision.models import resnet50
    # Batch statistics of a single image have one value per channel at the end: evaluation mode for
    # those layers alone keeps the traffic and the arithmetic of training.
    model = resnet50()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.eval()
    return model, torch.randn(1, 3, 64, 64)


class Trainer:
    """Training steps of one model; `group` None trains alone, without any communication."""

    def __init__(self, name, group):
        import torch
        torch.manual_seed(1)
        model, self.images = make_model(name)
        self.labels = torch.randint(0, 10, (self.images.shape[0],))
        if group is not None:
            # broadcast_buffers off: what is measured is the gradients' way.
            model = torch.nn.parallel.DistributedDataParallel(model, process_group=group,
                                                              broadcast_buffers=False)
        self.model = model
        self.optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self):
        """Forward, backward with its communication, update."""
        self.optimiser.zero_grad()
        self.loss(self.model(self.images), self.labels).backward()
        self.optimiser.step()


class Rank:
    """Measures as one rank. gloo is the default group: times and barriers go through it."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist
        self.options, self.torch, self.dist = options, torch, dist
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.ranks))
        dist.init_process_group("gloo", init_method=f"file://{options.store}", rank=options.rank,
                                world_size=options.ranks)
        self.groups = {}
        self.trainers = {}
        self.start = {}  # seconds that making a group took, with its first barrier
        for backend in options.backends.split(","):
            if backend == "fabricshm":
                import fabricshm.torch  # noqa: F401  pylint: disable=unused-import
            dist.barrier()
            begun = time.perf_counter()
            group = dist.new_group(backend=backend)
            dist.barrier(group=group)
            self.start[backend] = self.slowest(time.perf_counter() - begun)
            self.groups[backend] = group
            # gloo's model takes its first steps, which lay out its buckets, before the fabric is
            # there: its memory is then what it would be without the fabric.
            if options.model != "none":
                self.trainers[backend] = Trainer(options.model, group)
                for _ in range(3):
                    self.trainers[backend].step()
        if options.model != "none":
            self.trainers["alone"] = Trainer(options.model, None)
            self.trainers["alone"].step()

    def slowest(self, seconds):
        """The longest of all ranks' times."""
        value = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(value, op=self.dist.ReduceOp.MAX)
        return value.item()

    def operation(self, backend, size, iterations):
        """Seconds per all_reduce of `size` bytes; (time, right result?)."""
        values = self.torch.ones(size // 4)
        group = self.groups[backend]
        self.dist.all_reduce(values, group=group)
        right = bool((values == self.options.ranks).all())
        values.zero_()  # sums of sums would grow without end
        for _ in range(iterations // 8 + 1):
            self.dist.all_reduce(values, group=group)
        self.dist.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            self.dist.all_reduce(values, group=group)
        return self.slowest((time.perf_counter() - start) / iterations), right

    def training(self, name):
        """Seconds per step."""
        trainer = self.trainers[name]
        trainer.step()  # warms the caches after another backend's turn
        self.dist.barrier()
        start = time.perf_counter()
        for _ in range(self.options.steps):
            trainer.step()
        return self.slowest((time.perf_counter() - start) / self.options.steps)

    def run(self):
        """All rounds; the same figures on every rank."""
        found = {"operation": {}, "training": {}, "start": self.start, "wrong": []}
        for size in [int(word) for word in self.options.sizes.split(",")]:
            # 64 MiB per sample, and three operations at least, so that no size is judged by one.
            iterations = max(3, min(2000, (64 << 20) // max(size, 1)))
            for _ in range(self.options.rounds):
                for backend in self.groups:
                    seconds, right = self.operation(backend, size, iterations)
                    found["operation"].setdefault(str(size), {}).setdefault(backend, []).append(
                        seconds)
                    if not right:
                        found["wrong"].append(f"{backend} all_reduce of {size} B")
        for _ in range(self.options.rounds if self.trainers else 0):
            for name in self.trainers:
                found["training"].setdefault(name, []).append(self.training(name))
        return found


def rank_main(options):
    """Body of one rank; rank 0 prints what was found."""
    rank = Rank(options)
    found = rank.run()
    if options.rank == 0:
        print(json.dumps(found), flush=True)
    rank.dist.barrier()
    rank.dist.destroy_process_group()
    return 0


# ---- The parent ----------------------------------------------------------------------------------

def missing(options):
    """Empty when all is there that the run needs."""
    try:
        import torch
        if not torch.distributed.is_available():
            return "torch has no distributed"
        if options.model == "resnet50":
            import torchvision  # noqa: F401  pylint: disable=unused-import
    except ImportError as error:
        return str(error)
    return ""


def run_ranks(options, environment, folder):
    """Starts the ranks and returns what rank 0 found."""
    command = [sys.executable, os.path.abspath(__file__), "--store", os.path.join(folder, "store")]
    for name in ("ranks", "rounds", "steps", "sizes", "backends", "model"):
        command += [f"--{name}", str(getattr(options, name))]
    processes = [subprocess.Popen(command + ["--rank", str(rank)], env=environment, text=True,
                                  stdout=subprocess.PIPE, preexec_fn=end_with_parent) for rank in range(options.ranks)]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("bench: a rank failed")
    return json.loads(outputs[0].strip().splitlines()[-1])


def with_fabric(options, folder, environment):
    """Starts a daemon when one is needed; (daemon, why the fabric is left out)."""
    python = os.path.join(options.build, "python")
    if not os.path.isdir(os.path.join(python, "fabricshm", "torch")):
        return None, "fabricshm.torch is not built"
    environment["PYTHONPATH"] = python + os.pathsep + environment.get("PYTHONPATH", "")
    # DDP's buckets of ResNet-50 take 0.2 GB per rank.
    environment.setdefault("FABRIC_ARENA_BYTES", str(options.ranks << 29))
    if options.socket:
        environment["FABRIC_SOCKET"] = options.socket
        return None, ""
    program = os.path.join(options.build, "fabricd", "fabricd")
    if not os.path.exists(program):
        return None, "fabricd is not built"
    daemon = Daemon(program, folder, (options.ranks << 29) + (1 << 30))
    problem = daemon.wait_ready()
    if problem:
        daemon.stop()
        return None, f"fabricd did not start: {problem}"
    environment["FABRIC_SOCKET"] = daemon.socket_path
    return daemon, ""


def microseconds(samples):
    """Median of seconds, in microseconds."""
    return statistics.median(samples) * 1e6


def page_of(found, backends):
    """The tables as Markdown."""
    lines = ["## all_reduce in PyTorch, microseconds", "",
             "| bytes | " + " | ".join(backends) + " | gloo / ours |", "|" + "---:|" * (len(backends) + 2)]
    for size, samples in found["operation"].items():
        cells = [f"{microseconds(samples[b]):.1f}" for b in backends]
        lines.append(f"| {size} | {' | '.join(cells)} | {_ratio(samples)} |")
    starts = ", ".join(f"{backend} {found['start'][backend] * 1e3:.0f} ms" for backend in backends)
    lines += ["", f"A process group and its first barrier: {starts}."]
    if found["training"]:
        alone = found["training"]["alone"]
        lines += ["", "## Training step, milliseconds", "",
                  "| | step | exposed communication | share of the step |", "|---|---:|---:|---:|",
                  f"| alone | {microseconds(alone) / 1e3:.1f} | | |"]
        for backend in backends:
            steps = found["training"][backend]
            exposed = statistics.median(s - a for s, a in zip(steps, alone))
            step = statistics.median(steps)
            lines.append(f"| {backend} | {step * 1e3:.1f} | {exposed * 1e3:.1f} | {exposed / step:.0%} |")
    return "\n".join(lines) + "\n"


def _ratio(samples):
    if "gloo" not in samples or "fabricshm" not in samples:
        return ""
    # Round against round, so that a slow minute counts for both.
    pairs = zip(samples["gloo"], samples["fabricshm"])
    return f"{statistics.median(theirs / ours for theirs, ours in pairs):.1f}"


def main(arguments=None):
    """0; 1 after a wrong result; 77 without torch."""
    options = parse_options(arguments)
    if options.rank is not None:
        return rank_main(options)
    problem = missing(options)
    if problem:
        say(f"skipped: {problem}")
        return SKIPPED
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as folder:
        daemon = None
        if "fabricshm" in options.backends.split(","):
            daemon, problem = with_fabric(options, folder, environment)
            if problem:
                say(f"without fabricshm: {problem}")
                if options.require_fabric:
                    return 1
                options.backends = "gloo"
        try:
            found = run_ranks(options, environment, folder)
        finally:
            if daemon:
                daemon.stop()
    page = page_of(found, options.backends.split(","))
    print(page, end="")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(f"# PyTorch against gloo, {options.ranks} ranks\n\n{page}")
    for text in found["wrong"]:
        say(f"FAULT wrong result: {text}")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
