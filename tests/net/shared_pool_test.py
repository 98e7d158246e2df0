#!/usr/bin/python3
"""One pool, several hosts: an owner and a guest over one device, here a file, with ranks at both, or over as many as
FABRIC_TEST_DEVICES says. The two daemons are of one kernel, so what is shown is the relay and its failures; tests/vm has
two kernels."""

import array
import json
import multiprocessing
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import numpy

import fabricshm

FABRICD = os.environ["FABRICD"]
FABRICCTL = os.path.join(os.path.dirname(FABRICD), "ctl", "fabricctl")
PROFILE = "clflush"
DEVICES = ["device", "device2", "device3"][:int(os.environ.get("FABRIC_TEST_DEVICES", "1"))]
WORLD = 4  # ranks 0 and 1 are the owner's, 2 and 3 the guest's


def proof_of(device):
    """What fabric-litmus writes when two hosts have proven the profile. The file of a test has one kernel."""
    model = "unknown processor"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(": ", 1)[1].strip()
            break
    try:
        machine = open("/etc/machine-id").readline().strip()
    except OSError:
        machine = "no machine id"
    return (f"profile = {PROFILE}\nmachine = {model}, {machine}\ndevice = {device}\nhosts = 2\nrounds = 1\n"
            "verdict = proven\n")


def make_devices(folder, size):
    for name in DEVICES:
        with open(os.path.join(folder, name), "wb") as device:
            device.truncate(size)
    with open(os.path.join(folder, "proof"), "w") as proof:
        proof.write("".join(proof_of(os.path.join(folder, name)) for name in DEVICES))


def devices_option(folder, names):
    paths = ",".join(os.path.join(folder, name) for name in names)
    return f"--pool-dax-device{'s' if len(names) > 1 else ''}={paths}"


class Host:
    """A daemon of one host. It is ended with the test."""

    def __init__(self, folder, name, *options):
        self.folder = os.path.join(folder, name)
        self.name = name
        self.command = [
            FABRICD, "--config", "/dev/null", "--server-runtime-dir", self.folder, "--pool-backend=dax",
            devices_option(folder, DEVICES), "--pool-hosts=2", f"--pool-visibility={PROFILE}",
            f"--pool-visibility-proof={folder}/proof", f"--cluster-host-name={name}", "--state-adopt-grace=2s", *options]
        self.process = None

    def start(self):
        self.log = open(self.folder + ".log", "ab")
        self.process = subprocess.Popen(self.command, stderr=self.log, stdout=self.log)
        return self

    def wait(self):
        deadline = time.monotonic() + 30
        while self.ctl("status").returncode != 0:
            assert time.monotonic() < deadline and self.process.poll() is None, self.text()
        return self

    def ctl(self, *words):
        return subprocess.run([FABRICCTL, *words, "--socket", self.folder + "/admin.sock"],
                              capture_output=True, text=True, timeout=30)

    def json(self, *words):
        answer = self.ctl(*words, "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def sessions(self):
        return self.json("sessions")["sessions"]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=30)

    def text(self):
        return open(self.folder + ".log").read()


def rank_main(socket, rank, pipe, arena_name):
    """Does what comes through the pipe, and says what became of it."""
    session = fabricshm.Session(socket)
    arena = session.arena(arena_name, bytes=32 << 20)
    group = arena.join("group", rank, WORLD)
    pipe.send("joined")
    while True:
        word = pipe.recv()
        try:
            if word == "sum":
                right = True
                for count in (1, 1000, 300_000):
                    data = numpy.full(count, float(rank + 1), dtype="float32")
                    group.all_reduce(data)
                    expected = data[0]
                    right = right and bool((data == expected).all())
                pipe.send(float(expected) if right else "wrong")
            elif word == "shrink":
                group = group.shrink()
                pipe.send(group.world)
            elif word == "tensor":
                pipe.send(len(arena.zeros(1000)))
            elif word == "region":
                pipe.send(len(arena.zeros(1 << 20)))
            else:
                pipe.send("left")
                return
        except fabricshm.FabricError as error:
            pipe.send((type(error).__name__, str(error)))


class RawSession:
    """Speaks the attach protocol packet by packet, for what no library does (docs/protocol.md)."""

    HELLO, ARENA_OPEN, ARENA_ADOPT, ARENA_CLOSE, REGION_CREATE = 1, 2, 3, 4, 5
    CORRUPT = 12  # Errc::kCorrupt

    def __init__(self, path):
        self.path, self.files = path, []
        self.identity = self.connect(bytes(24))[:24]  # id and token

    def connect(self, identity):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        self.socket.connect(self.path)
        return self.ask(self.HELLO, identity)[1]

    def come_back(self):
        self.socket.close()
        return self.connect(self.identity)

    def ask(self, kind, body, files=()):
        packet = struct.pack("<IHHQii", 0x46425243, 1, kind, 7, 0, 0) + body
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        self.socket.sendmsg([packet.ljust(512, b"\0")], control)
        answer, came, _, _ = socket.recv_fds(self.socket, 512, 8)
        self.files += came
        return struct.unpack_from("<i", answer, 16)[0], answer[24:]  # status and body

    def open(self, name):
        status, body = self.ask(self.ARENA_OPEN, struct.pack("<64sQ", name, 2 << 20))
        return status, struct.unpack_from("<Q", body, 80)[0]

    def close(self):
        self.socket.close()
        for file in self.files:
            os.close(file)


class Ranks:
    def __init__(self, owner, guest, arena):
        # Made by a server that has loaded the modules: most of a start is that.
        context = multiprocessing.get_context("forkserver")
        self.pipes, self.children = [], []
        for rank in range(WORLD):
            host = owner if rank < 2 else guest
            ours, theirs = context.Pipe()
            child = context.Process(target=rank_main, args=(host.folder + "/attach.sock", rank, theirs, arena))
            child.start()
            theirs.close()
            self.pipes.append(ours)
            self.children.append(child)
        assert self.answers(range(WORLD)) == ["joined"] * WORLD

    def answers(self, ranks):
        got = []
        for rank in ranks:
            assert self.pipes[rank].poll(60), f"rank {rank} does not answer"
            got.append(self.pipes[rank].recv())
        return got

    def ask(self, word, ranks=range(WORLD)):
        for rank in ranks:
            self.pipes[rank].send(word)
        return self.answers(ranks)

    def kill(self, *ranks):
        for rank in ranks:
            self.children[rank].kill()
            self.children[rank].join()

    def end(self):
        for rank, child in enumerate(self.children):
            if child.is_alive():
                self.ask("leave", [rank])
            child.join(30)


def wait_until(true, what):
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)  # between two looks at another process, until it is so


def used(host):
    return host.json("status")["status"]["pool"]["used_bytes"]


def check_sums_and_deaths(owner, guest):
    ranks = Ranks(owner, guest, "sums")
    assert ranks.ask("sum") == [10.0] * WORLD
    hosts = sorted(session["host"] for session in owner.sessions())
    assert hosts == ["", "", "guest", "guest"], hosts
    wait_until(lambda: used(guest) == used(owner) > 0, "what is used of the pool, at the guest")
    ranks.kill(3)
    for kind, text in ranks.ask("sum", [0, 1, 2]):
        assert kind == "PeerError" and "rank 3" in text, text
    # First its death, and its memory when its host has written out what it wrote.
    wait_until(lambda: len(owner.sessions()) == 3, "the session of a rank that was killed")
    assert "is given up: its process ended, and its host writes out" in owner.text(), owner.text()
    assert ranks.ask("shrink", [0, 1, 2]) == [3, 3, 3]
    assert ranks.ask("sum", [0, 1, 2]) == [6.0] * 3
    ranks.kill(0)
    assert all("rank 0" in text for _, text in ranks.ask("sum", [1, 2]))
    assert ranks.ask("shrink", [1, 2]) == [2, 2]
    assert ranks.ask("sum", [1, 2]) == [5.0] * 2
    # What rank 0 stored may lie in the owner's caches: out of them first, then it is the guest's.
    assert ranks.ask("region", [1]) == [1 << 20]
    assert "leaves this host's caches" not in owner.text(), owner.text()
    assert ranks.ask("region", [2]) == [1 << 20]
    assert "leaves this host's caches" in owner.text(), owner.text()
    ranks.end()
    wait_until(lambda: used(owner) == 0, "memory of ranks that have ended")


def check_guest_without_owner(guest):
    """Its daemon is there: what is said names the owner, and that daemon's own time."""
    assert guest.json("status")["status"]["uptime_ms"] > 0
    wait_until(lambda: guest.json("status")["status"].get("alarms"), "the owner's absence as an alarm")
    try:
        fabricshm.Session(guest.folder + "/attach.sock", timeout=20).close()
        raise AssertionError("a guest without its owner took a session")
    except fabricshm.FabricError as error:
        assert "fabricd of this host is there, but the owner of its pool" in str(error), error
        assert "(pool.owner)" in str(error), error


def check_daemons_that_are_started_again(owner, guest):
    ranks = Ranks(owner, guest, "restarts")
    guest.kill()
    assert ranks.ask("sum") == [10.0] * WORLD  # no daemon is on the way of the data
    guest.start().wait()
    assert ranks.ask("tensor") == [1000] * WORLD
    owner.stop()
    assert ranks.ask("sum") == [10.0] * WORLD
    check_guest_without_owner(guest)
    owner.start().wait()
    assert ranks.ask("tensor") == [1000] * WORLD
    assert ranks.ask("sum") == [10.0] * WORLD
    # A rank of before that ends: this daemon knows from the owner what to write out of the caches.
    said = len(guest.text())
    guest.kill()
    guest.start().wait()
    ranks.kill(3)
    assert all("PeerError" == kind for kind, _ in ranks.ask("sum", [0, 1, 2]))
    wait_until(lambda: "has ended: 32 MiB leave this host's caches" in guest.text()[said:], "lines of a rank of before")
    # Ranks that end while their host has no daemon: the next one says so, when it has written out their lines.
    said = len(guest.text())
    guest.kill()
    ranks.kill(2)
    guest.start().wait()
    wait_until(lambda: len(owner.sessions()) == 2, "sessions of ranks that ended without a daemon")
    assert "has ended: 32 MiB leave this host's caches" in guest.text()[said:], guest.text()
    ranks.end()
    wait_until(lambda: used(owner) == 0, "memory of ranks that ended without a daemon")


def check_host_that_is_silent(owner, guest):
    ranks = Ranks(owner, guest, "silent")
    before = used(owner)
    # The daemon alone is gone: its ranks may be alive behind a cut, and write.
    guest.kill()
    wait_until(lambda: any(session["given_up"] for session in owner.sessions()), "sessions given up")
    for kind, _ in ranks.ask("sum", [0, 1]):
        assert kind == "PeerError"
    assert ranks.ask("shrink", [0, 1]) == [2, 2]
    assert ranks.ask("sum", [0, 1]) == [3.0] * 2
    ranks.pipes[0].send("leave"), ranks.pipes[1].send("leave")
    ranks.children[0].join(30), ranks.children[1].join(30)
    wait_until(lambda: len(owner.sessions()) == 2, "the owner's own sessions end")
    assert used(owner) == before, "memory that a silent host may write to was given back"
    assert owner.ctl("hosts", "fence", "guest").returncode != 0  # not without --confirmed
    assert used(owner) == before
    ranks.kill(2, 3)
    # A name with a line of its own in it is refused, and leaves one line in the log.
    forged = owner.ctl("hosts", "fence", "guest\n[info] audit: forged", "--confirmed")
    assert forged.returncode == 1 and "is no name of a host" in forged.stderr, forged.stderr
    assert not any(line.startswith("[info] audit: forged") for line in (owner.text() + forged.stderr).splitlines())
    fenced = owner.ctl("hosts", "fence", "guest", "--confirmed")
    assert fenced.returncode == 0, fenced.stderr
    assert "host guest counts as fenced" in fenced.stdout, fenced.stdout
    wait_until(lambda: used(owner) == 0, "memory of a fenced host")
    guest.start().wait()


def check_other_files(folder, owner, guest):
    """The guest refuses a session that has other files mapped; its owner grants it nothing either, and lets none in."""
    strange = RawSession(guest.folder + "/attach.sock")
    status, arena = strange.open(b"strange")
    assert status == 0 and len(strange.files) == len(DEVICES)
    wanted = struct.pack("<QQQQQ", arena, 0, 0, 0, 4096)
    assert strange.ask(RawSession.REGION_CREATE, wanted)[0] == 0
    strange.come_back()
    others = [os.open(os.path.join(folder, "proof"), os.O_RDONLY)] + strange.files[1:]
    assert strange.ask(RawSession.ARENA_ADOPT, struct.pack("<Q", arena), others)[0] == RawSession.CORRUPT
    assert strange.ask(RawSession.REGION_CREATE, wanted)[0] == RawSession.CORRUPT
    assert "(host guest) has other files mapped" in owner.text(), owner.text()
    session = fabricshm.Session(owner.folder + "/attach.sock")
    try:
        session.arena("strange")
        raise AssertionError("an arena that lies elsewhere for a session was opened")
    except fabricshm.FabricError as error:
        assert "a session has other files mapped" in str(error), error
    # The right ones: as if nothing had been.
    assert strange.ask(RawSession.ARENA_ADOPT, struct.pack("<Q", arena), strange.files)[0] == 0
    assert strange.ask(RawSession.REGION_CREATE, wanted)[0] == 0
    session.arena("strange").close()
    session.close()
    os.close(others[0])
    strange.close()
    # Its process lives, so it is said to be gone by another way.
    wait_until(lambda: all(session["given_up"] for session in owner.sessions()), "a session that does not come back")
    assert owner.ctl("hosts", "fence", "guest", "--confirmed").returncode == 0
    wait_until(lambda: used(owner) == 0, "memory of a session with other files")


def check_take_over(folder, owner, guest):
    """The owner's host is gone with its ranks; its guest's host has the pool from now on."""
    ranks = Ranks(owner, guest, "heirs")
    owner.kill()
    ranks.kill(0, 1)
    assert guest.stop() == 0
    options = [f"--cluster-listen=unix:{folder}/heirs"]
    heir = Host(folder, "guest", *options)
    # Nothing is granted while it is not known which processes write.
    bad = subprocess.run(heir.command, capture_output=True, text=True, timeout=30)
    assert bad.returncode == 2 and "copy the state.dir of its last owner" in bad.stderr, bad.stderr
    shutil.copy(owner.folder + "/state/journal", guest.folder + "/state/journal")
    heir.start().wait()
    try:
        assert "2 sessions that were those of a guest are this host's" in heir.text(), heir.text()
        for kind, text in ranks.ask("sum", [2, 3]):
            assert kind == "PeerError", text
        assert ranks.ask("shrink", [2, 3]) == [2, 2]
        assert ranks.ask("sum", [2, 3]) == [7.0] * 2
        assert ranks.ask("tensor", [2, 3]) == [1000] * 2
        wait_until(lambda: len(heir.sessions()) == 2, "sessions of the owner's host")
        assert {session["host"] for session in heir.sessions()} == {""}
        ranks.end()
        check_take_over_again(folder, heir)
    finally:
        heir.process.kill()


def check_take_over_again(folder, heir):
    """The heir is gone, too: a new host has the pool, and a guest, which runs on, calls it by the same address."""
    third = Host(folder, "third", f"--pool-owner=unix:{folder}/heirs").start().wait()
    last = Host(folder, "last", f"--cluster-listen=unix:{folder}/heirs")
    try:
        ranks = Ranks(heir, third, "thirds")
        assert ranks.ask("sum") == [10.0] * WORLD
        heir.kill()
        ranks.kill(0, 1)
        for path in (last.folder, last.folder + "/state"):
            os.mkdir(path, 0o700)
        shutil.copy(heir.folder + "/state/journal", last.folder + "/state/journal")
        last.start().wait()
        assert all(kind == "PeerError" for kind, _ in ranks.ask("sum", [2, 3]))
        assert ranks.ask("shrink", [2, 3]) == [2, 2]
        assert ranks.ask("sum", [2, 3]) == [7.0] * 2
        assert ranks.ask("tensor", [2, 3]) == [1000] * 2
        wait_until(lambda: [session["host"] for session in last.sessions()] == ["third"] * 2, "a guest's sessions alone")
        assert used(last) == 32 << 20
        ranks.end()
        wait_until(lambda: used(last) == 0, "memory of a pool that was taken over")
        assert third.stop() == 0 and last.stop() == 0
    except BaseException:
        print(third.text(), last.text(), file=sys.stderr)
        raise
    finally:
        for host in (third, last):
            if host.process:
                host.process.kill()
                host.process.wait()


def check_refusals(folder, owner):
    other = os.path.join(folder, "other")
    os.mkdir(other)
    make_devices(other, 64 << 20)
    # The device of another pool.
    formatted = Host(other, "formatted").start().wait()
    assert formatted.stop() == 0
    stranger = Host(other, "stranger", f"--pool-owner=unix:{folder}/peers").start().wait()
    wait_until(lambda: "of another pool" in stranger.text(), "refusal of another pool")
    wait_until(lambda: "of another pool" in str(stranger.json("status")), "the refusal as an alarm")
    assert stranger.stop() == 0
    # Copies of one of the devices, which have the same catalogue or label, byte for byte.
    for number, name in enumerate(DEVICES):
        copied = os.path.join(folder, f"copied{number}")
        os.mkdir(copied)
        make_devices(copied, 0)
        for other in DEVICES:
            if other == name:
                shutil.copyfile(os.path.join(folder, other), os.path.join(copied, other))
            else:
                os.remove(os.path.join(copied, other))
                os.link(os.path.join(folder, other), os.path.join(copied, other))
        copy = Host(copied, f"copy{number}", f"--pool-owner=unix:{folder}/peers").start().wait()
        wait_until(lambda: "is a copy of the pool's" in str(copy.json("status")), f"refusal of a copy of {name}")
        assert copy.stop() == 0
    # A second host of the owner's name.
    double = Host(folder, "owner2", f"--pool-owner=unix:{folder}/peers", "--cluster-host-name=owner").start().wait()
    wait_until(lambda: "has the name of the pool's owner" in double.text(), "refusal of the name")
    assert double.stop() == 0
    # A second guest of a name that is connected, which would speak for the processes of the first.
    twin = Host(folder, "twin", f"--pool-owner=unix:{folder}/peers", "--cluster-host-name=guest").start().wait()
    wait_until(lambda: "is connected already" in str(twin.json("status")), "a second guest of one name")
    assert twin.stop() == 0
    for options, word in (
            (["--pool-owner=unix:/x", "--cluster-listen=unix:/y"], "exclude each other"),
            (["--pool-owner=somewhere"], "is no HOST:PORT"),
            (["--pool-owner=somewhere:1"], "cluster.tls_ca"),
            (["--cluster-listen=0.0.0.0:4000"], "cluster.tls_ca"),
            (["--pool-owner=unix:/x", "--format"], "leave out pool.owner")):
        bad = subprocess.run(Host(folder, "bad", *options).command, capture_output=True, text=True, timeout=30)
        assert bad.returncode == 2 and word in bad.stderr, bad.stderr


def check_devices(folder):
    """A guest has to have the devices of the owner, in their order."""
    if len(DEVICES) == 1:
        return
    for names, words in (
            (DEVICES[::-1], f"{DEVICES[-1]} is device {len(DEVICES)} of {len(DEVICES)}"),
            (DEVICES[:1], f"{DEVICES[0]} is device 1 of {len(DEVICES)}"),
            (DEVICES[:-1] + ["other/device"], f"should be device {len(DEVICES)} of {len(DEVICES)}")):
        with open(os.path.join(folder, "proof"), "a") as proof:
            proof.write(proof_of(os.path.join(folder, names[-1])))
        command = [word for word in Host(folder, "bad", f"--pool-owner=unix:{folder}/peers").command
                   if not word.startswith("--pool-dax-device")]
        bad = subprocess.run([*command, devices_option(folder, names)], capture_output=True, text=True, timeout=30)
        assert bad.returncode == 2 and words in bad.stderr, bad.stderr


def check_size(folder):
    """A guest's device that is the right one, and smaller."""
    if len(DEVICES) == 1:
        return
    small = os.path.join(folder, "small")
    os.mkdir(small)
    make_devices(small, 0)
    for name in DEVICES:
        shutil.copyfile(os.path.join(folder, name), os.path.join(small, name))
    os.truncate(os.path.join(small, DEVICES[-1]), 16 << 20)
    bad = subprocess.run(Host(small, "smaller", f"--pool-owner=unix:{folder}/peers").command, capture_output=True,
                         text=True, timeout=30)
    words = f"{DEVICES[-1]} has 16 MiB, of which the pool uses"
    assert bad.returncode == 2 and words in bad.stderr, bad.stderr


def main():
    with tempfile.TemporaryDirectory(prefix="fabric-shared-") as folder:
        make_devices(folder, 192 << 20 if len(DEVICES) == 1 else 64 << 20)  # some are copied
        owner = Host(folder, "owner", f"--cluster-listen=unix:{folder}/peers", "--log-level=debug").start()
        guest = Host(folder, "guest", f"--pool-owner=unix:{folder}/peers", "--log-level=debug")
        try:
            owner.wait()
            guest.start().wait()
            assert os.stat(folder + "/peers").st_mode & 0o777 == 0o600
            for check in (check_sums_and_deaths, check_daemons_that_are_started_again, check_host_that_is_silent):
                began = time.monotonic()
                check(owner, guest)
                print(f"{check.__name__}: {time.monotonic() - began:.1f} s", flush=True)
            check_other_files(folder, owner, guest)
            check_refusals(folder, owner)
            check_devices(folder)
            check_size(folder)
            check_take_over(folder, owner, guest)
        except BaseException:
            print(owner.text(), guest.text(), file=sys.stderr)
            raise
        finally:
            for host in (guest, owner):
                if host.process and host.process.poll() is None:
                    host.process.send_signal(signal.SIGKILL)
                    host.process.wait()
            for child in multiprocessing.active_children():
                child.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
