"""A file of 28 KiB that is in the pool: to view it, to copy it, memcpy from a memfd, and open + pread + close
of the same file in the page cache, in turn. Starts a fabricd and a `fabric-data serve` of its own over files
that it makes. Prints medians over the rounds and ratios of the same round, with --json one line of JSON."""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import fingerprint  # noqa: E402
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CONTENDERS = ("view", "copy", "memcpy", "pread")


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build folder to measure")
    parser.add_argument("--folder", default="/tmp", help="where the files are made (default /tmp)")
    parser.add_argument("--files", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--bytes", type=int, default=28_000, help="of each (default 28000)")
    parser.add_argument("--repeats", type=int, default=20_000, help="copies of a round (default 20000)")
    parser.add_argument("--rounds", type=int, default=9, help="all contenders in turn (default 9)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


def answers(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
            return True
        except OSError:
            return False


def start_service(given, top, daemon, files, cache, silos=None):
    path = os.path.join(top, "data.sock")
    configuration = os.path.join(top, "data.toml")
    with open(configuration, "w") as file:
        file.write(f'[cache]\nmemory = "{cache}"\n')
        file.write(silos or f'[[silo]]\nat = "/files"\nfrom = "{files}"\n')
    program = os.path.join(given.build, "fabricd", "data", "program", "fabric-data")
    service = subprocess.Popen([program, "serve", "--config", configuration, "--socket", path, "--daemon",
                                daemon.socket_path], stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
    limit = time.monotonic() + 60
    while not answers(path):
        if service.poll() is not None or time.monotonic() > limit:
            sys.exit("data_views: fabric-data serve did not start")
        time.sleep(0.02)
    return service, path


def measure(given):
    cache = 32 * 2**20 + 2 * given.files * (given.bytes + 4096)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="fabric-views-") as top:
        files = os.path.join(top, "files")
        os.mkdir(files)
        for number in range(given.files):
            with open(os.path.join(files, f"{number:06}.bin"), "wb") as file:
                file.write(os.urandom(given.bytes))
        daemon = Daemon(os.path.join(given.build, "fabricd", "fabricd"), top, cache + 64 * 2**20)
        service = None
        try:
            problem = daemon.wait_ready()
            if problem:
                sys.exit(f"data_views: fabricd: {problem}")
            service, path = start_service(given, top, daemon, files, cache)
            driver = os.path.join(given.build, "bench", "bench_data_views")
            done = subprocess.run(
                [driver, "/files", files, str(given.repeats), str(given.rounds)], capture_output=True, text=True,
                timeout=600, check=False,
                env={**os.environ, "FABRIC_SOCKET": daemon.socket_path, "FABRIC_DATA_SOCKET": path})
        finally:
            if service is not None:
                service.terminate()
                service.wait(30)
            daemon.stop()
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    given = options()
    rounds = measure(given)
    found = {name: {"ns": statistics.median(one[name]["ns"] for one in rounds),
                    "processor_ns": statistics.median(one[name]["processor_ns"] for one in rounds)}
             for name in CONTENDERS}
    ratios = {name: statistics.median(one[name]["processor_ns"] / one["memcpy"]["processor_ns"] for one in rounds)
              for name in ("copy", "pread")}
    found["over_memcpy"] = ratios
    if given.json:
        found["machine"] = fingerprint.fingerprint(ROOT, {})
        print(json.dumps(found))
        return
    for name in CONTENDERS:
        one = found[name]
        print(f"{name:7} {one['ns']:9.1f} ns   {one['processor_ns']:9.1f} ns of the processor")
    print(f"copy / memcpy {ratios['copy']:.2f}   open + pread + close / memcpy {ratios['pread']:.2f}")


if __name__ == "__main__":
    main()
