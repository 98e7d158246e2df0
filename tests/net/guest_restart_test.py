#!/usr/bin/python3
"""A guest's daemon that ends, and is started again after its lease has ended or before the pool's owner answers, while a process
of its host still writes to an arena: the owner grants no byte of it until that process is gone, and then all of them. The owner
runs, stands still or is dead meanwhile. Two daemons of one kernel, in one cluster of etcd."""

import base64
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy

from shared_pool_cluster_test import free_ports, start_etcd
from shared_pool_test import Host, proof_of, used, wait_until

import fabricshm

BYTES = 8 << 20  # of an arena
WORDS = (BYTES >> 2) - (BYTES >> 4)  # in it: the rest is the heap's
POOL = 64 << 20
ROUNDS = 20  # of the taker, while nothing more is granted


def counts_in(folder, name):
    """Words that a process counts in and the test reads, also when it was killed."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.truncate(3 * 8)
    return numpy.memmap(path, dtype="int64", mode="r+", shape=(3,))  # rounds, arenas, wrong words


def writer_main(socket, folder):
    counts = counts_in(folder, "writer")
    data = fabricshm.Session(socket).arena("writer", bytes=BYTES).zeros(WORDS)
    counts[1] = 1
    for value in range(1, 1 << 23):
        data[:] = value
        counts[2] += int((data != value).sum())
        counts[0] = value


def taker_main(socket, folder):
    """Takes what the owner gives, fills it, and looks whether it stays so."""
    counts = counts_in(folder, "taker")
    session = fabricshm.Session(socket)
    taken = []
    while True:
        try:
            arena = session.arena(f"taker {len(taken)}", bytes=BYTES)
            taken.append((arena, arena.zeros(WORDS)))
            taken[-1][1][:] = -1.0 - len(taken)
        except fabricshm.FabricError:
            pass  # no room: tried again
        for number, (_, data) in enumerate(taken):
            counts[2] += int((data != -2.0 - number).sum())
        counts[1] = len(taken)
        counts[0] += 1


class Process:
    def __init__(self, main, host, folder, name):
        self.counts = counts_in(folder, name)
        # Made by a server that has loaded the modules: most of a start is that.
        self.child = multiprocessing.get_context("forkserver").Process(
            target=main, args=(host.folder + "/attach.sock", folder))
        self.child.start()
        wait_until(lambda: self.counts[0] > 0, f"the {name}'s first round")

    rounds = property(lambda self: int(self.counts[0]))
    arenas = property(lambda self: int(self.counts[1]))
    wrong = property(lambda self: int(self.counts[2]))

    def end(self):
        self.child.kill()
        self.child.join()


class Cluster:
    """One of the clusters of an etcd."""

    def __init__(self, port, name):
        self.url, self.name = f"http://127.0.0.1:{port}", name
        self.options = (f"--cluster-etcd={self.url}", "--cluster-ttl=2s", f"--cluster-name={name}")

    def has_lease(self, host):
        """By etcd's own word: the host's record goes with its lease."""
        key = base64.b64encode(f"/fabricd/{self.name}/v1/hosts/{host}".encode()).decode()
        request = urllib.request.Request(self.url + "/v3/kv/range", json.dumps({"key": key}).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return "kvs" in json.load(answer)


def incarnations_up(daemon, name):
    """*back*: an incarnation before it is lost."""
    return [host["incarnation"] for host in daemon.json("hosts")["hosts"]
            if host["name"] == name and host["state"] in ("up", "back")]


def restart_guest(cluster, owner, guest, how, owners_part):
    """The guest's daemon ends; it is there again, with the owner, as another incarnation."""
    before = incarnations_up(owner, "guest")
    assert len(before) == 1 and cluster.has_lease("guest")
    if owners_part == "stands still":
        owner.process.send_signal(signal.SIGSTOP)
    elif owners_part == "is dead":
        owner.kill()
    if how == "killed":
        guest.kill()
    else:
        guest.stop()
    wait_until(lambda: not cluster.has_lease("guest"), "the end of the guest's lease")
    guest.start().wait()
    wait_until(lambda: incarnations_up(guest, "guest") not in ([], before), "another incarnation, by the guest's word")
    if owners_part == "stands still":
        owner.process.send_signal(signal.SIGCONT)
    elif owners_part == "is dead":
        owner.start().wait()
    wait_until(lambda: cluster.has_lease("owner") and incarnations_up(owner, "owner"), "an owner that is a host of the cluster")
    wait_until(lambda: incarnations_up(owner, "guest") not in ([], before), "another incarnation, by the owner's word")
    wait_until(lambda: "owner of the pool" not in str(guest.json("status")["status"].get("alarms", "")), "a guest with its owner")


def check(folder, etcd_port, how, owners_part):
    began = time.monotonic()
    os.mkdir(folder)
    with open(folder + "/device", "wb") as device:
        device.truncate(POOL)
    with open(folder + "/proof", "w") as proof:
        proof.write(proof_of(folder + "/device"))
    cluster = Cluster(etcd_port, os.path.basename(folder))
    owner = Host(folder, "owner", f"--cluster-listen=unix:{folder}/peers", *cluster.options)
    guest = Host(folder, "guest", f"--pool-owner=unix:{folder}/peers", *cluster.options)
    try:
        owner.start().wait()
        guest.start().wait()
        wait_until(lambda: incarnations_up(owner, "guest"), "the guest as a host of the cluster")
        writer = Process(writer_main, guest, folder, "writer")
        assert used(owner) == BYTES
        restart_guest(cluster, owner, guest, how, owners_part)
        taker = Process(taker_main, owner, folder, "taker")
        full, since = -1, 0
        while full != taker.arenas or taker.rounds < since + ROUNDS:
            if full != taker.arenas:
                full, since = taker.arenas, taker.rounds
            assert writer.child.is_alive(), "the writer has ended before its time"
            time.sleep(0.01)  # between two looks at what the taker has
        rounds = writer.rounds
        wait_until(lambda: writer.rounds > rounds, "the writer goes on")
        assert writer.child.is_alive(), "the writer has ended before its time"
        assert writer.wrong == 0 and taker.wrong == 0, f"overwritten: {writer.wrong} and {taker.wrong} words"
        assert used(owner) == (full + 1) * BYTES, "the writer's arena is in use"
        writer.end()
        wait_until(lambda: taker.arenas == full + 1, f"the memory of a process that has ended\n{owner.text()}")
        rounds = taker.rounds
        wait_until(lambda: taker.rounds > rounds + 1, "the taker goes on")
        assert taker.wrong == 0, taker.wrong
        taker.end()
        wait_until(lambda: used(owner) == 0, "memory of all")
        print(f"{how}, the owner {owners_part}: {rounds} rounds, {full} arenas, 0 words overwritten, "
              f"{time.monotonic() - began:.1f} s", flush=True)
    except BaseException as error:
        print(f"{how}, the owner {owners_part}: {error}", owner.text(), guest.text(), sep="\n", file=sys.stderr)
        raise
    finally:
        for host in (guest, owner):
            if host.process and host.process.poll() is None:
                host.kill()


def main():
    if not shutil.which("etcd"):
        print("etcd is not installed: skipped")
        return 77
    stories = [(how, part) for how in ("killed", "ended by TERM") for part in ("runs", "stands still", "is dead")]
    with tempfile.TemporaryDirectory(prefix="fabric-restart-") as folder, ThreadPoolExecutor(len(stories)) as side_by_side:
        client, peer = free_ports(2)
        etcd = start_etcd(folder, client, peer)
        # Side by side: they wait for leases and starts most of the time.
        parts = [side_by_side.submit(check, f"{folder}/story{number}", client, *story) for number, story in enumerate(stories)]
        try:
            for part in parts:
                part.result()
        finally:
            for child in multiprocessing.active_children():
                child.kill()
            etcd.kill()
            etcd.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
