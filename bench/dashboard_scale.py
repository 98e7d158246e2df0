#!/usr/bin/python3
"""What does a picture of the dashboard cost with many sessions, and what the metrics?

Starts a fabricd of its own, sessions that attach and report one step each, and `fabricctl dashboard`. Of each
number of sessions: how long an answer of the page takes, with and without the history, and its size; how long a
page takes to its first picture, with its files; the processor time of the dashboard and of fabricd in a second
in which a page asks, and the memory of the dashboard; what the daemon's tick takes without and with a page (the
look at all telemetry pages, ten times a second), and the longest turn of its control thread for a snapshot; how
long an answer of /metrics takes. Medians. Prints a table.
"""

import argparse
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position,import-outside-toplevel
from harness.daemon import Daemon  # noqa: E402
from harness.endings import end_with_parent, unwind_on_signals  # noqa: E402
from harness.fingerprint import fingerprint  # noqa: E402
from harness.usage import cpu_seconds, proportional_bytes  # noqa: E402

SESSIONS_OF_A_PROCESS = 1000
WAIT = 120


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def parse_options(arguments):
    """The command line; --member is for the processes that this program starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sessions", default="0,1000,10000", metavar="LIST", help="how many, in turn (default 0,1000,10000)")
    add("--pictures", type=int, default=15, help="that are looked at of each (default 15)")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--jobs", type=int, default=50, help="labels of the sessions (default 50); 0: each has its own, of 63 bytes")
    add("--json", metavar="FILE", help="write everything measured")
    add("--member", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not all(count.isdecimal() for count in options.sessions.split(",")):
        parser.error(f"--sessions is {options.sessions}: a list of numbers")
    if options.pictures < 1:
        parser.error("--pictures is at least 1")
    if options.jobs < 0:
        parser.error("--jobs is at least 0")
    return options


def more_descriptors():
    """A session is a few descriptors at both ends."""
    wanted = 65536
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def label_of(number, jobs):
    """The longest are also the longest in JSON."""
    return f"job{number % jobs}" if jobs else f"{number}".ljust(63, '"')


def member(jobs, first, count):
    """So many sessions, until it is ended."""
    import fabricshm
    sessions = []
    for number in range(first, first + count):
        sessions.append(fabricshm.Session(label=label_of(number, jobs)))
        sessions[-1].step(samples=32)
    print("ready", flush=True)
    sys.stdin.read()


def start_members(options, count, path):
    """The processes that hold the sessions, all attached."""
    environment = {**os.environ, "FABRIC_SOCKET": path, "PYTHONPATH": os.path.join(options.build, "python")}
    members = []
    for first in range(0, count, SESSIONS_OF_A_PROCESS):
        part = min(count - first, SESSIONS_OF_A_PROCESS)
        members.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), "--member", str(first), str(part),
                                         "--jobs", str(options.jobs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                                        preexec_fn=end_with_parent))
    for one in members:
        # Bounded: the fabric's own waits are, and a member that gives up closes its end.
        if one.stdout.readline().strip() != b"ready":
            raise SystemExit("dashboard_scale: a member did not come up")
    return members


def get(connection, target, headers):
    """(seconds, status, bytes) of an answer."""
    began = time.perf_counter()
    connection.request("GET", target, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    return time.perf_counter() - began, answer.status, body


def ask_page(address, headers):
    """(ms, bytes) of a page that opens: its files and its first picture, over a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=WAIT)
    ms, weight = 0.0, 0
    for target in ("/", "/dashboard.css", "/dashboard.js", "/favicon.svg", "/api/v1/picture"):
        seconds, status, body = get(connection, target, headers)
        if status != 200:
            raise SystemExit(f"dashboard_scale: {target} gave {status}")
        ms += seconds * 1e3
        weight += 0 if target.startswith("/api") else len(body)
    connection.close()
    return ms, weight, body


def ask_pictures(options, dashboard, daemon, address, sessions):
    """Asks as a page does, once a second; of each picture the time of its answer and its size."""
    base, _, token = address.partition("/#t=")
    base = base.removeprefix("http://")
    headers = {"X-Fabric-Token": token}
    whole = []
    for _ in range(3):  # the first may be from before the sessions
        ms, weight, body = ask_page(base, headers)
        whole.append(ms)
        time.sleep(1)
    picture, whole_size = json.loads(body), len(body)
    if picture["totals"]["sessions"] < sessions:
        raise SystemExit(f"dashboard_scale: {picture['totals']['sessions']} sessions of {sessions}")
    connection = http.client.HTTPConnection(base, timeout=WAIT)
    number, answers, size = picture["number"], [], 0
    first, began = number, time.perf_counter()
    used = [cpu_seconds(dashboard.pid), cpu_seconds(daemon.pid)]
    while number < first + options.pictures:
        seconds, status, body = get(connection, f"/api/v1/picture?since={number}", headers)
        if status == 200:
            number, size = json.loads(body)["number"], len(body)
            answers.append(seconds)
        time.sleep(0.2)
    took, pictures = time.perf_counter() - began, number - first
    return {"picture_ms": statistics.median(answers) * 1e3, "picture_bytes": size,
            "first_ms": statistics.median(whole), "first_bytes": whole_size, "page_bytes": weight,
            "interval_s": took / pictures,
            "dashboard_ms_per_s": (cpu_seconds(dashboard.pid) - used[0]) / took * 1e3,
            "fabricd_ms_per_s": (cpu_seconds(daemon.pid) - used[1]) / took * 1e3,
            "dashboard_bytes": proportional_bytes(dashboard.pid)}


def metric(text, name):
    """The values of a family's series, by what is between the braces."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith((name + "{", name + " "))]
    return {key.removeprefix(name).strip("{}"): float(value) for key, _, value in lines}


class Ticks:
    """What the daemon says of its own times."""

    def __init__(self, path):
        self.path = path

    def wait(self):
        """The daemon opens it last."""
        end = time.monotonic() + WAIT
        while not os.path.exists(self.path):
            if time.monotonic() > end:
                raise SystemExit(f"dashboard_scale: no {self.path}")
            time.sleep(0.05)

    def page(self):
        connection = UnixConnection(self.path)
        body = get(connection, "/metrics", {})[2].decode()
        connection.close()
        return body

    def sample_ms(self, times):
        """Of the look at all telemetry pages, median of so many, a fifth of a second apart."""
        costs = []
        for _ in range(times):
            costs.append(metric(self.page(), "fabricd_sample_cost_seconds")[""] * 1e3)
            time.sleep(0.2)
        return statistics.median(costs)

    def longest_turn_ms(self):
        """Below which all turns of the control thread for snapshots were; a bucket's end."""
        counts = {}
        for key, value in metric(self.page(), "fabricd_request_seconds_bucket").items():
            labels = dict(part.split("=") for part in key.replace('"', "").split(","))
            if labels["request"] == "admin_snapshot":
                counts[float(labels["le"])] = value
        return min((end for end, value in counts.items() if value == max(counts.values())), default=0) * 1e3


def ask_metrics(options, path):
    """Median and size of /metrics."""
    times, body = [], b""
    for _ in range(options.pictures):
        connection = UnixConnection(path)
        seconds, status, body = get(connection, "/metrics", {})
        connection.close()
        if status != 200:
            raise SystemExit(f"dashboard_scale: /metrics gave {status}")
        times.append(seconds)
    return {"metrics_ms": statistics.median(times) * 1e3, "metrics_bytes": len(body)}


def measure(options, count):
    """One row."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < 2 * count + 500:
        raise SystemExit(f"dashboard_scale: {count} sessions need {2 * count + 500} open files, this user has {limit} (ulimit -Hn)")
    with tempfile.TemporaryDirectory(prefix="fabric-scale-") as folder:
        metrics = os.path.join(folder, "metrics.sock")
        daemon = Daemon(os.path.join(options.build, "fabricd", "fabricd"), folder, 1 << 30,
                        f'[limits]\nsessions = {count + 16}\nsessions_per_user = {count + 16}\n'
                        f'[telemetry]\nmetrics_socket = "{metrics}"\n')
        members, dashboard = [], None
        try:
            problem = daemon.wait_ready()
            if problem:
                raise SystemExit(f"dashboard_scale: fabricd did not start: {problem}")
            members = start_members(options, count, daemon.socket_path)
            ticks = Ticks(metrics)
            ticks.wait()
            used, began = cpu_seconds(daemon.pid), time.perf_counter()
            time.sleep(options.pictures * 0.2)
            busy_alone = (cpu_seconds(daemon.pid) - used) / (time.perf_counter() - began) * 1e3
            alone = ticks.sample_ms(options.pictures)
            dashboard = subprocess.Popen(
                [os.path.join(options.build, "fabricd", "ctl", "fabricctl"), "dashboard", "--listen", "127.0.0.1:0",
                 "--socket", os.path.join(os.path.dirname(daemon.socket_path), "admin.sock")],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
            address = dashboard.stdout.readline().decode().strip()
            row = {"sessions": count, "tick_alone_ms": alone, "fabricd_alone_ms_per_s": busy_alone,
                   **ask_pictures(options, dashboard, daemon, address, count)}
            # The page is still open: pictures are made for ten seconds after it asked last.
            row = {**row, "tick_ms": ticks.sample_ms(options.pictures), "turn_ms": ticks.longest_turn_ms(),
                   **ask_metrics(options, metrics)}
        finally:
            for one in [*members, *([dashboard] if dashboard else [])]:
                one.kill()
                one.wait()
            daemon.stop()
    return row


def main(arguments=None):
    """Measures, prints, writes."""
    options = parse_options(arguments)
    more_descriptors()
    if options.member is not None:
        return member(options.jobs, *options.member)
    print("| sessions | answer | size | first picture | size | every | dashboard | its memory | fabricd without a page | with one "
          "| tick without | with one | longest turn | /metrics | size |\n" + "|---:" * 15 + "|")
    rows = []
    for count in options.sessions.split(","):
        row = measure(options, int(count))
        rows.append(row)
        print(f"| {row['sessions']} | {row['picture_ms']:.1f} ms | {row['picture_bytes'] / 1e6:.2f} MB "
              f"| {row['first_ms']:.1f} ms | {row['first_bytes'] / 1e6:.2f} MB | {row['interval_s']:.1f} s "
              f"| {row['dashboard_ms_per_s']:.1f} ms/s | {row['dashboard_bytes'] / 1e6:.0f} MB "
              f"| {row['fabricd_alone_ms_per_s']:.1f} ms/s | {row['fabricd_ms_per_s']:.1f} ms/s | {row['tick_alone_ms']:.2f} ms | {row['tick_ms']:.2f} ms "
              f"| {row['turn_ms']:.2f} ms | {row['metrics_ms']:.1f} ms | {row['metrics_bytes'] / 1e6:.2f} MB |", flush=True)
    print(f"The page itself is {rows[-1]['page_bytes'] / 1e3:.1f} KB.")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "machine": fingerprint(SOURCE, {})}, file)
    return 0


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main())
