"""The cost model: how long a device takes for a segment, and what it has to hold.

A segment is a run of consecutive layers on one device. Per micro-batch the device
  - reads each value that another device (or the network's input) put into the pool, once, over its
    own link: latency + bytes / bandwidth;
  - computes each layer: operations / (speed x the efficiency for that kind of layer);
  - writes each value that another device reads, or that the network puts out: bytes / bandwidth.
One thing after the other: that is how stage.py runs, and an upper bound for devices that overlap.
"""

import dataclasses

from .model import pool_bytes


@dataclasses.dataclass(frozen=True)
class Segment:
    """Layers [first, last) on one device. reads: values over the link. needs: segments before it."""

    device: int
    first: int
    last: int
    reads: tuple
    writes: tuple
    needs: tuple
    seconds: float


def segments_of(network, devices, placement):
    """The segments of a placement (the index of a device for each layer), in the layers' order."""
    producer = network.producer()
    shared = _shared_values(network, placement, producer)
    # A segment begins where the device changes.
    borders = [i for i in range(len(placement)) if i == 0 or placement[i] != placement[i - 1]]
    # Layer -> number of its segment; have: what a device has made or read so far.
    segment_of = {}
    segments = []
    have = {device: set() for device in set(placement)}
    for number, (first, last) in enumerate(zip(borders, [*borders[1:], len(placement)])):
        segment_of.update((i, number) for i in range(first, last))
        device = placement[first]
        layers = network.layers[first:last]
        made = [value for layer in layers for value in layer.outputs]
        used = dict.fromkeys(value for layer in layers for value in layer.inputs)
        # What the device has made or read before is still there.
        reads = tuple(v for v in used if v not in have[device] and v not in made)
        have[device].update(made, reads)
        # Segments whose values this one needs; the network's inputs have none.
        sources = {segment_of[producer[v]] for v in used if v in producer} - {number}
        writes = tuple(v for v in made if v in shared)
        seconds = segment_seconds(network, devices[device], layers, reads, writes)
        segments.append(
            Segment(device, first, last, reads, writes, tuple(sorted(sources)), seconds))
    return segments


def _shared_values(network, placement, producer):
    """Values that have to be in the pool: read on another device, or the network's outputs."""
    shared = set(network.outputs)
    for i, layer in enumerate(network.layers):
        shared.update(
            v for v in layer.inputs if v in producer and placement[producer[v]] != placement[i])
    return shared


def segment_seconds(network, device, layers, reads, writes):
    """One thing after the other, see above. Latency counts per read: each waits for the link."""
    moved = sum(network.bytes_of[value] for value in (*reads, *writes))
    computing = sum(device.compute_seconds(layer) for layer in layers)
    return computing + device.transfer_seconds(moved) + len(reads) * device.link_latency_s


def memory_of(network, devices, segments, in_flight):
    """Bytes in the pool per device: its weights, and each value it writes once per micro-batch in
    flight."""
    held = [0] * len(devices)
    weights = [0] * len(devices)
    for segment in segments:
        weights[segment.device] += sum(
            layer.weight_bytes for layer in network.layers[segment.first:segment.last])
        held[segment.device] += in_flight * sum(
            pool_bytes(network.bytes_of[value]) for value in segment.writes)
    # No weights, no tensor for them.
    return [bytes + (pool_bytes(weight) if weight else 0) for bytes, weight in zip(held, weights)]


def pipeline_seconds(latency, bottleneck, micro_batches, in_flight):
    """Time of a step of `micro_batches` through a chain of stages: `latency` is the sum of their
    times, `bottleneck` the longest.

    Micro-batch m ends `bottleneck` after m - 1, and not before `latency` after m - in_flight, whose
    end lets it in. Unrolled, that is one of two closed forms; both rise with both arguments.
    """
    if latency <= in_flight * bottleneck:
        return latency + (micro_batches - 1) * bottleneck
    rounds, rest = divmod(micro_batches - 1, in_flight)
    return (rounds + 1) * latency + rest * bottleneck
