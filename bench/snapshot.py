#!/usr/bin/python3
"""How fast does a snapshot of shared parameters get to the disk, and how long does it hold up training?

Ranks step a set by AdamW, a pause between steps standing in for forward and backward. In turns, round by
round: the same bytes written past the page cache without any training (the disk's own rate, at the best
of several depths); steps alone; steps while a snapshot is written, begun in front of one of them. The
pause is what begin() and the longest step during it take more than the median step alone. docs/benchmarks.md.
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
from harness.fingerprint import fingerprint  # noqa: E402

BLOCK = 1 << 20
DEPTHS = (1, 4, 16)


def parse_options():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--build", default="build/release", help="folder of the build (default build/release)")
    add("--directory", default=tempfile.gettempdir(), help="on the disk that is measured")
    add("--ranks", type=int, default=2)
    add("--mib", type=int, default=256, help="of the parameters; a snapshot is three times as long")
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=5, help="during each snapshot, at least")
    add("--between-ms", type=float, default=200, help="between two steps (default 200)")
    add("--plain-writes", action="store_true", help="without io_uring")
    add("--json", help="file for the results")
    return parser.parse_args()


def raw_seconds(path, size, depth):
    """Of `size` bytes to a file that has its blocks, until they are on the disk."""
    memory = mmap.mmap(-1, BLOCK)
    memory.write(os.urandom(BLOCK))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(depth) as threads:
            for written in threads.map(lambda at: os.pwrite(fd, memory, at), range(0, size, BLOCK)):
                assert written == BLOCK
        os.fsync(fd)
        return time.perf_counter() - begin
    finally:
        os.close(fd)
        os.unlink(path)


def timed_step(parameters):
    begin = time.perf_counter()
    parameters.step(learning_rate=1e-3)
    return time.perf_counter() - begin


def run_round(parameters, group, options, folder):
    """Seconds of steps alone, of steps during a snapshot, of begin(), and the report."""
    between = options.between_ms / 1e3
    alone, during = [], []
    for _ in range(options.steps):
        time.sleep(between)
        alone.append(timed_step(parameters))
    group.barrier()
    begin = time.perf_counter()
    snapshot = parameters.snapshot(folder, keep=1, plain_writes=options.plain_writes)
    begun = time.perf_counter() - begin
    going = True
    while going:
        time.sleep(between)
        during.append(timed_step(parameters))
        # By all ranks alike: as long as any still writes.
        mine = numpy.array([0 if snapshot.over and len(during) >= options.steps else 1], "int32")
        going = group.all_reduce(mine, op="max")[0] != 0
    report = snapshot.wait()
    return {
        "alone": alone, "during": during, "begin": begun, "bytes": report.bytes, "total": report.total,
        "staged": report.staged, "uring": report.uring, "registered": report.registered, "direct": report.direct,
    }  # fmt: skip


def run_rank(rank, options, folder, pipe):
    """Rounds on this rank; rank 0 also measures the disk, between barriers."""
    import fabricshm

    count = options.mib * (1 << 20) // 4 // 8
    shapes = {f"layer{i}": (count,) for i in range(8)}
    room = fabricshm.Parameters.bytes(shapes, options.ranks)
    results = []
    with fabricshm.Session(timeout=300.0) as session:
        arena = session.arena("bench", room + (64 << 20))
        with arena.join("bench", rank, options.ranks) as group:
            parameters = fabricshm.Parameters(group, "bench", shapes)
            for name in shapes:
                parameters.gradients[name][...] = 1e-3
            for _ in range(3):
                timed_step(parameters)
            run_round(parameters, group, options, folder)  # makes the stage's memory
            for _ in range(options.rounds):
                raw = {}
                if rank == 0:
                    size = 3 * options.mib << 20
                    raw = {depth: raw_seconds(folder + ".raw", size, depth) for depth in DEPTHS}
                group.barrier()
                results.append({**run_round(parameters, group, options, folder), "raw": raw})
            parameters.close()
    os.write(pipe, json.dumps(results).encode() + b"\n")


def run_ranks(options, folder):
    """The results of all ranks."""
    ranks = []
    for rank in range(options.ranks):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run_rank(rank, options, folder, write_end)
                code = 0
            except BaseException:  # pylint: disable=broad-exception-caught
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write_end)
        ranks.append((pid, read_end))
    results = []
    for pid, read_end in ranks:
        with os.fdopen(read_end) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        if status != 0 or not text:
            raise SystemExit(f"snapshot.py: a rank ended with status {status}")
        results.append(json.loads(text))
    return results


def summary(results, options):
    """Of each round: rates, and the longest pause of any rank."""
    rounds = []
    size = 3 * options.mib << 20
    for each in zip(*results):
        raw = size / min(each[0]["raw"].values())
        rate = sum(rank["bytes"] for rank in each) / max(rank["total"] for rank in each)
        usual = [statistics.median(rank["alone"]) for rank in each]
        pause = max(max(rank["begin"], max(rank["during"]) - step) for rank, step in zip(each, usual))
        noise = max(max(rank["alone"]) - step for rank, step in zip(each, usual))
        rounds.append({"raw_gb_per_s": raw / 1e9, "snapshot_gb_per_s": rate / 1e9, "ratio": rate / raw,
                       "pause_ms": pause * 1e3, "pause_without_ms": noise * 1e3, "begin_ms": max(r["begin"] for r in each) * 1e3,
                       "step_ms": max(usual) * 1e3, "staged_ms": max(r["staged"] for r in each) * 1e3})  # fmt: skip
    return rounds


def main():
    options = parse_options()
    sys.path.insert(0, os.path.join(os.path.abspath(options.build), "python"))
    from fabricshm._daemon import EmbeddedDaemon

    pool = (8 + options.ranks) * options.mib + 512
    program = os.path.join(options.build, "fabricd", "fabricd")
    daemon = EmbeddedDaemon(program, pool_bytes=pool << 20)
    os.environ["FABRIC_SOCKET"] = daemon.socket
    os.environ["FABRIC_ARENA_BYTES"] = "64M"
    folder = tempfile.mkdtemp(prefix="fabric-snapshots-", dir=options.directory)
    try:
        results = run_ranks(options, os.path.join(folder, "snapshots"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rounds = summary(results, options)
    last = results[0][-1]
    print(f"{options.ranks} ranks, {3 * options.mib} MiB, {options.between_ms:g} ms between steps; io_uring {last['uring']}, "
          f"registered {last['registered']}, direct {last['direct']}")  # fmt: skip
    for name in rounds[0]:
        values = sorted(each[name] for each in rounds)
        print(f"{name:20} median {statistics.median(values):8.3f}   least {values[0]:8.3f}   most {values[-1]:8.3f}")
    if options.json:
        document = {"machine": fingerprint(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), {}),
                    "options": vars(options), "rounds": rounds, "ranks": results}  # fmt: skip
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
