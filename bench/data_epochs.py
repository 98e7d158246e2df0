"""How near does the data cache come to the fewest fetches and the shortest waits that there can be? A job reads
each file of a set once in an epoch, in the order of a DistributedSampler that it has announced, and computes
(sleeps) in between; the source is a web server that gives half of what the job reads. For each part of the set
that fits into memory, in the mean of the epochs after the first:

  hits    what was not fetched, against the part that fits: no cache has more where each file is read once
  stall   what an epoch takes longer than the computing, against what the source can't give meanwhile

Starts a web server, a fabricd and a `fabric-data serve` of its own. With --json one line of JSON."""

import argparse
import http.server
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from data_views import start_service  # noqa: E402
from harness import fingerprint  # noqa: E402
from harness.daemon import Daemon  # noqa: E402

try:
    from torch.utils.data.distributed import DistributedSampler
except ImportError:
    print("no PyTorch")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PIECE = 64 * 1024
MIB = 2**20


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="build folder to measure")
    parser.add_argument("--folder", default="/tmp", help="for sockets and configuration (default /tmp)")
    parser.add_argument("--files", type=int, default=2000, help="of the set (default 2000)")
    parser.add_argument("--file-kib", type=int, default=256, help="KiB of each (default 256)")
    parser.add_argument("--vary", action="store_true", help="sizes between a half and one and a half of that")
    parser.add_argument("--compute-ms", type=float, default=4, help="between two files (default 4)")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted (default 4)")
    parser.add_argument("--fits", type=float, nargs="+", default=[0.25, 0.5, 0.9],
                        help="parts of the set (default 0.25 0.5 0.9)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


def content(number, count):
    return number.to_bytes(8, "little") * (count // 8)


def sizes_of(given):
    count = given.file_kib * 1024
    if not given.vary:
        return [count] * given.files
    return [count * (512 + number * 7919 % 1024) // 1024 // 8 * 8 for number in range(given.files)]


class Source:
    """A web server in a process of its own that gives `rate` bytes a second to all connections together."""

    def __init__(self, sizes, rate):
        self.sent = multiprocessing.Value("q", 0)
        index = "".join(f"{count} f{number:06}\n" for number, count in enumerate(sizes)).encode()
        source, next_at, turn = self, [time.monotonic()], threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, with_body):
                name = self.path.rpartition("/")[2]
                is_index = name == "fabric-index.txt"
                body = index if is_index else content(int(name[1:]), sizes[int(name[1:])])
                part = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                first = int(part.group(1)) if part else 0
                last = min(int(part.group(2) or len(body) - 1), len(body) - 1) if part else len(body) - 1
                self.send_response(206 if part else 200)
                self.send_header("ETag", f'"{name}"')
                self.send_header("Content-Length", str(last + 1 - first))
                if part:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
                self.end_headers()
                if with_body:
                    self.send(body[first : last + 1], is_index)

            def send(self, body, is_free):
                for at in range(0, len(body), PIECE):
                    piece = body[at : at + PIECE]
                    if not is_free:
                        with turn:
                            begin = max(next_at[0], time.monotonic())
                            next_at[0] = begin + len(piece) / rate
                        time.sleep(max(0, next_at[0] - time.monotonic()))
                        with source.sent.get_lock():
                            source.sent.value += len(piece)
                    self.wfile.write(piece)

            def do_GET(self):
                self.answer(True)

            def do_HEAD(self):
                self.answer(False)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.address = f"http://127.0.0.1:{server.server_address[1]}/"
        self.process = multiprocessing.Process(target=server.serve_forever, daemon=True)
        self.process.start()
        server.socket.close()


def capacity(given, path):
    program = os.path.join(given.build, "fabricd", "data", "program", "fabric-data")
    status = subprocess.run([program, "status", "--json", "--socket", path], capture_output=True, check=True)
    return json.loads(status.stdout)["cache"]["capacity_bytes"]


def epochs_of(given, source, daemon, path):
    """Seconds and fetched bytes of each epoch but the first."""
    os.environ["FABRIC_SOCKET"], os.environ["FABRIC_DATA_SOCKET"] = daemon.socket_path, path
    from fabricshm import data

    files = data.open("/files")
    dataset = data.Dataset(files)
    sampler = DistributedSampler(range(len(files)), 1, 0, seed=7)
    measured = []
    for epoch in range(given.epochs):
        before, begin = source.sent.value, time.monotonic()
        sampler.set_epoch(epoch)
        dataset.announce(sampler)
        for index in sampler:
            with files[index] as view:
                if bytes(view[:8]) != int(files.names[index][1:]).to_bytes(8, "little"):
                    sys.exit("data_epochs: wrong bytes")
            time.sleep(given.compute_ms / 1e3)
        measured.append((time.monotonic() - begin, source.sent.value - before))
    return measured[1:]


def in_child(work):
    """What `work` returns, of a process of its own: one has one way to one cache."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: writer.send(work()))
    child.start()
    writer.close()
    try:
        return reader.recv()
    except EOFError:
        sys.exit("data_epochs: the job failed")
    finally:
        child.join()


def computing(given):
    """Seconds of an epoch without any reading: a sleep takes longer than it says."""
    begin = time.monotonic()
    for _ in range(given.files):
        time.sleep(given.compute_ms / 1e3)
    return time.monotonic() - begin


def measure(given, part):
    sizes = sizes_of(given)
    whole = sum(sizes)
    rate = whole / given.files / (given.compute_ms / 1e3) / 2
    memory = max(int(whole * part) + 8 * MIB, 32 * MIB)  # with its tables
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="fabric-epochs-") as top:
        source = Source(sizes, rate)
        daemon = Daemon(os.path.join(given.build, "fabricd", "fabricd"), top, memory + 64 * MIB)
        service = None
        try:
            problem = daemon.wait_ready()
            if problem:
                sys.exit(f"data_epochs: fabricd: {problem}")
            silo = f'[[silo]]\nat = "/files"\nfrom = "{source.address}"\n'
            service, path = start_service(given, top, daemon, "", memory, silo)
            fits = min(capacity(given, path) / whole, 1)
            alone = computing(given)
            epochs = in_child(lambda: epochs_of(given, source, daemon, path))
        finally:
            if service is not None:
                service.terminate()
                service.wait(30)
            daemon.stop()
            source.process.terminate()
            source.process.join()
    hits = 1 - statistics.mean(sent for _, sent in epochs) / whole
    stall = statistics.mean(seconds for seconds, _ in epochs) - alone
    least = max(0.0, (1 - fits) * whole / rate - alone)
    return {"fits": fits, "hits": hits, "hits_of_fits": hits / fits, "epoch_s": alone + stall, "compute_s": alone,
            "stall_s": stall, "least_stall_s": least,
            "epoch_of_least": (alone + stall) / (alone + least)}


def main():
    given = options()
    build = os.path.abspath(given.build)
    given.build = build
    sys.path.insert(0, os.path.join(build, "python"))
    rows = [measure(given, part) for part in given.fits]
    if given.json:
        print(json.dumps({"bench": "data_epochs", "machine": fingerprint.fingerprint(ROOT, {}), "files": given.files,
                          "file_kib": given.file_kib, "rows": rows}))
        return
    print("fits    hits    of what fits   stall, s   the least, s   epoch, against the shortest")
    for row in rows:
        print(f"{row['fits']:5.1%}  {row['hits']:5.1%}   {row['hits_of_fits']:12.3f}   {row['stall_s']:8.2f}   "
              f"{row['least_stall_s']:12.2f}   {row['epoch_of_least']:.3f}")


if __name__ == "__main__":
    main()
