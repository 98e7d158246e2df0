"""Layers, values and devices as plain data: all that placement and its cost model use."""

import dataclasses
import json
import subprocess

KINDS = ("convolution", "fully_connected", "activation", "other")

# A named tensor in the pool: its elements behind a header, in whole pages. shm_layout.md.
_HEADER_BYTES = 128
_UNIT_BYTES = 4096


def pool_bytes(bytes):
    """What a named tensor of `bytes` takes from its owner's quota."""
    return -(-(bytes + _HEADER_BYTES) // _UNIT_BYTES) * _UNIT_BYTES


class PlacementError(Exception):
    """The layers can't be placed on these devices."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """One operation of the network.

    inputs, outputs: names of values; inputs of the network are values that no layer puts out.
    weight_bytes: what the layer keeps in the device's memory.
    """

    name: str
    kind: str
    operation: str
    flops: int
    weight_bytes: int
    inputs: tuple
    outputs: tuple


@dataclasses.dataclass(frozen=True)
class Network:
    """Layers in an order in which each comes after those that it reads from.

    bytes_of: size of every value for one micro-batch. Every layer contributes to an output.
    """

    layers: tuple
    inputs: tuple
    outputs: tuple
    bytes_of: dict

    def producer(self):
        """Value -> index of the layer that puts it out."""
        return {value: i for i, layer in enumerate(self.layers) for value in layer.outputs}

    def last_use(self):
        """Value -> index of the last layer that reads it; len(layers) for outputs of the network."""
        uses = {value: i for i, layer in enumerate(self.layers) for value in layer.inputs}
        uses.update((value, len(self.layers)) for value in self.outputs)
        return uses


@dataclasses.dataclass(frozen=True)
class Device:
    """A device, or the vGPU slice of it. flops_per_s is the slice's share of the speed."""

    name: str
    kind: str
    flops_per_s: float
    quota_bytes: int
    link_bytes_per_s: float
    link_latency_s: float = 0.0
    efficiency: dict = dataclasses.field(default_factory=dict, hash=False)

    def compute_seconds(self, layer):
        """Efficiency: the part of its speed that a device reaches with this kind of layer."""
        return layer.flops / (self.flops_per_s * self.efficiency.get(layer.kind, 1.0))

    def transfer_seconds(self, bytes):
        """Of the bytes alone; each read has the latency on top."""
        return bytes / self.link_bytes_per_s


def devices_from_json(text):
    """Devices from what `fabricctl devices --json` prints."""
    return [
        Device(
            name=entry["name"], kind=entry["kind"],
            flops_per_s=entry["gflops"] * 1e9 * entry["vgpu_share_percent"] / 100,
            quota_bytes=entry["vgpu_memory_bytes"],
            link_bytes_per_s=entry["link_gbytes_per_s"] * 1e9,
            link_latency_s=entry["link_latency_ns"] * 1e-9,
            efficiency=entry["efficiency"],
        )
        for entry in json.loads(text)["devices"]
    ]  # fmt: skip


def read_devices(path, fabricctl):
    """The devices of a device file, which only fabricctl (and fabricd) knows how to read."""
    done = subprocess.run(
        [fabricctl, "devices", "--file", path, "--json"],
        capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise PlacementError(done.stderr.strip().removeprefix("fabricctl: --file: "))
    return devices_from_json(done.stdout)
