"""A device: one process, one session of fabricd on that device, some segments of the network.

Everything the device keeps is in the pool and counts against its vGPU quota: its weights, and each
value that others read, once per micro-batch in flight. Others read them in place.
"""

import dataclasses
import json
import os
import signal

import fabricshm
import torch

from .. import _daemon
from .graph import tensor_bytes
from .pacer import Pacer

_ALIGNMENT = 64
_START_S = 120.0  # for devices to start and load their weights, at least


class StageError(Exception):
    """A device failed; the text names it."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What driver and devices have to agree on. A slot is the place of one micro-batch in flight."""

    graph: object
    devices: list
    segments: list
    orders: dict
    in_flight: int
    socket: str
    arena: str
    arena_bytes: int
    timeout_s: float  # that one waits for another's values

    @property
    def start_s(self):
        """That one waits for another to start: it loads the weights, and its turn on a busy machine may come
        late."""
        return max(self.timeout_s, _START_S)

    def tensor_name(self, value, slot):
        """Names of values may be longer than those of tensors."""
        numbers = {v: i for i, v in enumerate(self.graph.network.bytes_of)}
        return f"value{numbers[value]}.{slot}"

    def place_of(self, m):
        """Slot of a micro-batch, and the version that its tensors have then."""
        return m % self.in_flight, m // self.in_flight + 1

    def owner(self, value):
        """The device that puts a value out; None: the driver."""
        producer = self.graph.network.producer().get(value)
        return next((s.device for s in self.segments
                     if producer is not None and s.first <= producer < s.last), None)

    def owner_name(self, value):
        return self.devices[self.owner(value)].name


def create_slots(job, arena, values):
    """value -> one (tensor, torch view of it) per slot."""
    slots = {}
    for value in values:
        shape, dtype = job.graph.specs[value]
        name = str(dtype).removeprefix("torch.")
        tensors = [arena.create_tensor(job.tensor_name(value, slot), list(shape) or [1], name)
                   for slot in range(job.in_flight)]
        slots[value] = [(t, torch.from_numpy(t.array).reshape(shape)) for t in tensors]
    return slots


def open_slots(job, arena, values):
    """The same for values that others put out."""
    slots = {}
    for value in values:
        shape, _ = job.graph.specs[value]
        tensors = [arena.open_tensor(job.tensor_name(value, slot), job.start_s)
                   for slot in range(job.in_flight)]
        slots[value] = [(t, torch.from_numpy(t.array).reshape(shape)) for t in tensors]
    return slots


def weights_in(arena, name, weights, numbers):
    """The weights of a device, one after the other in one tensor of the pool: number -> view."""
    offsets, end = {}, 0
    for number in numbers:
        offsets[number] = end
        end += -(-tensor_bytes(weights[number]) // _ALIGNMENT) * _ALIGNMENT
    if end == 0:
        return {}
    memory = torch.from_numpy(arena.create_tensor(f"weights.{name}"[:63], [end], "uint8").array)
    views = {}
    for number, offset in offsets.items():
        weight = weights[number]
        piece = memory[offset:offset + tensor_bytes(weight)]
        views[number] = piece.view(weight.dtype).reshape(weight.shape)
        views[number].copy_(weight)
    return views


class Stage:
    """The work of one device process."""

    def __init__(self, job, number):
        self._job = job
        self._device = job.devices[number]
        self._mine = [i for i, segment in enumerate(job.segments) if segment.device == number]
        self._order = job.orders[number]
        self._values = {}  # micro-batch -> values that this device has made or read
        self._pacer = Pacer()

    def open(self):
        job, device = self._job, self._device
        self._session = fabricshm.Session(
            job.socket, job.start_s, label=f"device {device.name}", device=device.name)
        self._arena = self._session.arena(job.arena, job.arena_bytes)
        segments = [job.segments[i] for i in self._mine]
        operations = [o for s in segments for o in job.graph.operations[s.first:s.last]]
        numbers = sorted({number for o in operations for number in o.weights()})
        self._weights = weights_in(self._arena, device.name, job.graph.weights, numbers)
        self._written = create_slots(job, self._arena, [v for s in segments for v in s.writes])
        self._read = open_slots(job, self._arena, [v for s in segments for v in s.reads])

    def run(self):
        for m, number in self._order:
            self._serve(m, self._job.segments[number])
            if number == self._mine[-1]:
                del self._values[m]  # views of slots that others may fill again
        return {"busy_s": self._pacer.busy_s, "real_s": self._pacer.real_s,
                "late": self._pacer.late, "segments": len(self._order)}

    def _serve(self, m, segment):
        slot, version = self._job.place_of(m)
        values = self._values.setdefault(m, {})
        self._pacer.ask()
        for value in segment.reads:
            tensor, view = self._read[value][slot]
            self._wait(tensor, version, value)
            values[value] = view
        self._pacer.begin()
        self._job.graph.run(segment.first, segment.last, values, self._weights)
        for value in segment.writes:
            self._written[value][slot][1].copy_(values[value])
        self._pacer.finish(segment.seconds)
        for value in segment.writes:
            self._written[value][slot][0].publish()

    def _wait(self, tensor, version, value):
        source = self._job.owner(value)
        whose = "the driver" if source is None else self._job.devices[source].name
        try:
            tensor.wait(version, self._job.timeout_s)
        except (fabricshm.PeerError, fabricshm.NotFoundError):
            raise _LostPeer(source, f"{whose} died before it had put out {value}") from None
        except fabricshm.FabricTimeoutError:
            raise _LostPeer(
                source, f"no {value} of {whose} within {self._job.timeout_s:g} s") from None


class _LostPeer(Exception):
    """Another device (its index; None: the driver) failed first; the text says how."""

    def __init__(self, source, text):
        super().__init__(text)
        self.source = source


def main(job, number, pipe):
    """The life of a device process after fork(): reports over `pipe` when it is ready, what it did,
    or what went wrong, one line of JSON each."""
    _daemon.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the driver ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    code = 1
    try:
        stage = Stage(job, number)
        stage.open()
        _tell(pipe, {"ready": os.getpid()})
        with torch.no_grad():
            _tell(pipe, {"done": stage.run()})
        code = 0
    except _LostPeer as error:
        _tell(pipe, {"lost": error.source, "text": str(error)})
    except Exception as error:  # whatever it is, the driver has to hear of it
        _tell(pipe, {"text": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def _tell(pipe, message):
    os.write(pipe, (json.dumps(message) + "\n").encode())
