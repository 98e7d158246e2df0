"""Starts a fabricd of its own and runs bench_shard_moves against it: how fast shards move, and how
long their readers pause. Prints the result and the machine as one line of JSON."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import fingerprint  # noqa: E402
from harness.daemon import Daemon  # noqa: E402


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build folder to measure")
    parser.add_argument("--mib", type=int, default=256, help="size of the shard in MiB")
    parser.add_argument("--rounds", type=int, default=15, help="copies and moves, in turn")
    return parser.parse_args()


def main():
    """Exit code 1 with a line when the daemon or the driver fails."""
    given = options()
    # Four shards' worth, as the driver asks for, and what the daemon needs for itself.
    pool = 4 * given.mib * 2**20 + 32 * 2**20
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(os.path.join(given.build, "fabricd", "fabricd"), folder, pool)
        try:
            problem = daemon.wait_ready()
            if problem:
                sys.exit(f"shard_moves: fabricd: {problem}")
            driver = os.path.join(given.build, "bench", "bench_shard_moves")
            done = subprocess.run([driver, daemon.socket_path, str(given.mib), str(given.rounds)],
                                  capture_output=True, text=True, timeout=600, check=False)
        finally:
            daemon.stop()
    if done.returncode != 0:
        sys.exit(f"shard_moves: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    result["machine"] = fingerprint.fingerprint(root, {})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
