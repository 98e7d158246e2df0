#!/usr/bin/python3
"""Goodbyes while a daemon is away. A process that closes a session or an arena and lives on: whatever daemon of its pool was
killed, stood still or was about to end, the memory goes back when they are there again. What is asked is the owner's word
alone: bytes of the pool in use, and sessions."""

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from shared_pool_test import FABRICD, Host, make_devices, used, wait_until

import fabricshm

BYTES = 32 << 20
GRACE = 2  # seconds; of Host


def client_main(socket, pipe):
    session = fabricshm.Session(socket)
    arenas = {}
    while True:
        word, *rest = pipe.recv()
        try:
            if word == "open":
                arenas[rest[0]] = session.arena(rest[0], bytes=BYTES)
                arenas[rest[0]].zeros(1000)
            elif word == "close arena":
                arenas.pop(rest[0]).close()
            elif word == "close":
                arenas.clear()
                session.close()
            elif word == "end":
                return
            pipe.send("done")
        except fabricshm.FabricError as error:
            pipe.send(str(error))


class Client:
    """A process with a session at `host`, which lives until end()."""

    def __init__(self, host, *arenas):
        # Made by a server that has loaded the modules: most of a start is that.
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=client_main, args=(host.folder + "/attach.sock", theirs))
        self.child.start()
        theirs.close()
        for arena in arenas:
            assert self.ask("open", arena) == "done"

    def ask(self, *words):
        self.pipe.send(words)
        assert self.pipe.poll(60), f"no answer to {words}"
        return self.pipe.recv()

    def signal(self, number):
        os.kill(self.child.pid, number)

    def end(self):
        assert self.child.is_alive(), "a client has ended before its time"
        self.pipe.send(["end"])
        self.child.join(30)


def sessions_of(owner):
    return len(owner.sessions())


def check_given_back(owner, client, sessions, what):
    wait_until(lambda: used(owner) == 0, f"{what}: {used(owner)} bytes are in use\n{owner.text()}")
    wait_until(lambda: sessions_of(owner) == sessions, f"{what}: {owner.sessions()}")
    client.end()
    wait_until(lambda: sessions_of(owner) == 0, f"{what}: sessions after the end")


def leave(client, how):
    """How many sessions are left."""
    if how == "session":
        assert client.ask("close") == "done"
        return 0
    assert client.ask("close arena", "one") == "done"
    return 1


def check_owner_away(owner, guest, how):
    client = Client(guest, "one")
    owner.kill()
    wait_until(lambda: "the owner of the pool" in str(guest.json("status")), "the guest misses its owner")
    left = leave(client, how)
    owner.start().wait()
    check_given_back(owner, client, left, f"{how}, while the owner was away")


def check_owner_stands_still(owner, guest, how):
    """The goodbye is on its way when the owner ends: it was sent, and not served."""
    client = Client(guest, "one")
    owner.process.send_signal(signal.SIGSTOP)
    left = leave(client, how)
    time.sleep(random.random() / 5)  # anywhere between client, guest and owner
    owner.kill()
    owner.start().wait()
    check_given_back(owner, client, left, f"{how}, on its way to an owner that ends")


def check_guest_away(owner, guest, how):
    client = Client(guest, "one")
    guest.kill()
    left = leave(client, how)
    guest.start().wait()
    check_given_back(owner, client, left, f"{how}, while the guest's daemon was away")


def check_guest_stands_still(owner, guest, how):
    client = Client(guest, "one")
    guest.process.send_signal(signal.SIGSTOP)
    left = leave(client, how)
    guest.kill()
    guest.start().wait()
    check_given_back(owner, client, left, f"{how}, on its way to a guest's daemon that ends")


def check_both_away(owner, guest, how):
    client = Client(guest, "one")
    guest.kill()
    owner.kill()
    left = leave(client, how)
    owner.start().wait()
    guest.start().wait()
    check_given_back(owner, client, left, f"{how}, while both were away")


def check_kills(owner, guest, how):
    """Kills around the goodbye, and again while it is said."""
    for turn in range(6):
        client = Client(guest, "one")
        victims = [[owner], [guest], [owner, guest]][turn % 3]
        client.pipe.send(["close"] if how == "session" else ["close arena", "one"])
        for _ in range(3):
            time.sleep(random.choice((0, 0.0005, 0.005, 0.1, 0.6)))  # any moment will do
            for host in victims:
                host.kill()
                host.start()
            for host in victims:
                host.wait()
        assert client.pipe.recv() == "done"
        check_given_back(owner, client, 0 if how == "session" else 1, f"{how}, with kills of {len(victims)} ({turn})")


def check_given_up(owner, guest):
    """The guest was silent for so long that the owner went on without its sessions. Before the process has closed them, nothing
    of them is granted; from then on all of it."""
    client = Client(guest, "one")
    guest.kill()
    wait_until(lambda: any(session["given_up"] for session in owner.sessions()), "a session that is given up")
    assert client.ask("close") == "done"
    assert used(owner) == BYTES, "only the guest can have said that it was closed"
    guest.start().wait()
    check_given_back(owner, client, 0, "closed by a session that was given up")


def check_new_session_of_a_process(owner, guest):
    """A process whose session was given up has another one. Its first one ends with the arena that it still has mapped."""
    client = Client(guest, "one")
    guest.kill()
    wait_until(lambda: any(session["given_up"] for session in owner.sessions()), "a session that is given up")
    guest.start().wait()
    wait_until(lambda: sessions_of(owner) == 2, "a new session of the process")
    assert used(owner) == BYTES, "it may write there still"
    assert client.ask("close arena", "one") == "done"
    check_given_back(owner, client, 1, "the last arena of a session that was given up")


def check_stopped(owner, guest):
    """A process that is stopped says nothing, and may write when it goes on: it keeps all that it has."""
    client, clock = Client(guest, "one"), Client(owner, "two")
    client.signal(signal.SIGSTOP)
    clock.signal(signal.SIGSTOP)
    guest.kill()
    guest.start().wait()
    wait_until(lambda: any(session["given_up"] for session in owner.sessions()), "a stopped process is given up")
    owner.kill()
    owner.start().wait()
    # One of the owner's own host ends by the clock: the grace period is over.
    wait_until(lambda: sessions_of(owner) == 1, "the session of the owner's host")
    assert used(owner) == BYTES, "memory of a stopped process was given back"
    client.signal(signal.SIGCONT)
    assert client.ask("close") == "done"
    check_given_back(owner, client, 0, "closed by a process that was stopped")
    clock.child.kill()
    clock.child.join()


def check_one_host(folder, how):
    """A daemon with a pool of its own: what closes while it is away goes at the end of the grace period."""
    host = Host(folder, "alone")
    host.command = [FABRICD, "--config", "/dev/null", "--server-runtime-dir", host.folder, f"--state-adopt-grace={GRACE}s"]
    host.start().wait()
    try:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            client, other = Client(host, "one"), Client(host, "two")
            host.process.send_signal(number)
            left = leave(client, how)
            host.kill()
            host.start().wait()
            wait_until(lambda: used(host) < 2 * BYTES and sessions_of(host) == 1 + left, f"{how}: {host.sessions()}")
            other.ask("close")
            check_given_back(host, client, left, f"{how}, at a daemon of one host")
            other.child.kill()
            other.child.join()
    except BaseException:
        print(host.text(), file=sys.stderr)
        raise
    finally:
        host.process.kill()
        host.process.wait()


def check_closing_of_shared_arena(folder):
    """An arena that others have open lives on: it is their closing that must not be lost, on its way to a daemon that ends."""
    host = Host(folder, "several")
    host.command = [FABRICD, "--config", "/dev/null", "--server-runtime-dir", host.folder, f"--state-adopt-grace={GRACE}s"]
    host.start().wait()
    try:
        client, other = Client(host, "one"), Client(host, "one")
        host.process.send_signal(signal.SIGSTOP)
        assert client.ask("close arena", "one") == "done"
        host.kill()
        host.start().wait()
        wait_until(lambda: sorted(session["bytes_owned"] == 0 for session in host.sessions()) == [False, True],
                   f"regions of a session that has closed: {host.sessions()}")
        client.end()
        other.end()
    except BaseException:
        print(host.text(), file=sys.stderr)
        raise
    finally:
        host.process.kill()
        host.process.wait()


def run(check, *words):
    began = time.monotonic()
    check(*words)
    named = [word for word in words if word in ("session", "arena")]
    print(f"{check.__name__} {' '.join(named)}: {time.monotonic() - began:.1f} s", flush=True)


def run_pair(folder, *checks):
    """On an owner and a guest of their own, one check after the other."""
    os.mkdir(folder)
    make_devices(folder, 256 << 20)
    owner = Host(folder, "owner", f"--cluster-listen=unix:{folder}/peers").start()
    guest = Host(folder, "guest", f"--pool-owner=unix:{folder}/peers", "--log-level=debug")
    try:
        owner.wait()
        guest.start().wait()
        for check, *words in checks:
            run(check, owner, guest, *words)
    except BaseException:
        print(owner.text(), guest.text(), file=sys.stderr)
        raise
    finally:
        for host in (guest, owner):
            if host.process and host.process.poll() is None:
                host.process.send_signal(signal.SIGKILL)
                host.process.wait()


def run_alone(folder, check, *words):
    os.mkdir(folder)
    run(check, folder, *words)


def main():
    # Side by side: they wait for starts, restarts and the ends of grace periods most of the time.
    with tempfile.TemporaryDirectory(prefix="fabric-leave-") as folder, ThreadPoolExecutor(8) as side_by_side:
        parts = [side_by_side.submit(run_pair, f"{folder}/{how}", *((check, how) for check in (
            check_owner_away, check_owner_stands_still, check_guest_away, check_guest_stands_still, check_both_away,
            check_kills))) for how in ("session", "arena")]
        parts.append(side_by_side.submit(run_pair, f"{folder}/silent", (check_given_up,), (check_new_session_of_a_process,),
                                         (check_stopped,)))
        parts += [side_by_side.submit(run_alone, f"{folder}/alone-{how}", check_one_host, how) for how in ("session", "arena")]
        parts.append(side_by_side.submit(run_alone, f"{folder}/several", check_closing_of_shared_arena))
        try:
            for part in parts:
                part.result()
        finally:
            for child in multiprocessing.active_children():
                child.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
