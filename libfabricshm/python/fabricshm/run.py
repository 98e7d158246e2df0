"""fabricrun: starts the processes of a job on this host, with a fabricd when none runs.

    fabricrun --nproc-per-node 4 train.py --epochs 3

Scripts are those of torchrun, unchanged: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
are set, and torch.distributed knows the backend "fabricshm" without an import.
"""

import argparse
import importlib.util
import os
import re
import shutil
import signal
import socket
import sys

from . import _completion, _daemon
from ._workers import Workers, exit_text

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class _PrintCompletion(argparse.Action):
    def __call__(self, parser, _namespace, shell, _option=None):
        sys.stdout.write(_completion.script(parser, shell))
        parser.exit()


class Stopped(Exception):
    """A signal asked us to end."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


def parse_bytes(text):
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected bytes, as 512M or 2GiB")
    return int(match[1]) * _UNITS[match[2]]


def parse_count(text):
    if text in ("auto", "cpu"):
        return len(os.sched_getaffinity(0))
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes from 1 to 256")
    return int(text)


def number_in(least, most, what, kind=int):
    """A parser of numbers from `least` to `most`, which `what` describes to the user."""
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        # Not a number is in no range.
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what} from {least} to {most}")
        return value
    return parse


def package_version():
    # As fabricshm.__version__ says it, without the wait for numpy and the library.
    from importlib import metadata
    try:
        return metadata.version("fabricshm")
    except metadata.PackageNotFoundError:
        import fabricshm
        return fabricshm.__version__


def missing_script(options):
    """What is wrong with the script's name, or None: one line here instead of one traceback per rank."""
    name = options.script
    if options.no_python:
        return None if shutil.which(name) else f"there is no program {name!r} (--no-python)"
    if options.module:
        return _missing_module(name)
    if not os.path.exists(name):
        return f"there is no script {name!r}"
    is_package = os.path.isfile(os.path.join(name, "__main__.py"))
    if os.path.isdir(name) and not is_package:
        return f"{name!r} is a folder without a __main__.py"
    return None


def _missing_module(name):
    # The ranks search the current folder first. Only the outermost package: to find an inner one
    # would import it.
    outermost = name.partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(outermost) is not None
    except (ImportError, ValueError):
        found = False
    finally:
        sys.path.pop(0)
    return None if found else f"there is no module {name!r} (--module)"


def make_parser():
    parser = argparse.ArgumentParser(
        prog="fabricrun", allow_abbrev=False,
        description="Starts the processes of a job on this host, with a fabricd when none runs.",
        epilog="Exit code: that of the rank that failed first (128 + signal), 0 when all ended "
               "well, 2 when nothing could be started.")
    add = parser.add_argument
    add("--nproc-per-node", type=parse_count, default=1, metavar="N",
        help="processes; auto: one per core (default 1)")
    add("--nnodes", default="1", help="only 1: a pool is the memory of one host")
    add("--master-addr", default="127.0.0.1", help="MASTER_ADDR (default 127.0.0.1)")
    add("--master-port", type=number_in(0, 65535, "port"), default=0,
        help="MASTER_PORT (default: a free one)")
    add("--max-restarts", type=number_in(0, 1000000, "number of restarts"), default=0, metavar="N",
        help="start the whole job again, up to N times, when a rank fails (default 0)")
    add("--arena-bytes", type=parse_bytes, default=0, metavar="SIZE",
        help="arena of the job (default: the daemon's)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--daemon", metavar="SOCKET", help="use the fabricd that listens there")
    which.add_argument("--no-daemon", action="store_true", help="never start a fabricd")
    add("--override-backend", action="store_true",
        help="scripts that ask torch.distributed for gloo, mpi or ucc get fabricshm")
    add("--prefix", action="store_true", help="put the rank in front of every line of output")
    add("--grace", type=number_in(0, 86400, "number of seconds", float), default=10.0, metavar="SECONDS",
        help="from SIGTERM to SIGKILL when the job is ended (default 10)")
    add("--standalone", action="store_true", help="accepted as torchrun does; it is always so")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    kind.add_argument("--no-python", action="store_true", help="SCRIPT is a program")
    add("--completion", action=_PrintCompletion, choices=_completion.SHELLS, metavar="SHELL",
        help="print the script that completes this command line in bash, zsh or fish")
    add("-V", "--version", action="version", version=f"fabricrun {package_version()}")
    add("script", metavar="SCRIPT")
    add("arguments", nargs=argparse.REMAINDER, metavar="...")
    return parser


def parse(arguments):
    parser = make_parser()
    # torchrun takes --nproc_per_node as well; what follows the script is not ours to change.
    known = {option.replace("-", "_"): option for action in parser._actions
             for option in action.option_strings if option.startswith("--")}
    rewritten = []
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not argument.startswith("-") and not _takes_value(parser, rewritten[-1:]):
            rewritten += arguments[index:]
            break
        rewritten.append(known.get(name.replace("-", "_"), name) + equals + value
                         if name.startswith("--") else argument)
    options = parser.parse_args(rewritten)
    if options.nnodes not in ("1", "1:1"):
        parser.error("--nnodes: a pool is the memory of one host, so there is one node")
    return options


def _takes_value(parser, previous):
    return any(previous == [option] and action.nargs is None
               for action in parser._actions for option in action.option_strings)


def free_port(address):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def command_of(options):
    if options.no_python:
        return [options.script, *options.arguments]
    # -u would change how a script's output behaves; the bootstrap only adds the backend.
    command = [sys.executable, "-m", "fabricshm._run_script"]
    command += ["--module"] if options.module else []
    command += ["--override-backend"] if options.override_backend else []
    return [*command, options.script, *options.arguments]


def environment_of(options, rank, attempt, port, daemon_socket):
    package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.environ.get("PYTHONPATH")
    world = str(options.nproc_per_node)
    environment = {
        **os.environ,
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank),
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": options.master_addr, "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
        "TORCHELASTIC_RUN_ID": f"fabricrun-{os.getpid()}",
        "FABRIC_SOCKET": daemon_socket,
        "PYTHONPATH": package_parent + (os.pathsep + path if path else ""),
    }
    if options.arena_bytes:
        environment["FABRIC_ARENA_BYTES"] = str(options.arena_bytes)
    if options.nproc_per_node > 1 and "OMP_NUM_THREADS" not in environment:
        # As many threads per rank as cores would make them fight for the cores.
        cores = len(os.sched_getaffinity(0))
        environment["OMP_NUM_THREADS"] = str(max(1, cores // options.nproc_per_node))
    return environment


class SignalPipe:
    """Turns SIGINT, SIGTERM and SIGHUP into something to wait for."""

    def __init__(self):
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.number = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number, _frame):
        self.number = self.number or number
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            pass  # one is enough

    def check(self):
        if self.number is not None:
            raise Stopped(self.number)


def run_once(options, attempt, daemon_socket, signals):
    """One start of the whole job. Returns the first failure, or None."""
    port = options.master_port or free_port(options.master_addr)
    command = command_of(options)
    workers = Workers(
        [(command, environment_of(options, rank, attempt, port, daemon_socket))
         for rank in range(options.nproc_per_node)],
        prefix=options.prefix)
    try:
        while workers.alive:
            signals.check()
            for ended in workers.watch(signals.read_end):
                if ended.code != 0:
                    return ended
        return None
    finally:
        workers.end(options.grace)


def run_job(options, daemon_socket, signals):
    for attempt in range(options.max_restarts + 1):
        failure = run_once(options, attempt, daemon_socket, signals)
        if failure is None:
            return 0
        say(exit_text(failure))
        if attempt < options.max_restarts:
            say(f"starting again ({attempt + 1} of {options.max_restarts})")
    return failure.code


def say(text):
    print(f"fabricrun: {text}", file=sys.stderr, flush=True)


def find_daemon(options):
    """(socket, daemon to stop): the one that was named, that runs, or that is started here."""
    if options.daemon:
        if not _daemon.answers(options.daemon):
            raise RuntimeError(f"no fabricd answers at {options.daemon} (--daemon)")
        return options.daemon, None
    running = _daemon.usual_socket()
    if running:
        return running, None
    if options.no_daemon:
        raise RuntimeError("no fabricd runs; start one, or leave out --no-daemon")
    # Room for the arena, and for what the daemon keeps next to it.
    pool_bytes = options.arena_bytes + (64 << 20) if options.arena_bytes else 0
    daemon = _daemon.EmbeddedDaemon(pool_bytes=pool_bytes)
    return daemon.socket, daemon


def main(arguments=None):
    options = parse(sys.argv[1:] if arguments is None else arguments)
    missing = missing_script(options)
    if missing:
        say(missing)
        return 2
    signals = SignalPipe()
    daemon = None
    try:
        daemon_socket, daemon = find_daemon(options)
        return run_job(options, daemon_socket, signals)
    except Stopped as stopped:
        say(f"ended by {signal.Signals(stopped.number).name}")
        return 128 + stopped.number
    except (OSError, RuntimeError) as error:
        say(str(error))
        return 2
    finally:
        if daemon is not None:
            daemon.stop()


if __name__ == "__main__":
    sys.exit(main())
