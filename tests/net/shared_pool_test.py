#!/usr/bin/python3
"""One pool, several hosts: an owner and a guest over one device, here a file, with ranks at both, or over as many as
FABRIC_TEST_DEVICES says. The two daemons are of one kernel, so what is shown is the relay and its failures; tests/vm has
two kernels."""

import json
import multiprocessing
import os
import signal
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
            else:
                pipe.send("left")
                return
        except fabricshm.FabricError as error:
            pipe.send((type(error).__name__, str(error)))


class Ranks:
    def __init__(self, owner, guest, arena):
        context = multiprocessing.get_context("spawn")
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
    ranks.kill(3)
    for kind, text in ranks.ask("sum", [0, 1, 2]):
        assert kind == "PeerError" and "rank 3" in text, text
    assert ranks.ask("shrink", [0, 1, 2]) == [3, 3, 3]
    assert ranks.ask("sum", [0, 1, 2]) == [6.0] * 3
    ranks.kill(0)
    assert all("rank 0" in text for _, text in ranks.ask("sum", [1, 2]))
    assert ranks.ask("shrink", [1, 2]) == [2, 2]
    assert ranks.ask("sum", [1, 2]) == [5.0] * 2
    ranks.end()
    wait_until(lambda: used(owner) == 0, "memory of ranks that have ended")


def check_daemons_that_are_started_again(owner, guest):
    ranks = Ranks(owner, guest, "restarts")
    guest.kill()
    assert ranks.ask("sum") == [10.0] * WORLD  # no daemon is on the way of the data
    guest.start().wait()
    assert ranks.ask("tensor") == [1000] * WORLD
    owner.stop()
    assert ranks.ask("sum") == [10.0] * WORLD
    owner.start().wait()
    assert ranks.ask("tensor") == [1000] * WORLD
    assert ranks.ask("sum") == [10.0] * WORLD
    # Ranks that end while their host has no daemon: the next one says so.
    guest.kill()
    ranks.kill(2, 3)
    guest.start().wait()
    assert all("PeerError" == kind for kind, _ in ranks.ask("sum", [0, 1]))
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
    fenced = owner.ctl("hosts", "fence", "guest", "--confirmed")
    assert fenced.returncode == 0, fenced.stderr
    wait_until(lambda: used(owner) == 0, "memory of a fenced host")
    guest.start().wait()


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


def main():
    with tempfile.TemporaryDirectory(prefix="fabric-shared-") as folder:
        make_devices(folder, 256 << 20)
        owner = Host(folder, "owner", f"--cluster-listen=unix:{folder}/peers").start()
        guest = Host(folder, "guest", f"--pool-owner=unix:{folder}/peers")
        try:
            owner.wait()
            guest.start().wait()
            assert os.stat(folder + "/peers").st_mode & 0o777 == 0o600
            for check in (check_sums_and_deaths, check_daemons_that_are_started_again, check_host_that_is_silent):
                began = time.monotonic()
                check(owner, guest)
                print(f"{check.__name__}: {time.monotonic() - began:.1f} s", flush=True)
            check_refusals(folder, owner)
            check_devices(folder)
            assert guest.stop() == 0, guest.text()
            assert owner.stop() == 0, owner.text()
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
