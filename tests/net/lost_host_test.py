#!/usr/bin/python3
"""A host that stands still, daemon and ranks, is lost to its cluster: those that wait for it hear so long before their
deadline, go on without it, and it can't come back into their group."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy

import fabricshm
from fabricshm._daemon import die_with_parent, find_program

WITHIN = 60       # seconds, of the test's own waits
DEADLINE = 50     # of operations: the cluster has to be faster
TTL = 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what):
    limit = time.monotonic() + WITHIN
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(what)
        time.sleep(0.02)


def exchange_over(pipe):
    def exchange(mine):
        pipe.send(mine)
        return pipe.recv()
    return exchange


def rank_main(path, rank, pipe):
    with fabricshm.Session(path, timeout=DEADLINE) as session:
        arena = session.arena("job", bytes=32 << 20)
        group = arena.join("group", rank, 2, exchange=exchange_over(pipe), trusted="127.0.0.0/8")
        value = numpy.ones(1000)
        group.all_reduce(value)
        pipe.send((group.hosts, value[0]))
        pipe.recv()  # the other host stands still, or this one does until it goes on
        begun = time.monotonic()
        try:
            # What the first host had sent before it gave the other one up arrives, so that one sum may be had late.
            for _ in range(2):
                group.all_reduce(value)
            pipe.send(("no error", -1, 0))
        except fabricshm.PeerError as error:
            pipe.send((str(error), error.rank, time.monotonic() - begun))
        if rank == 0:
            alone = group.shrink()
            value[:] = 3
            alone.all_reduce(value)
            pipe.send((alone.world, alone.hosts, value[0]))
        pipe.recv()


class Place:
    """A fabricd in the cluster, and its rank."""

    def __init__(self, context, folder, name, etcd, rank):
        self.runtime = folder / name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [find_program(), "--config", os.devnull, "--server-runtime-dir", self.runtime, "--pool-capacity", "256MiB",
                 "--state-dir", self.runtime / "state", "--cluster-etcd", etcd, "--cluster-host-name", name, "--cluster-ttl", f"{TTL}s"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        self.pipe, theirs = context.Pipe()
        self.start = lambda: self._start(context, rank, theirs)

    def _start(self, context, rank, pipe):
        self.rank = context.Process(target=rank_main, args=(str(self.runtime / "attach.sock"), rank, pipe))
        self.rank.start()

    def shown(self):
        """The hosts as fabricctl shows them."""
        program = Path(find_program()).parent / "ctl/fabricctl"
        done = subprocess.run([program, "hosts", "--json", "--socket", self.runtime / "admin.sock"], capture_output=True, text=True,
                              check=False, timeout=WITHIN)
        return json.loads(done.stdout) if done.returncode == 0 else {"hosts": []}

    def hosts(self):
        """{name: state}, as this daemon knows them."""
        return {host["name"]: host["state"] for host in self.shown()["hosts"]}

    def check_session(self):
        """A session hears what fabricctl shows."""
        with fabricshm.Session(str(self.runtime / "attach.sock")) as session:
            known, shown = session.hosts(), self.shown()
        assert known.admits is shown["admits"] is True
        heard = [(host.name, host.incarnation, host.state, host.own, host.newest, host.fence is None) for host in known.hosts]
        wanted = [(host["name"], host["incarnation"], host["state"], host["self"], host["newest"], host["fence"] == "") for host in
                  shown["hosts"]]
        assert heard == wanted, (heard, wanted)
        assert all(0 <= host.seconds < WITHIN for host in known.hosts)

    def signal(self, number):
        for pid in (self.daemon.pid, self.rank.pid):
            os.kill(pid, number)

    def end(self):
        for process in (getattr(self, "rank", None), self.daemon):
            if process is not None:
                process.kill()
        self.daemon.wait()
        if hasattr(self, "rank"):
            self.rank.join()


def receive(place):
    if not place.pipe.poll(WITHIN):
        raise TimeoutError(f"{place.runtime.name} says nothing")
    return place.pipe.recv()


def play(folder, etcd):
    context = multiprocessing.get_context("spawn")
    places = []
    try:
        for rank, name in enumerate("ab"):
            places.append(Place(context, folder, name, etcd, rank))
        one, other = places
        wait_for(lambda: all(place.hosts() == {"a": "up", "b": "up"} for place in places), "the hosts did not find each other")
        for place in places:
            place.check_session()
        for place in places:
            place.start()
        for _ in range(2):
            gathered = [receive(place) for place in places]
            for place in places:
                place.pipe.send(gathered)
        assert [receive(place) for place in places] == [(2, 2.0)] * 2
        other.signal(signal.SIGSTOP)
        one.pipe.send("go on")
        text, rank, seconds = receive(one)
        assert rank == 1 and "rank 1 on host" in text, text
        assert seconds < DEADLINE / 2, seconds  # not by the deadline
        print(f"{seconds:.2f} s after its last sign of life: {text}")
        assert receive(one) == (1, 1, 3.0)
        wait_for(lambda: one.hosts()["b"] == "lost", "the cluster does not say that the host is lost")
        one.check_session()
        other.signal(signal.SIGCONT)
        other.pipe.send("go on")
        text, rank, _ = receive(other)  # it has missed all of it, and is in no group any more
        assert rank == 0, text
        for place in places:
            place.pipe.send("end")
        for place in places:
            place.rank.join(WITHIN)
            assert place.rank.exitcode == 0
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
        raise
    finally:
        for place in places:
            place.end()


def main():
    program = shutil.which("etcd")
    if program is None:
        print("skipped: no etcd")
        return 77
    with tempfile.TemporaryDirectory(prefix="fabric-lost-host-") as name:
        folder = Path(name)
        etcd, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        with (folder / "etcd.log").open("ab") as log:
            store = subprocess.Popen(
                [program, "--data-dir", folder / "etcd", "--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls",
                 peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        try:
            play(folder, etcd)
        finally:
            store.kill()
            store.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
