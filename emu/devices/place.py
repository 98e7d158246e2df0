"""fabric-place: puts the layers of a network on devices, and runs them there.

    fabric-place resnet50.onnx devices.toml                     the plan and its predicted step
    fabric-place resnet50.pt devices.toml --input 1x3x64x64 --policy cost --run
"""

import os

# Before the libraries are loaded: a device is one processor, and more threads would make results
# depend on their number. (PyTorch's own count is set below.)
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import dataclasses
import signal
import sys
import time
import warnings

from . import report
from .cost import memory_of, segments_of
from .model import KINDS, PlacementError, read_devices
from .placement import place_by_cost, place_by_kind
from .schedule import make_schedule

DEVICE_KINDS = ("cpu", "gpu", "npu", "tpu", "bpu", "fpga", "asic", "dpu")

_DESCRIPTION = """\
Puts the layers of a network on the devices of a device file and prints the plan: for each layer its
kind, operations, bytes, device and time, then the stages and the predicted time of a step. With --run
it starts one process per device, sends micro-batches through them over the pool of fabricd, each device
slowed to its speed, and compares the outputs with those of a single process.
"""

_EPILOG = """\
policies:
  kind   fully connected layers to gpu, convolutions to fpga, activations to asic or dpu (--map changes
         that), other layers to where their data is; what does not fit goes to the next choice
  cost   the cut into one stage per device with the shortest predicted step, and no fewer devices
         than that needs; exact

examples:
  fabric-place resnet50.onnx devices.toml
  fabric-place resnet50.pt devices.toml --input 1x3x64x64 --policy cost --run
  fabric-place model.onnx devices.toml --map convolution=npu,gpu --json | jq .predicted_step_s

environment:
  FABRICCTL, FABRICD   programs to use instead of those next to this one or in PATH

exit codes: 0 done, 1 the run failed or the outputs differ, 2 wrong usage or no possible plan,
128 + N ended by signal N
"""


def parse_shape(text):
    parts = text.split("x")
    if not all(part.isdigit() and 0 < int(part) < 1 << 31 for part in parts) or len(parts) > 8:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; expected lengths, as 1x3x64x64")
    return [int(part) for part in parts]


def parse_map(text):
    kind, _, wanted = text.partition("=")
    kinds = wanted.split(",")
    if kind not in KINDS[:3] or not set(kinds) <= set(DEVICE_KINDS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no map; expected LAYERS=DEVICES, with layers of {', '.join(KINDS[:3])} and"
            f" devices of {', '.join(DEVICE_KINDS)}, as convolution=npu,gpu")
    return kind, tuple(kinds) + tuple(k for k in DEVICE_KINDS if k not in kinds)


def parse_count(text):
    if not text.isdigit() or not 1 <= int(text) <= 10000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10000")
    return int(text)


def parse_seconds(text):
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 86400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to 86400")
    return seconds


def make_parser():
    parser = argparse.ArgumentParser(
        prog="fabric-place", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("graph", metavar="GRAPH", help="network: TorchScript (.pt) or ONNX (.onnx)")
    add("devices", metavar="DEVICES", help="device file (TOML); fabricctl devices --file checks it")
    add("--policy", choices=("kind", "cost"), default="kind",
        help="how layers get their devices (default kind)")
    add("--map", type=parse_map, action="append", default=[], metavar="LAYERS=DEVICES",
        help="which kinds of devices a kind of layer prefers, for --policy kind; may be repeated")
    add("--input", type=parse_shape, action="append", default=[], metavar="SHAPE",
        help="shape of one micro-batch, as 1x3x64x64; once per input of the network. ONNX files "
             "usually say it")
    add("--micro-batches", type=parse_count, default=8, metavar="N",
        help="micro-batches of a step (default 8)")
    add("--in-flight", type=parse_count, default=4, metavar="N",
        help="micro-batches at a time between input and output (default 4)")
    add("--run", action="store_true", help="run the plan and compare the outputs")
    add("--check", choices=("exact", "close", "none"), default="exact",
        help="outputs have to have the same bits as a single process's, or differ by rounding "
             "only (1e-5 of the largest), or are not compared (default exact)")
    add("--timeout", type=parse_seconds, default=60.0, metavar="SECONDS",
        help="longest wait for a device or a value (default 60)")
    add("--daemon", metavar="SOCKET",
        help="use the fabricd that listens there, which has to have these devices (default: start "
             "one)")
    add("--brief", action="store_true", help="leave out the table of layers")
    add("--json", action="store_true", help="print one line of JSON; docs/devices.md has its fields")
    add("-V", "--version", action="version", version=_version())
    return parser


def _version():
    from fabricshm import __version__

    return f"fabric-place {__version__}"


@dataclasses.dataclass
class Plan:
    """What is printed, and what is run."""

    graph: object
    devices: list
    placement: list
    segments: list
    schedule: object
    memory: list


def make_plan(options, devices):
    import torch

    from . import graph as graphs

    torch.set_num_threads(1)
    graph = graphs.load(options.graph, options.input)
    network = graph.network
    count, in_flight = options.micro_batches, options.in_flight
    if options.policy == "cost":
        placement = place_by_cost(network, devices, count, in_flight)
    else:
        placement = place_by_kind(network, devices, in_flight, dict(options.map))
    segments = segments_of(network, devices, placement)
    schedule = make_schedule(segments, count, in_flight)
    memory = memory_of(network, devices, segments, in_flight)
    return Plan(graph, devices, placement, segments, schedule, memory)


def run_plan(options, plan, on_ready=None):
    """(Run, seconds of the single process, how the outputs compare)."""
    from . import pipeline

    batches = pipeline.micro_batches(plan.graph, options.micro_batches)
    begun = time.monotonic()
    expected = None
    if options.check != "none":
        expected = [plan.graph.reference(batch) for batch in batches]
    single = time.monotonic() - begun
    with _daemon_for(options, plan) as socket:
        job = pipeline.make_job(
            plan.graph, plan.devices, plan.segments, plan.schedule.orders, options.in_flight,
            socket, options.timeout)
        run = pipeline.run(job, batches, on_ready)
    return run, single, report.compare(expected, run.outputs, options.check)


class _daemon_for:
    """The socket of the fabricd that was named, or of one of our own with the device file."""

    def __init__(self, options, plan):
        self._options = options
        self._plan = plan
        self._daemon = None

    def __enter__(self):
        if self._options.daemon:
            return self._options.daemon
        from . import pipeline
        from .._daemon import EmbeddedDaemon

        bytes = pipeline.arena_bytes_for(
            self._plan.graph.network, self._plan.devices, self._plan.segments,
            self._options.in_flight)
        self._daemon = EmbeddedDaemon(
            pool_bytes=bytes + (64 << 20), timeout=self._options.timeout,
            options=["--pool-backend", "emu", "--devices-file",
                     os.path.abspath(self._options.devices)])
        return self._daemon.socket

    def __exit__(self, *_):
        if self._daemon is not None:
            self._daemon.stop()


def find_fabricctl():
    """Found as fabricd is: $FABRICCTL, next to fabricd, or PATH."""
    import shutil

    from .._daemon import find_program

    given = os.environ.get("FABRICCTL")
    if given:
        return given
    try:
        folder = os.path.dirname(find_program())
    except FileNotFoundError:
        folder = ""
    beside = [os.path.join(folder, "fabricctl"), os.path.join(folder, "ctl", "fabricctl")]
    found = next((path for path in beside if os.path.isfile(path)), shutil.which("fabricctl"))
    if found is None:
        raise PlacementError("fabricctl is not in PATH; set FABRICCTL to its path")
    return found


class _Ended(BaseException):
    """A signal, as an exception that lets the devices and the daemon be ended first."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


def _raise_ended(number, _):
    raise _Ended(number)


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    warnings.filterwarnings("ignore", module="torch")
    try:
        return _work(options)
    except PlacementError as error:
        return _fail(str(error), 2)
    except _Ended as ended:
        return 128 + ended.number
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away: there is none to notify
        return 1


def _work(options):
    plan = make_plan(options, read_devices(options.devices, find_fabricctl()))
    if not options.json:
        print(report.plan_text(options, plan), flush=True)
    if not options.run:
        if options.json:
            print(report.as_json(options, plan))
        return 0
    from fabricshm import FabricError

    from .stage import StageError

    # Not earlier: until here there is nothing to clean up, and an exception in the middle of an
    # import would be taken for the library's.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _raise_ended)
    try:
        outcome = run_plan(options, plan)
    except (StageError, FabricError, RuntimeError, OSError) as error:
        return _fail(str(error), 1)
    print(report.as_json(options, plan, outcome) if options.json
          else report.run_text(options, plan, outcome))
    return 0 if outcome[2].good else 1


def _fail(text, code):
    print("fabric-place: " + " ".join(text.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
