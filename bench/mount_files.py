"""Small files through fabric-mount: against the folder behind it, and against the same mount with open
answered, as file systems in user space usually do (keep_cache). In C, and in Python with and without the
isatty() that fabricrun preloads; in turn, medians. Then what readers notice of a server that is killed.
With --json one line of JSON. Needs root and /dev/fuse."""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import fingerprint  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

IN_PYTHON = """
import json, os, sys, time
folder = sys.argv[1]
paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
def all_files():
    for path in paths:
        with open(path, "rb") as file:
            file.read()
all_files()
begin = time.perf_counter()
all_files()
print(json.dumps({"files_per_s": len(paths) / (time.perf_counter() - begin)}))
"""


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build folder to measure")
    parser.add_argument("--folder", default="/tmp", help="where the files are made")
    parser.add_argument("--files", type=int, default=4000, help="how many (default 4000)")
    parser.add_argument("--kib", type=int, default=28, help="KiB of each (default 28)")
    parser.add_argument("--rounds", type=int, default=5, help="all contenders in turn (default 5)")
    parser.add_argument("--kill-seconds", type=float, default=10, help="readers under kills (default 10)")
    parser.add_argument("--kill-every", type=float, default=0.35, help="seconds between kills (default 0.35)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


@contextlib.contextmanager
def mounted(given, source, at, *words):
    os.mkdir(at)
    program = os.path.join(given.build, "fabricd/data/mount/fabric-mount")
    keeper = subprocess.Popen([program, at, "--foreground", "--from-folder", source, *words], stderr=subprocess.PIPE,
                              text=True)
    try:
        for line in keeper.stderr:
            if "is mounted" in line:
                break
        else:
            sys.exit("mount_files: the mount could not be made")
        yield keeper
    finally:
        keeper.send_signal(signal.SIGTERM)
        keeper.communicate(timeout=30)


def in_c(given, folder, *words):
    done = subprocess.run([os.path.join(given.build, "bench/bench_mount_files"), folder, *words],
                          capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


def in_python(given, folder, preload):
    environment = dict(os.environ)
    if preload:
        environment["LD_PRELOAD"] = os.path.join(given.build, "python/fabricshm/libfabricshm-isatty.so")
    done = subprocess.run(["/usr/bin/python3", "-c", IN_PYTHON, folder], capture_output=True, text=True, timeout=600,
                          check=True, env=environment)
    return json.loads(done.stdout)


def server_of(keeper):
    with open(f"/proc/{keeper.pid}/task/{keeper.pid}/children", encoding="ascii") as children:
        found = [int(word) for word in children.read().split()]
    return [one for one in found if not is_standby(one)]


def is_standby(process):
    """Whether it waits for its turn."""
    try:
        with open(f"/proc/{process}/comm", encoding="ascii") as name:
            return name.read().strip() == "mount-standby"
    except OSError:
        return False


def under_kills(given, keeper, folder):
    """Two readers whose pages are dropped behind each read, so that each asks the server."""
    readers = []
    longest, kills, reads = 0.0, 0, 0
    until = time.monotonic() + given.kill_seconds
    next_kill = time.monotonic() + given.kill_every
    command = [os.path.join(given.build, "bench/bench_mount_files"), folder, "1", "cold"]
    while time.monotonic() < until or readers:
        for reader in [one for one in readers if one.poll() is not None]:
            readers.remove(reader)
            if reader.returncode != 0:
                sys.exit("mount_files: a read failed under kills")
            result = json.loads(reader.stdout.read())
            longest, reads = max(longest, result["longest_us"] / 1e3), reads + given.files
        while len(readers) < 2 and time.monotonic() < until:
            readers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if time.monotonic() >= next_kill:
            next_kill += given.kill_every
            for server in server_of(keeper):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server, signal.SIGKILL)
                    kills += 1
        time.sleep(0.002)
    return {"kills": kills, "reads": reads, "longest_ms": longest}


def measure(given, folder):
    source = os.path.join(folder, "source")
    os.mkdir(source)
    for number in range(given.files):
        with open(os.path.join(source, f"f{number:06}"), "wb") as file:
            file.write(os.urandom(given.kib << 10))
    ours, keeping = os.path.join(folder, "ours"), os.path.join(folder, "keep_cache")
    found = {}
    with mounted(given, source, ours) as keeper, mounted(given, source, keeping, "--answer-open"):
        runs = {"folder": lambda: in_c(given, source), "mount": lambda: in_c(given, ours),
                "keep_cache": lambda: in_c(given, keeping), "mount_cold": lambda: in_c(given, ours, "1", "cold"),
                "python_folder": lambda: in_python(given, source, False),
                "python_mount": lambda: in_python(given, ours, False),
                "python_folder_preload": lambda: in_python(given, source, True),
                "python_mount_preload": lambda: in_python(given, ours, True)}
        results = {name: [] for name in runs}
        for turn in range(given.rounds):
            for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
                results[name].append(runs[name]())
        for name, rounds in results.items():
            found[name] = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}

        def ratio(one, other):
            return statistics.median(a["files_per_s"] / b["files_per_s"] for a, b in zip(results[one], results[other]))
        found["ratios"] = {"mount_over_folder": ratio("mount", "folder"), "mount_over_keep_cache": ratio("mount", "keep_cache"),
                           "python_mount_over_folder": ratio("python_mount", "python_folder"),
                           "python_mount_preload_over_folder": ratio("python_mount_preload", "python_folder")}
        if given.kill_seconds > 0:
            found["kills"] = under_kills(given, keeper, ours)
    return found


def main():
    given = options()
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("mount_files: needs root and /dev/fuse", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="fabric-mount-") as folder:
        found = measure(given, folder)
    if given.json:
        found["machine"] = fingerprint.fingerprint(ROOT, {})
        print(json.dumps(found))
        return
    for name, one in found.items():
        print(f"{name:22} " + "  ".join(f"{key} {value:.2f}" for key, value in one.items()))


if __name__ == "__main__":
    main()
