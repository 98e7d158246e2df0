#!/usr/bin/python3
"""How long after a rank's death is there an alarm, and the rank again; how long after the kill of a whole job is the pool empty?

Deaths of ranks: a job of two groups with max_restarts. Each round one rank is killed, or ends by itself (by turns), at
a random moment. Measured on CLOCK_MONOTONIC from just before the kill, or as the rank writes it before it ends:
  alarm, heard      [alarm] command writes into a pipe that this program reads
  alarm, journal    the edge `repairing` of the job's journal, in its own milliseconds
  alarm, polled     `fabricctl jobs show --json` has that edge: the time of a process of its own, and of a poll, included
  main              the first line of the rank's script, which writes the clock
  interpreter       the same command line and environment alone, as many at once as were started again
with restart = "rank" and "job" (all ranks end and start again: the last main of all counts).

Kills of whole jobs: manager, agents and ranks, which hold memory of the pool, get SIGKILL in a random order, from just
before the first one:
  processes         until all of them have ended, by their pidfds
  sessions          the last `session ends` among the daemon's events, in its own milliseconds
  pool              `fabricctl health --json` says 0 bytes and `fabricctl arenas --json` has no arena
Exit code 1: bytes, arenas, processes or files in /dev/shm are left, or the daemon is gone. docs/jobs.md.
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness.fingerprint import fingerprint  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WAIT_S = 60  # for what takes a fraction of one: the machine may be loaded
POLL_S = 0.005
TARGETS_MS = {"alarm": 200, "main above the interpreter": 1000, "pool": 2000}

# Nothing before the clock but what reads it. A line is one write(): readers see whole ones.
RANK = """\
import time
began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
import os, signal, sys
lines = os.open(os.environ["BENCH_LINES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def say(what, at):
    os.write(lines, f"{what} {os.environ['RANK']} {os.getpid()} {at}\\n".encode())
say("main", began)
if "BENCH_ALONE" in os.environ:
    sys.exit()
def end(*_):
    say("end", time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    os._exit(3)
signal.signal(signal.SIGUSR1, end)
import fabricshm
session = fabricshm.Session()
arena = session.arena(os.environ["FABRIC_ARENA"], bytes=int(os.environ["FABRIC_ARENA_BYTES"]))
held = arena.zeros(int(sys.argv[1]) << 18)
say("holds", time.clock_gettime_ns(time.CLOCK_MONOTONIC))
while True:
    signal.pause()
"""


class Left(Exception):
    """What should be gone is there, or the other way round."""


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="of each kind (default 20)")
    parser.add_argument("--ranks", type=int, default=2, help="of each of two groups (default 2)")
    parser.add_argument("--mib", type=int, default=64, help="of the pool that each rank fills (default 64)")
    parser.add_argument("--seed", type=int, default=1, help="of moments, victims and orders (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    return parser.parse_args(arguments)


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def ms_since(begun_ns, at_ns):
    return (at_ns - begun_ns) / 1e6


def monotonic_of(unix_ms):
    """A time of a journal, which is cut to whole milliseconds, on the clock of this program."""
    return int(unix_ms * 1e6) - (time.clock_gettime_ns(time.CLOCK_REALTIME) - now_ns())


def wait_for(found, what):
    """The first true answer of `found`, which is called again and again."""
    by = time.monotonic() + WAIT_S
    while time.monotonic() < by:
        answer = found()
        if answer:
            return answer
        time.sleep(POLL_S)
    raise Left(f"waited {WAIT_S} s: {what}")


def children_of(pid):
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
    return found


class Alarms(threading.Thread):
    """Reads the pipe that the alarms' command writes into, and keeps when each line came."""

    def __init__(self, path):
        super().__init__(daemon=True)
        os.mkfifo(path, 0o600)
        # Open for both: a command never waits for a reader, and no end of file comes between two.
        self._pipe = os.open(path, os.O_RDWR)
        self._heard = []
        self.start()

    def run(self):
        rest = b""
        while True:
            rest += os.read(self._pipe, 4096)
            at = now_ns()
            *lines, rest = rest.split(b"\n")
            self._heard += [(line.decode(), at) for line in lines]

    def of(self, pid):
        """When the alarm of the rank with this pid came; None while it has not."""
        return next((at for line, at in list(self._heard) if f"(pid {pid})" in line), None)


class Bench:
    """A daemon, a folder of jobs and the script of their ranks."""

    def __init__(self, options, folder, daemon):
        self.options = options
        self.folder = Path(folder)
        self.daemon = daemon
        self.admin = os.path.join(daemon.folder, "admin.sock")
        self.chance = random.Random(options.seed)
        self.fabricctl = os.path.join(options.build, "fabricd", "ctl", "fabricctl")
        self.lines_path = self.folder / "lines"
        self.environment = {**os.environ, "FABRIC_JOBS_DIR": str(self.folder / "jobs"),
                            "FABRIC_ADMIN_SOCKET": self.admin, "BENCH_LINES": str(self.lines_path),
                            # As of an installed package: its compiled modules are there.
                            "PYTHONPATH": os.path.join(options.build, "python")}
        (self.folder / "rank.py").write_text(RANK)
        self.alarms = Alarms(self.folder / "alarms")
        self.jobs = 0
        self.world = 2 * options.ranks

    def ctl(self, *words):
        return subprocess.run([self.fabricctl, *map(str, words)], capture_output=True, text=True,
                              env=self.environment, cwd=self.folder, timeout=WAIT_S, check=False)

    def ask(self, *words):
        """What fabricctl prints as JSON."""
        done = self.ctl(*words, "--json")
        if not done.stdout:
            raise Left(f"fabricctl {words[0]}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def lines(self, what):
        """(rank, pid, time) of each line of ranks that says so."""
        if not self.lines_path.exists():
            return []
        words = [line.split() for line in self.lines_path.read_text().splitlines()]
        return [tuple(map(int, line[1:])) for line in words if line[0] == what]

    def line_of(self, what, pid):
        return next((at for _, one, at in self.lines(what) if one == pid), None)

    def start_job(self, name, *lines):
        """Its manager, once all ranks hold their memory."""
        self.lines_path.unlink(missing_ok=True)
        # Twice what the ranks ask for: an arena has tables of its own, and those of the dead may be freed later.
        room = 2 * self.options.ranks * self.options.mib + 16
        group = f'[[group]]\nkind = "cpu"\nranks = {self.options.ranks}\npool = "{room}MiB"\n'
        text = [f'[job]\nname = "{name}"\nscript = "rank.py"\narguments = ["{self.options.mib}"]\n'
                f'interpreter = "{sys.executable}"\ngrace = "5s"', *lines, group, group, f'[alarm]\ncommand = "echo $FABRIC_ALARM > {self.folder}/alarms"\n']
        (self.folder / "job.toml").write_text("\n".join(text))
        with open(self.folder / "manager.log", "wb") as log:
            manager = subprocess.Popen([self.fabricctl, "jobs", "run", "job.toml", "--socket", self.admin],
                                       env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=log, start_new_session=True)
        self.jobs += 1

        def ready():
            if manager.poll() is not None:
                raise Left("the job ended: " + (self.folder / "manager.log").read_text())
            return len(self.lines("holds")) >= self.world
        wait_for(ready, "the ranks do not hold their memory")
        return manager

    def end_job(self, manager):
        manager.terminate()
        try:
            manager.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            manager.kill()
            manager.wait()

    def edges(self):
        return self.ask("jobs", "show", self.jobs)["edges"]

    def starts_alone(self, pid, count):
        """Milliseconds from the start of a rank's own command line, without a job, to its main: the longest of as many."""
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        variables = dict(one.split(b"=", 1) for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if one)
        variables[b"BENCH_ALONE"] = b"1"
        begun = now_ns()
        started = [subprocess.Popen(words, env=variables, cwd=self.folder) for _ in range(count)]
        for one in started:
            if one.wait(WAIT_S) != 0:
                raise Left(f"a rank's command line alone ended with {one.returncode}")
        return max(ms_since(begun, self.line_of("main", one.pid)) for one in started)

    def kill_rank(self, pid, by_itself):
        """When it died."""
        if not by_itself:
            at = now_ns()
            os.kill(pid, signal.SIGKILL)
            return at
        os.kill(pid, signal.SIGUSR1)
        return wait_for(lambda: self.line_of("end", pid), "the rank does not end")

    def rank_dies(self, restart, by_itself):
        """One round: milliseconds by what was measured."""
        latest = {rank: pid for rank, pid, _ in self.lines("holds")}
        rank = self.chance.randrange(self.world)
        pid = latest[rank]
        count = 1 if restart == "rank" else self.world
        known = {one for _, one, _ in self.lines("main")}
        before = sum(edge["state"] == "repairing" for edge in self.edges())
        time.sleep(self.chance.uniform(0, 0.1))
        death = self.kill_rank(pid, by_itself)

        def repairing():
            found = [edge for edge in self.edges() if edge["state"] == "repairing"]
            return found[before] if len(found) > before else None
        edge = wait_for(repairing, "the journal has no alarm")
        found = {"alarm, polled": ms_since(death, now_ns()),
                 "alarm, journal": ms_since(death, monotonic_of(edge["unix_ms"])),
                 "alarm, heard": ms_since(death, wait_for(lambda: self.alarms.of(pid), "there is no alarm"))}

        def again(what):
            fresh = [line for line in self.lines(what) if line[1] not in known]
            return fresh if len(fresh) >= count else None
        fresh = wait_for(lambda: again("main"), "the rank does not start again")
        if restart == "rank" and fresh[0][0] != rank:
            raise Left(f"rank {fresh[0][0]} was started again, but {rank} had died")
        found["main"] = ms_since(death, max(at for _, _, at in fresh))
        wait_for(lambda: again("holds"), "the rank does not get its memory again")
        found["interpreter"] = self.starts_alone(fresh[0][1], count)
        found["main above the interpreter"] = found["main"] - found["interpreter"]
        return found

    def deaths(self, restart):
        manager = self.start_job(f"deaths-{restart}", f'restart = "{restart}"',
                                 f"max_restarts = {self.options.rounds}")
        try:
            return [self.rank_dies(restart, turn % 2 == 1) for turn in range(self.options.rounds)]
        finally:
            self.end_job(manager)

    def last_session_end(self, begun):
        """By the daemon's own events."""
        ends = [event["unix_ms"] for event in self.ask("events", "--last", 0)["events"]
                if event["text"].startswith("session ") and " ends" in event["text"]]
        return ms_since(begun, monotonic_of(max(ends)))

    def all_die(self):
        """One round: milliseconds by what was measured."""
        manager = self.start_job(f"whole-{self.jobs}")
        agents = children_of(manager.pid)
        ranks = [pid for agent in agents for pid in children_of(agent)]
        if len(agents) != 2 or len(ranks) != self.world:
            raise Left(f"{len(agents)} agents and {len(ranks)} ranks run")
        held = self.ask("health")["pool_used_bytes"]
        if held < self.world * self.options.mib << 20:
            raise Left(f"ranks that fill {self.options.mib} MiB each hold {held} bytes")
        victims = [manager.pid, *agents, *ranks]
        self.chance.shuffle(victims)
        pidfds = [os.pidfd_open(pid) for pid in victims]
        found = {}
        begun = now_ns()
        for pidfd in pidfds:
            # One may have died of another's death.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        found["kills"] = ms_since(begun, now_ns())

        def watch():
            for pidfd in pidfds:
                if not select.select([pidfd], [], [], WAIT_S)[0]:
                    return
            found["processes"] = ms_since(begun, now_ns())
        watcher = threading.Thread(target=watch)
        watcher.start()
        wait_for(lambda: self.ask("health")["pool_used_bytes"] == 0 and not self.ask("arenas")["arenas"],
                 "bytes of the pool are left")
        found["pool"] = ms_since(begun, now_ns())
        watcher.join()
        for pidfd in pidfds:
            os.close(pidfd)
        manager.wait()
        if "processes" not in found:
            raise Left("processes of the job are left")
        found["sessions"] = self.last_session_end(begun)
        self.check_end()
        return found

    def check_end(self):
        """Nothing is left but the word that the job has lost its manager, and not that after `cancel`."""
        leaks = [line for line in self.ctl("jobs", "leaks").stdout.splitlines() if "task manager was killed" not in line]
        if leaks:
            raise Left("jobs leaks: " + "; ".join(leaks))
        self.ctl("jobs", "cancel", self.jobs)
        after = self.ctl("jobs", "leaks")
        if after.returncode != 0:
            raise Left("jobs leaks after cancel: " + after.stdout.strip())
        if self.daemon.process.poll() is not None:
            raise Left("the daemon has ended: " + self.daemon.log())


def show(title, rounds):
    print(f"{title}, {len(rounds)} runs, ms")
    for name in rounds[0]:
        values = [one[name] for one in rounds]
        target = next((limit for key, limit in TARGETS_MS.items() if name == key or name.startswith(key + ",")), None)
        verdict = f", aimed at less than {target}{'' if max(values) < target else ': MISSED'}" if target else ""
        print(f"  {name:28} median {statistics.median(values):8.1f}, max {max(values):8.1f}{verdict}")


def main(arguments=None):
    options = parse_options(arguments)
    options.build = os.path.abspath(options.build)
    sys.path.insert(0, os.path.join(options.build, "python"))
    os.environ.setdefault("FABRICD", os.path.join(options.build, "fabricd", "fabricd"))
    from fabricshm._daemon import EmbeddedDaemon

    files = set(os.listdir("/dev/shm"))
    pool = (8 * options.ranks * options.mib + 256) << 20
    found = {"options": {key: value for key, value in vars(options).items() if key not in ("build", "json")}}
    try:
        with tempfile.TemporaryDirectory(prefix="fabric-faults-") as folder, \
                EmbeddedDaemon(pool_bytes=pool, options=["--pool-backend", "emu"]) as daemon:
            bench = Bench(options, folder, daemon)
            for restart in ("rank", "job"):
                found[f"restart_{restart}"] = bench.deaths(restart)
                show(f'a rank dies, restart = "{restart}"', found[f"restart_{restart}"])
            found["whole"] = [bench.all_die() for _ in range(options.rounds)]
            show("manager, agents and ranks are killed", found["whole"])
            # Before the daemon ends, which would clear up as well.
            left = set(os.listdir("/dev/shm")) - files
            if left:
                raise Left("in /dev/shm: " + ", ".join(sorted(left)))
    except Left as problem:
        print(f"job_faults: {problem}", file=sys.stderr)
        return 1
    if options.json:
        found["machine"] = fingerprint(SOURCE, {})
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
