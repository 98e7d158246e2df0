"""fabricrun: starts the processes of a job on this host, with a fabricd when none runs.

    fabricrun --nproc-per-node 4 train.py --epochs 3
    fabricrun --nnodes 2 --node-rank 0 --master-addr host1 --master-port 29500 --nproc-per-node 4 train.py

Scripts are those of torchrun, unchanged: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
are set, and torch.distributed knows the backend "fabricshm" without an import.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
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


def parse_counts(text):
    """Processes of each node: one number for all of them, or one for each, as 4,2."""
    return [parse_count(part) for part in text.split(",")]


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
    add("--nproc-per-node", type=parse_counts, default=[1], metavar="N[,N...]",
        help="processes, or those of each node in turn; auto: one per core (default 1)")
    add("--nnodes", default="1", metavar="N",
        help="hosts, each with a fabricrun of its own; slurm: those of the Slurm job (default 1)")
    add("--node-rank", type=number_in(0, 255, "number of a node"), default=None, metavar="N",
        help="which of them this is, from 0 (with --nnodes above 1)")
    add("--master-addr", default=None,
        help="MASTER_ADDR, of node 0 (default 127.0.0.1; with slurm its first host)")
    add("--master-port", type=number_in(0, 65535, "port"), default=0,
        help="MASTER_PORT, the same on all nodes (default: a free one; with slurm from its job)")
    add("--trusted", default=None, metavar="CIDR[,CIDR...]",
        help="networks on which ranks of several hosts may speak, unencrypted; sets FABRIC_NET_TRUSTED")
    add("--max-restarts", type=number_in(0, 1000000, "number of restarts"), default=0, metavar="N",
        help="start the whole job again, up to N times, when a rank fails (default 0)")
    add("--arena-bytes", type=parse_bytes, default=0, metavar="SIZE",
        help="arena of the job (default: the daemon's)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--daemon", metavar="SOCKET", help="use the fabricd that listens there")
    which.add_argument("--no-daemon", action="store_true", help="never start a fabricd")
    add("--override-backend", action="store_true",
        help="scripts that ask torch.distributed for gloo, mpi or ucc get fabricshm")
    add("--wrap", action="store_true",
        help="SCRIPT is one for a single process: train its model on all ranks")
    add("--wrap-reduction", choices=("mean", "sum"), default="mean",
        help="what the loss of a wrapped script does over its batch (default mean)")
    add("--strategy", choices=("allreduce", "parameter-server"), default="allreduce",
        help="how a wrapped script's parameters are moved (default allreduce)")
    add("--staleness", type=number_in(0, 1000, "number of versions"), default=0, metavar="N",
        help="of a parameter server: how many versions a rank may be ahead of the others (default 0)")
    add("--prefix", action="store_true", help="put the rank in front of every line of output")
    add("--colour", choices=("auto", "always", "never"), default="auto",
        help="of the ranks' prefixes; auto: when the output is a terminal (default)")
    add("--grace", type=number_in(0, 86400, "number of seconds", float), default=10.0, metavar="SECONDS",
        help="from SIGTERM to SIGKILL when the job is ended (default 10)")
    add("--no-preload", action="store_true",
        help="leave LD_PRELOAD alone; otherwise isatty() of a regular file asks no file system")
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


def _refuse_empty(parser, options):
    """`--daemon "$SOCKET"` with a SOCKET that is not set: what was meant is not known."""
    for action in parser._actions:
        if getattr(options, action.dest, None) == "":
            parser.error(f"argument {'/'.join(action.option_strings) or action.metavar}: "
                         "the value is empty")


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
    _refuse_empty(parser, options)
    try:
        check_wrap(options)
        settle_nodes(options, os.environ)
    except ValueError as error:
        parser.error(str(error))
    return options


def check_wrap(options):
    """ValueError: options that contradict --wrap, or need it."""
    if not options.wrap:
        for value, usual, name in ((options.wrap_reduction, "mean", "--wrap-reduction"),
                                   (options.strategy, "allreduce", "--strategy")):
            if value != usual:
                raise ValueError(f"{name} is for --wrap")
    elif options.no_python:
        raise ValueError("--wrap is for Python scripts, not with --no-python")
    if options.staleness and options.strategy != "parameter-server":
        raise ValueError("--staleness is for --strategy parameter-server")


def settle_nodes(options, environment):
    """Nodes, this one's number, the processes of each, and where they meet. ValueError names the option."""
    if options.nnodes == "slurm":
        _take_slurms(options, environment)
    else:
        match = re.fullmatch(r"(\d+)(?::(\d+))?", options.nnodes)
        nodes = int(match[1]) if match else 0
        if not match or int(match[2] or nodes) != nodes or not 1 <= nodes <= 256:
            raise ValueError(f"--nnodes: {options.nnodes!r} is no number from 1 to 256, nor slurm")
        options.nnodes = nodes
    if options.nnodes > 1:
        for value, name in ((options.node_rank, "--node-rank"), (options.master_addr, "--master-addr"),
                            (options.master_port or None, "--master-port")):
            if value is None:
                raise ValueError(f"--nnodes {options.nnodes} needs {name}, on every node")
        if options.max_restarts:
            raise ValueError("--max-restarts: the nodes know nothing of each other's restarts; let "
                             "the scheduler start the job again, or use torchrun")
    options.node_rank = options.node_rank or 0
    if options.node_rank >= options.nnodes:
        raise ValueError(f"--node-rank: {options.node_rank} is not below --nnodes {options.nnodes}")
    options.master_addr = options.master_addr or "127.0.0.1"
    if options.nnodes > 1 and options.strategy == "parameter-server":
        raise ValueError("--strategy: a parameter server is of one host; --nnodes is above 1")
    counts = options.nproc_per_node
    if len(counts) not in (1, options.nnodes):
        raise ValueError(f"--nproc-per-node: {len(counts)} numbers for {options.nnodes} nodes")
    options.processes = counts if len(counts) == options.nnodes else counts * options.nnodes
    if sum(options.processes) > 1024:
        raise ValueError(f"--nproc-per-node: {sum(options.processes)} ranks are more than 1024")


def _take_slurms(options, environment):
    try:
        options.nnodes = int(environment["SLURM_NNODES"])
        node, job = int(environment["SLURM_NODEID"]), int(environment["SLURM_JOB_ID"])
        hosts = environment["SLURM_JOB_NODELIST"]
    except (KeyError, ValueError):
        raise ValueError("--nnodes slurm: SLURM_NNODES, SLURM_NODEID, SLURM_JOB_ID and SLURM_JOB_NODELIST "
                         "are not set: start it by srun --ntasks-per-node=1") from None
    if options.node_rank is None:
        options.node_rank = node
    # The same on all nodes, and another for another job: below what the kernel gives away itself.
    options.master_port = options.master_port or 20000 + job % 12000
    if options.master_addr is None:
        options.master_addr = _first_host(hosts)


def _first_host(names):
    """host3 of "host[3-5,9],other"; scontrol knows all the ways in which they are written."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["scontrol", "show", "hostnames", names], capture_output=True, text=True,
                              timeout=10, check=True)
        if done.stdout.split():
            return done.stdout.split()[0]
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", names)
    if not match:
        raise ValueError(f"--nnodes slurm: SLURM_JOB_NODELIST is {names!r}; give --master-addr")
    return match[1] + (match[2] or "")


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
    command += ["--wrap", "--wrap-reduction", options.wrap_reduction] if options.wrap else []
    command += ["--staleness", str(options.staleness)] if options.strategy == "parameter-server" else []
    return [*command, options.script, *options.arguments]


def environment_of(options, local_rank, attempt, port, daemon_socket):
    package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.environ.get("PYTHONPATH")
    node, processes = options.node_rank, options.processes
    rank, world = str(sum(processes[:node]) + local_rank), str(sum(processes))
    # The same for all ranks of the job: without the pid, which each node's fabricrun has its own of.
    run = os.getpid() if options.nnodes == 1 else f"{options.master_addr}-{port}"
    environment = {
        **os.environ,
        "RANK": rank, "LOCAL_RANK": str(local_rank), "GROUP_RANK": str(node), "ROLE_RANK": rank,
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": str(processes[node]), "ROLE_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(options.nnodes),
        "MASTER_ADDR": options.master_addr, "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
        "TORCHELASTIC_RUN_ID": f"fabricrun-{run}",
        "FABRIC_SOCKET": daemon_socket,
        "PYTHONPATH": package_parent + (os.pathsep + path if path else ""),
    }
    preload = preload_of(options, os.path.dirname(os.path.abspath(__file__)), os.environ.get("LD_PRELOAD"))
    if preload:
        environment["LD_PRELOAD"] = preload
    if options.arena_bytes:
        environment["FABRIC_ARENA_BYTES"] = str(options.arena_bytes)
    if options.trusted is not None:
        environment["FABRIC_NET_TRUSTED"] = options.trusted
    if processes[node] > 1 and "OMP_NUM_THREADS" not in environment:
        # As many threads per rank as cores would make them fight for the cores.
        cores = len(os.sched_getaffinity(0))
        environment["OMP_NUM_THREADS"] = str(max(1, cores // processes[node]))
    return environment


def preload_of(options, folder, before):
    """LD_PRELOAD of a rank: what was there, and our isatty(), without which each file of fabric-mount
    that Python opens costs a question to its server. None: to be left as it is."""
    library = os.path.join(folder, "libfabricshm-isatty.so")
    # The loader cuts the list at blanks and colons. A program that it can't load into it says so and runs.
    if options.no_preload or not os.path.exists(library) or re.search(r"[\s:]", library):
        return None
    return f"{before}:{library}" if before else library


def wants_colour(options):
    if options.colour != "auto":
        return options.colour == "always"
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


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
         for rank in range(options.processes[options.node_rank])],
        prefix=options.prefix, colour=wants_colour(options))
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
    # Room for the arena, for a parameter server's, and for what the daemon keeps next to them.
    arenas = 2 if options.strategy == "parameter-server" else 1
    pool_bytes = arenas * (options.arena_bytes + (64 << 20)) if options.arena_bytes else 0
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
