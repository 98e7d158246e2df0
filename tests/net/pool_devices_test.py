#!/usr/bin/python3
"""A pool that is striped over two devices, here files: sums over many stripes, before and after the daemon was killed and
started again, one device exchanged for a copy meanwhile, and a page that is lost at its place in the arena."""

import ctypes
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy

import fabricshm

FABRICD = os.environ["FABRICD"]
STRIPE = 2 << 20
WORLD = 2
LOST = 5 * STRIPE + 4711  # in the arena, and so on the second device


def drop_rights():
    """Where the user is root, a whole stripe of the machine's real memory would be lost until its next boot."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, nothing) == 0


def rank_main(socket, rank, pipe, fault):
    if fault:
        # In all ranks, as memory is lost: any of them may be the one that reduces that part.
        drop_rights()
        os.environ["FABRIC_FAULT"] = fault
    session = fabricshm.Session(socket)
    arena = session.arena("job", bytes=32 * STRIPE)
    group = arena.join("group", rank, WORLD)
    values = arena.zeros(10 * STRIPE // 4, dtype="float32")
    pattern = numpy.arange(len(values), dtype="float32") % 1021
    try:
        while pipe.recv() == "sum":
            values[:] = pattern * (rank + 1)
            group.all_reduce(values)
            pipe.send("right" if bool((values == pattern * 3).all()) else "wrong")
    except fabricshm.FabricError as error:
        pipe.send(type(error).__name__)
        pipe.recv()


class Job:
    def __init__(self, socket, fault=None):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.children = [], []
        for rank in range(WORLD):
            ours, theirs = context.Pipe()
            child = context.Process(target=rank_main, args=(socket, rank, theirs, fault))
            child.start()
            theirs.close()
            self.pipes.append(ours)
            self.children.append(child)

    def sum(self):
        for pipe in self.pipes:
            pipe.send("sum")
        assert all(pipe.poll(60) for pipe in self.pipes), "a rank does not answer"
        return [pipe.recv() for pipe in self.pipes]

    def end(self):
        for pipe in self.pipes:
            pipe.send("end")
        for child in self.children:
            child.join(30)
            assert child.exitcode == 0


def command(folder):
    return [FABRICD, "--config", "/dev/null", "--server-runtime-dir", folder + "/run", "--pool-backend=dax",
            f"--pool-dax-devices={folder}/one,{folder}/two"]


def start(folder):
    log = open(os.path.join(folder, "log"), "ab")
    daemon = subprocess.Popen(command(folder), stdout=log, stderr=log)
    deadline = time.monotonic() + 30
    while text(folder).count("pool dax") < start.count + 1:
        assert daemon.poll() is None and time.monotonic() < deadline, text(folder)
    start.count += 1
    return daemon


start.count = 0


def text(folder):
    return open(os.path.join(folder, "log")).read()


def await_text(folder, line, count):
    deadline = time.monotonic() + 30
    while text(folder).count(line) < count:
        assert time.monotonic() < deadline, text(folder)


def refuse_to_format(folder, daemon, job):
    """While the job's processes live: nothing is changed, and they are named."""
    daemon.kill()
    daemon.wait()
    before = [open(f"{folder}/{name}", "rb").read(STRIPE) for name in ("one", "two")]
    refused = subprocess.run(command(folder) + ["--format"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2, refused
    assert f"--format: {WORLD} sessions of before" in refused.stderr, refused
    assert all(f"pid {child.pid}" in refused.stderr for child in job.children), refused
    assert before == [open(f"{folder}/{name}", "rb").read(STRIPE) for name in ("one", "two")]


def check_fork(socket):
    """A forked child has nothing of an arena on devices: it may forget the objects, and touches nothing by that."""
    session = fabricshm.Session(socket)
    arena = session.arena("forks", bytes=STRIPE)
    array = arena.zeros(1000)
    array[0] = 7

    def child(work):
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def forget():
        nonlocal session, arena, array
        del array, arena, session
        gc.collect()

    def touch():
        array[0] = 8

    assert child(forget) == 0
    assert child(touch) == -signal.SIGSEGV
    assert array[0] == 7
    arena.close()
    session.close()


def main():
    with tempfile.TemporaryDirectory(prefix="fabric-devices-") as folder:
        for name in ("one", "two"):
            with open(os.path.join(folder, name), "wb") as device:
                device.truncate(40 * STRIPE)
        daemon = start(folder)
        socket = folder + "/run/attach.sock"
        try:
            check_fork(socket)
            job = Job(socket)
            assert job.sum() == ["right"] * WORLD
            daemon.kill()
            daemon.wait()
            assert job.sum() == ["right"] * WORLD
            daemon = start(folder)
            assert job.sum() == ["right"] * WORLD
            refuse_to_format(folder, daemon, job)
            daemon = start(folder)
            # A copy has the same label: only the sessions know that it is not what they have mapped.
            daemon.kill()
            daemon.wait()
            os.rename(folder + "/two", folder + "/mapped")
            shutil.copyfile(folder + "/mapped", folder + "/two")
            daemon = start(folder)
            await_text(folder, "file 2 of 2 that the session has mapped is not the pool's", WORLD)
            # The device itself again: each session presents it, and none is refused.
            daemon.kill()
            daemon.wait()
            os.rename(folder + "/mapped", folder + "/two")
            daemon = start(folder)
            assert job.sum() == ["right"] * WORLD
            assert text(folder).count("is not the pool's") == WORLD, text(folder)
            job.end()
            job = Job(socket, f"operation.begin:poison:1:{LOST}")
            assert job.sum() == ["PoisonedError"] * WORLD
            assert f"the hardware lost {STRIPE} bytes at offset {LOST // STRIPE * STRIPE}," in text(folder), text(folder)
            job.end()
        except BaseException:
            print(text(folder), file=sys.stderr)
            raise
        finally:
            daemon.kill()
            daemon.wait()
            for child in multiprocessing.active_children():
                child.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
