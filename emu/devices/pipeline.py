"""Runs a plan: one process per device, micro-batches in flight between them through the pool.

The driver lets micro-batch m in when m - in_flight has left. By then every device is done with it,
since all that they compute leads to the outputs, so its slots are free: no other flow control.
"""

import dataclasses
import json
import os
import selectors
import signal
import time

import fabricshm
import torch

from . import stage
from .cost import memory_of
from .graph import example_input
from .model import pool_bytes
from .stage import Job, StageError

_LOOK_S = 0.1  # how often a driver that waits checks its devices
_GRACE_S = 3.0  # more than its timeout that a device has to report it


@dataclasses.dataclass(frozen=True)
class Run:
    """outputs: per micro-batch the tensors of the network. devices: name -> its process's report.
    seconds: from the first input to the last output."""

    outputs: list
    seconds: float
    devices: dict


def micro_batches(graph, count):
    """The inputs of `count` micro-batches: the example, then others like it."""
    batches = [graph.example]
    for m in range(1, count):
        batches.append({
            value: example_input(tuple(tensor.shape), 1000 * m + i, tensor.dtype)
            for i, (value, tensor) in enumerate(graph.example.items())})
    return batches


def arena_bytes_for(network, devices, segments, in_flight):
    """An arena with room for everything: the devices' memory and the inputs."""
    inputs = sum(pool_bytes(network.bytes_of[value]) for value in network.inputs)
    held = sum(memory_of(network, devices, segments, in_flight))
    return held + in_flight * inputs + (2 << 20)


class _Crew:
    """The device processes."""

    def __init__(self, job):
        self._job = job
        self._pids = {}  # index of the device -> pid
        self._children = set()  # pids not yet waited for
        self._pipes = {}  # pid -> (read end, bytes not yet read as lines)
        self._told = {}  # pid -> message
        self._ready = set()
        for number in sorted({segment.device for segment in job.segments}):
            self._start(number)

    def _start(self, number):
        """By a fork: graph and weights are there without being loaded again."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            stage.main(self._job, number, write_end)
        os.close(write_end)
        # A device that says nothing must not hold up the others.
        os.set_blocking(read_end, False)
        self._pids[number] = pid
        self._children.add(pid)
        self._pipes[pid] = (read_end, b"")

    def pids(self):
        return {self._name(number): pid for number, pid in self._pids.items()}

    def _name(self, number):
        return self._job.devices[number].name

    def _listen(self, seconds):
        """Takes what was reported meanwhile. An end of a pipe is an end of its process."""
        with selectors.DefaultSelector() as selector:
            for pid, (pipe, _) in self._pipes.items():
                selector.register(pipe, selectors.EVENT_READ, pid)
            for key, _ in selector.select(seconds) if self._pipes else []:
                pid, (pipe, rest) = key.data, self._pipes[key.data]
                data = os.read(pipe, 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._note(pid, json.loads(line))
                self._pipes[pid] = (pipe, rest)
                if not data:
                    os.close(pipe)
                    del self._pipes[pid]

    def _note(self, pid, message):
        if "ready" in message:
            self._ready.add(pid)
        else:
            self._told[pid] = message

    def _has_failed(self, number):
        pid = self._pids[number]
        return pid not in self._pipes and "done" not in self._told.get(pid, {})

    def check(self, seconds=0.0):
        """Raises StageError when a device has failed, naming the one that failed first."""
        self._listen(seconds)
        for number in self._pids:
            if self._has_failed(number):
                self._blame(number)

    def _blame(self, number):
        """A device that lost another one says so. That one's own words, or its silence, say more,
        so they are waited for, as long as it may itself be waiting for a third."""
        seen = set()
        while True:
            message = self._told.get(self._pids[number], {})
            source = message.get("lost")
            if source is None or source in seen:
                break
            seen.add(source)
            deadline = time.monotonic() + self._job.timeout_s + _GRACE_S
            while not self._has_failed(source) and time.monotonic() < deadline:
                self._listen(_LOOK_S)
            if not self._has_failed(source):
                raise StageError(
                    f"device {self._name(source)}: {message['text']}, says {self._name(number)}")
            number = source
        raise StageError(f"device {self._name(number)}: {message.get('text') or self._end(number)}")

    def _end(self, number):
        """How its process ended. Its pipe has, so there is nothing to wait for."""
        pid = self._pids[number]
        _, status = os.waitpid(pid, 0)
        self._children.remove(pid)
        if os.WIFSIGNALED(status):
            return f"process {pid} was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"process {pid} ended with exit code {os.WEXITSTATUS(status)}"

    def await_ready(self, deadline):
        while len(self._ready) < len(self._pids):
            if time.monotonic() > deadline:
                late = [n for n, pid in self._pids.items() if pid not in self._ready]
                raise StageError(f"device {self._name(late[0])}: not ready in time")
            self.check(_LOOK_S)

    def results(self, deadline):
        """What each device did, once all are done."""
        while self._pipes:
            if time.monotonic() > deadline:
                raise StageError("the devices did not end in time")
            self.check(_LOOK_S)
        return {self._name(n): self._told[pid]["done"] for n, pid in self._pids.items()}

    def end(self):
        """Nothing of them is left afterwards."""
        for pid in self._children:
            # Not waited for yet, so the number can't be another process's.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for pipe, _ in self._pipes.values():
            os.close(pipe)
        self._children, self._pipes = set(), {}


class _Driver:
    """Feeds the inputs, takes the outputs."""

    def __init__(self, job, crew):
        self._job = job
        self._crew = crew
        self._session = fabricshm.Session(job.socket, job.start_s, label="fabric-place")
        self._arena = self._session.arena(job.arena, job.arena_bytes)
        network = job.graph.network
        self._inputs = stage.create_slots(job, self._arena, network.inputs)

    def open_outputs(self):
        """Once the devices have made them."""
        self._outputs = stage.open_slots(self._job, self._arena, self._job.graph.network.outputs)

    def feed(self, m, batch):
        """Into the slot that micro-batch m - in_flight has left."""
        slot, _ = self._job.place_of(m)
        for value, tensor in batch.items():
            self._inputs[value][slot][1].copy_(tensor)
            self._inputs[value][slot][0].publish()

    def take(self, m):
        """Copies: the slot is written again."""
        slot, version = self._job.place_of(m)
        taken = []
        for value in self._job.graph.network.outputs:
            tensor, view = self._outputs[value][slot]
            self._wait(tensor, version, value)
            taken.append(view.clone())
        return taken

    def _wait(self, tensor, version, value):
        """In slices, so that the death of a device far from the output is seen at once. A device
        that waits in vain reports it before this deadline."""
        deadline = time.monotonic() + self._job.timeout_s + _GRACE_S
        while True:
            try:
                tensor.wait(version, _LOOK_S)
                return
            except fabricshm.FabricTimeoutError:
                self._crew.check()
                if time.monotonic() > deadline:
                    raise StageError(
                        f"device {self._job.owner_name(value)}: no {value} in"
                        f" {self._job.timeout_s:g} s") from None
            except (fabricshm.PeerError, fabricshm.NotFoundError):
                # The end of its pipe comes with its death, but perhaps a moment later.
                for _ in range(round(_GRACE_S / _LOOK_S)):
                    self._crew.check(_LOOK_S)
                raise StageError(f"device {self._job.owner_name(value)}: died") from None

    def close(self):
        self._inputs = self._outputs = None
        self._session.close()


def run(job, batches, on_ready=None):
    """Runs the batches through the devices. on_ready gets {device: pid} before the first is fed.

    Call it before this process has started threads of its own: it forks."""
    crew = _Crew(job)
    driver = None
    try:
        driver = _Driver(job, crew)
        crew.await_ready(time.monotonic() + job.start_s)
        driver.open_outputs()
        if on_ready:
            on_ready(crew.pids())
        begun = time.monotonic()
        with torch.no_grad():
            outputs = _stream(job, driver, batches)
        seconds = time.monotonic() - begun
        told = crew.results(time.monotonic() + job.timeout_s)
        return Run(outputs, seconds, told)
    finally:
        crew.end()
        if driver is not None:
            driver.close()


def _stream(job, driver, batches):
    """Never more than in_flight between input and output."""
    outputs = []
    for m, batch in enumerate(batches):
        if m >= job.in_flight:
            outputs.append(driver.take(m - job.in_flight))
        driver.feed(m, batch)
    while len(outputs) < len(batches):
        outputs.append(driver.take(len(outputs)))
    return outputs


def make_job(graph, devices, segments, orders, in_flight, socket, timeout_s):
    bytes = arena_bytes_for(graph.network, devices, segments, in_flight)
    return Job(
        graph, devices, segments, orders, in_flight, socket, f"pipeline-{os.getpid()}", bytes,
        timeout_s)
