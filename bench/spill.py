"""The spill of the data cache: streams of chunks against fio with the same depth and block, and single samples against raw reads of
as many blocks (both by bench_spill, in turn), on a folder of this run's own. Prints medians and ratios, with --json one line of JSON.

fio: io_uring, O_DIRECT, blocks of 4 MiB, depth 16, on a file that was allocated as the spill's. Needs fio (Debian's package)."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import fingerprint  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build folder to measure")
    parser.add_argument("--folder", default="/tmp", help="where the files are made: the disk to measure")
    parser.add_argument("--mib", type=int, default=1024, help="MiB of large chunks (default 1024)")
    parser.add_argument("--reads", type=int, default=2000, help="samples of each size (default 2000)")
    parser.add_argument("--names", type=int, default=1_000_000, help="of the catalogue (default 1000000)")
    parser.add_argument("--rounds", type=int, default=5, help="both in turn (default 5)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


def by_spill(given, folder):
    done = subprocess.run([os.path.join(given.build, "bench", "bench_spill"), folder, str(given.mib), str(given.reads)],
                          capture_output=True, text=True, timeout=900, check=True)
    return json.loads(done.stdout)


def by_fio(given, folder):
    rates = {}
    for direction in ("write", "read"):
        done = subprocess.run(
            ["fio", "--name=stream", f"--filename={folder}/stream", f"--rw={direction}", "--bs=4m", "--iodepth=16",
             "--ioengine=io_uring", "--direct=1", "--fallocate=posix", f"--size={given.mib}m", "--output-format=json"],
            capture_output=True, text=True, timeout=900, check=True)
        job = json.loads(done.stdout)["jobs"][0][direction]
        rates[direction] = job["io_bytes"] / (job["runtime"] / 1000)
    return rates


def by_names(given, folder):
    done = subprocess.run([os.path.join(given.build, "bench", "bench_catalogue_names"), folder, str(given.names)],
                          capture_output=True, text=True, timeout=900, check=True)
    return json.loads(done.stdout)


def rate(one):
    return one["bytes"] / one["seconds"]


def main():
    given = options()
    if shutil.which("fio") is None:
        print("spill: fio is not installed: sudo apt install fio")
        sys.exit(77)
    ours, theirs = [], []
    for turn in range(given.rounds):
        for name in ("spill", "fio") if turn % 2 == 0 else ("fio", "spill"):
            with tempfile.TemporaryDirectory(dir=given.folder, prefix="fabric-spill-") as folder:
                if name == "spill":
                    ours.append(by_spill(given, folder))
                else:
                    theirs.append(by_fio(given, folder))
    found = {"store_over_fio": statistics.median(rate(a["store"]) / b["write"] for a, b in zip(ours, theirs)),
             "take_over_fio": statistics.median(rate(a["take"]) / b["read"] for a, b in zip(ours, theirs)),
             "store_bytes_per_s": statistics.median(rate(one["store"]) for one in ours),
             "take_bytes_per_s": statistics.median(rate(one["take"]) for one in ours),
             "fio_write_bytes_per_s": statistics.median(one["write"] for one in theirs),
             "fio_read_bytes_per_s": statistics.median(one["read"] for one in theirs),
             "samples": []}
    for number, sample in enumerate(ours[0]["samples"]):
        rounds = [one["samples"][number] for one in ours]
        found["samples"].append(
            {"bytes": sample["bytes"],
             "spill_us": {p: statistics.median(one["spill_us"][p] for one in rounds) for p in ("p50", "p99")},
             "raw_us": {p: statistics.median(one["raw_us"][p] for one in rounds) for p in ("p50", "p99")},
             "p99_over_raw": statistics.median(one["spill_us"]["p99"] / one["raw_us"]["p99"] for one in rounds)})
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="fabric-spill-") as folder:
        found["catalogue"] = by_names(given, folder)
    if given.json:
        found["machine"] = fingerprint.fingerprint(ROOT, {})
        print(json.dumps(found))
        return
    print(f"store {found['store_bytes_per_s'] / 1e6:6.0f} MB/s, fio {found['fio_write_bytes_per_s'] / 1e6:6.0f}: {found['store_over_fio']:.2f}")
    print(f"take  {found['take_bytes_per_s'] / 1e6:6.0f} MB/s, fio {found['fio_read_bytes_per_s'] / 1e6:6.0f}: {found['take_over_fio']:.2f}")
    for one in found["samples"]:
        print(f"{one['bytes']:7} B  spill p50 {one['spill_us']['p50']:.0f} p99 {one['spill_us']['p99']:.0f} us, "
              f"raw p50 {one['raw_us']['p50']:.0f} p99 {one['raw_us']['p99']:.0f} us: p99 {one['p99_over_raw']:.2f}")
    names = found["catalogue"]
    print(f"{names['names']} names: written in {names['write_seconds']:.1f} s, {names['bytes'] / 1e6:.0f} MB, listed in {names['list_seconds']:.1f} s; "
          f"spilled files: {names['spilled_write_seconds']:.1f} s, loaded in {names['spilled_load_seconds']:.1f} s, "
          f"{names['spilled_bytes'] / 1e6:.0f} MB together")


if __name__ == "__main__":
    main()
