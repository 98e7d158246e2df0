"""Preload of a folder: FolderSilo against fio with the same depth and block, and against plain
reads, on files of this run's own, in turn. Prints medians and ratios, with --json one line of JSON.

fio: io_uring, O_DIRECT, blocks of 4 MiB, depth 16. Needs fio (Debian's package)."""

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
    parser.add_argument("--files", type=int, default=4, help="how many files (default 4)")
    parser.add_argument("--mib", type=int, default=256, help="MiB of each (default 256)")
    parser.add_argument("--rounds", type=int, default=7, help="all contenders in turn (default 7)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


def by_silo(given, folder):
    done = subprocess.run([os.path.join(given.build, "bench", "bench_silo_reads"), folder],
                          capture_output=True, text=True, timeout=600, check=True)
    result = json.loads(done.stdout)
    return result["bytes"] / result["seconds"], result["processor_seconds"] / (result["bytes"] / 1e9)


def by_fio(given, folder):
    """All files of the folder, one after the other in one job."""
    names = ":".join(os.path.join(folder, name) for name in sorted(os.listdir(folder)))
    done = subprocess.run(
        ["fio", "--name=preload", f"--filename={names}", "--rw=read", "--bs=4m", "--iodepth=16",
         "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--file_service_type=sequential",
         "--output-format=json"],
        capture_output=True, text=True, timeout=600, check=True)
    job = json.loads(done.stdout)["jobs"][0]
    read = job["read"]
    seconds = read["runtime"] / 1000
    processor = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
    return read["io_bytes"] / seconds, processor / (read["io_bytes"] / 1e9)


CONTENDERS = {"silo": by_silo, "fio": by_fio}


def main():
    given = options()
    if shutil.which("fio") is None:
        sys.exit("silo_reads: fio is not installed: sudo apt install fio")
    results = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="fabric-silo-") as folder:
        for number in range(given.files):
            with open(os.path.join(folder, f"part{number}"), "wb") as file:
                for _ in range(given.mib):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        for turn in range(given.rounds):
            order = list(CONTENDERS) if turn % 2 == 0 else list(CONTENDERS)[::-1]
            for name in order:
                results[name].append(CONTENDERS[name](given, folder))
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(results["silo"], results["fio"])]
    found = {name: {"bytes_per_s": statistics.median(one[0] for one in runs),
                    "processor_s_per_gb": statistics.median(one[1] for one in runs)}
             for name, runs in results.items()}
    found["silo_over_fio"] = statistics.median(ratios)
    if given.json:
        found["machine"] = fingerprint.fingerprint(ROOT, {})
        print(json.dumps(found))
        return
    for name in CONTENDERS:
        one = found[name]
        print(f"{name:5} {one['bytes_per_s'] / 1e6:8.0f} MB/s   {one['processor_s_per_gb']:.3f} processor s/GB")
    print(f"silo / fio: {found['silo_over_fio']:.2f} (of {len(ratios)} rounds {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
