#!/usr/bin/python3
"""How many instructions does an operation cost a rank, waiting left out, with 2 to 256 ranks?

Counted with callgrind, so that a machine of two cores can say it: see bench/instructions.cpp for how
waiting is left out. With --against a second build is counted, too. Exits with 77 without valgrind.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unwind_on_signals  # noqa: E402
from harness.report import aligned  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CASES = {"barrier": ["--kind", "barrier"],
         "allreduce 8 B": ["--kind", "allreduce", "--bytes", "8"],
         "allreduce 512 B": ["--kind", "allreduce", "--bytes", "512"],
         "direct 4 KiB": ["--kind", "allreduce", "--bytes", "4096", "--direct", "yes"],
         "broadcast 8 B": ["--kind", "broadcast", "--bytes", "8"]}


def parse_options(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", default="2,8,64,256", help="default 2,8,64,256")
    add("--cases", default=",".join(CASES), help="default: " + ", ".join(CASES))
    add("--counted", default="first,last", help="ranks that are counted: first,last (default)")
    add("--rounds", type=int, default=5, help="operations that are counted (default 5)")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--against", metavar="DIR", help="count the bench_instructions of another build, too")
    return parser.parse_args(arguments)


def count(build, socket, scratch, arguments, world, counted, rounds):
    """Instructions of one operation of one rank."""
    program = os.path.join(build, "bench", "bench_instructions")
    out = os.path.join(scratch, "callgrind.out")
    tuning = os.path.join(scratch, "tuning.conf")
    with open(tuning, "w") as file:
        file.write(f"{world}.spins = 0\n{world}.yields = 1000000\n")
    environment = {**os.environ, "FABRIC_TUNING": tuning}
    count.arena += 1
    common = ["--socket", socket, "--arena", f"count-{os.getpid()}-{count.arena}", "--world",
              str(world), "--counted", str(counted), "--rounds", str(rounds), *arguments, "--role"]
    others = subprocess.Popen([program, *common, "others"], env=environment,
                              preexec_fn=end_with_parent)
    try:
        subprocess.run([shutil.which("valgrind"), "-q", "--tool=callgrind",
                        "--collect-atstart=no", "--toggle-collect=counted_operation",
                        f"--callgrind-out-file={out}", program, *common, "counted"],
                       env=environment, check=True, timeout=300, preexec_fn=end_with_parent)
        if others.wait(60) != 0:
            raise RuntimeError("a rank failed")
    finally:
        others.kill()
        others.wait()
    with open(out) as file:
        total = re.search(r"^(?:summary|totals): (\d+)", file.read(), re.MULTILINE)
    return int(total[1]) / rounds


count.arena = 0


def table(options, daemons, scratch):
    """Rows: case, counted rank, ranks, instructions of each build."""
    heads = ["now"] + (["before", "before / now"] if len(daemons) > 1 else [])
    lines = [["operation", "rank", "ranks"] + heads]
    for case in options.cases.split(","):
        for counted in options.counted.split(","):
            for world in map(int, options.ranks.split(",")):
                rank = 0 if counted == "first" else world - 1
                found = [count(build, daemon.socket_path, scratch, CASES[case], world, rank,
                               options.rounds) for build, daemon in daemons]
                cells = [f"{number:.0f}" for number in found]
                cells += [f"{found[1] / found[0]:.2f}"] if len(found) > 1 else []
                lines.append([case, counted, str(world)] + cells)
                print(" ".join(lines[-1]), file=sys.stderr, flush=True)
    return aligned(lines)


def main(arguments=None):
    """0; 77 without valgrind."""
    options = parse_options(arguments)
    if not shutil.which("valgrind"):
        print("instructions: valgrind is not installed", file=sys.stderr)
        return 77
    daemons = []
    with tempfile.TemporaryDirectory(prefix="fabric-count-") as scratch:
        try:
            for build in [options.build] + ([options.against] if options.against else []):
                folder = os.path.join(scratch, str(len(daemons)))
                os.makedirs(folder, mode=0o700)
                daemon = Daemon(os.path.join(build, "fabricd", "fabricd"), folder, 2 << 30)
                daemons.append((build, daemon))
                problem = daemon.wait_ready()
                if problem:
                    raise RuntimeError(f"fabricd did not start: {problem}")
            print(table(options, daemons, scratch))
        finally:
            for _, daemon in daemons:
                daemon.stop()
    return 0


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
