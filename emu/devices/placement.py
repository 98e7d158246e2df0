"""Which device computes which layer: by kind of layer, or by the cost model."""

import numpy

from .cost import memory_of, pipeline_seconds, segments_of
from .model import PlacementError, pool_bytes

# For each kind of layer the kinds of devices that should have it, the best first.
PREFERENCES = {
    "fully_connected": ("gpu", "tpu", "npu", "bpu", "cpu", "fpga", "asic", "dpu"),
    "convolution": ("fpga", "npu", "tpu", "bpu", "gpu", "cpu", "asic", "dpu"),
    "activation": ("asic", "dpu", "npu", "tpu", "bpu", "gpu", "cpu", "fpga"),
}

# The masks of used devices double with each one more.
DEVICES_MOST = 10


# ---- By kind ------------------------------------------------------------------------------------


def place_by_kind(network, devices, in_flight, preferences=None):
    """The index of a device for each layer. A kind of layer goes to the first kind of device in its
    preferences that there is, in turns when there are several; other layers stay where the data
    they read is. What does not fit goes to the next choice."""
    preferences = {**PREFERENCES, **(preferences or {})}
    banned = set()
    while True:
        placement = _assign(network, devices, preferences, banned)
        overfull = _first_overfull(network, devices, placement, in_flight)
        if overfull is None:
            return placement
        # The layer that takes most moves on. Each round bans one pair, so this ends.
        mine = [i for i, device in enumerate(placement) if device == overfull]
        banned.add((max(mine, key=lambda i: _claim(network, i, in_flight)), overfull))


def _claim(network, i, in_flight):
    layer = network.layers[i]
    return layer.weight_bytes + in_flight * sum(network.bytes_of[v] for v in layer.outputs)


def _first_overfull(network, devices, placement, in_flight):
    held = memory_of(network, devices, segments_of(network, devices, placement), in_flight)
    return next((d for d, bytes in enumerate(held) if bytes > devices[d].quota_bytes), None)


def _assign(network, devices, preferences, banned):
    busy = [0.0] * len(devices)
    producer = network.producer()
    placement = [None] * len(network.layers)

    def choose(i, candidates):
        allowed = [d for d in candidates if (i, d) not in banned]
        if not allowed:
            return None
        best = min(allowed, key=lambda d: (busy[d], d))
        busy[best] += devices[best].compute_seconds(network.layers[i])
        return best

    for i, layer in enumerate(network.layers):
        if layer.kind == "other":
            sources = [placement[producer[v]] for v in layer.inputs if v in producer]
            placement[i] = choose(i, [d for d in sources if d is not None][:1])
            continue
        placement[i] = _preferred(i, layer, devices, preferences, choose)
    _fill(network, devices, placement, banned)
    return placement


def _preferred(i, layer, devices, preferences, choose):
    for kind in preferences[layer.kind]:
        chosen = choose(i, [d for d, device in enumerate(devices) if device.kind == kind])
        if chosen is not None:
            return chosen
    raise _no_room(layer, devices)


def _fill(network, devices, placement, banned):
    """Layers that no placed layer feeds, or that were moved on, go to their nearest neighbour."""
    for i, layer in enumerate(network.layers):
        if placement[i] is not None:
            continue
        near = [placement[i - 1]] if i > 0 else []
        near += [d for d in placement[i + 1:] if d is not None] + list(range(len(devices)))
        placement[i] = next((d for d in near if (i, d) not in banned), None)
        if placement[i] is None:
            raise _no_room(layer, devices)


def _no_room(layer, devices):
    most = max((device.quota_bytes for device in devices), default=0)
    return PlacementError(
        f"no device has room for layer {layer.name} ({layer.weight_bytes} bytes of weights) besides"
        f" the others; the largest quota is {most} bytes")


# ---- By cost ------------------------------------------------------------------------------------


def place_by_cost(network, devices, micro_batches, in_flight):
    """The cut of the chain of layers into stages, each on a device of its own (not all need be
    used), with the shortest step: pipeline_seconds() of the sum and the longest of the stages'
    times. Exact among all such cuts that fit the quotas.

    For a limit on the stages' times, the smallest sum is found by dynamic programming over (layers
    placed, devices used). The limit starts without bound and is then set just below the longest
    stage found, until nothing fits: so all pairs (sum, longest) that no other pair beats in both
    are seen, and the shortest step is one of them, since it rises with both.
    """
    if len(devices) > DEVICES_MOST:
        raise PlacementError(f"the cost model places on up to {DEVICES_MOST} devices at a time")
    seconds = stage_seconds(network, devices, in_flight)
    best, best_step, limit = None, numpy.inf, numpy.inf
    while True:
        stages = _cheapest(seconds, limit)
        if stages is None:
            break
        times = [seconds[d][first, last] for d, first, last in stages]
        step = pipeline_seconds(sum(times), max(times), micro_batches, in_flight)
        if step < best_step:
            best, best_step = stages, step
        if sum(times) >= best_step:
            break  # a lower limit only makes the sum larger
        limit = numpy.nextafter(max(times), 0.0)
    if best is None:
        raise PlacementError(_does_not_fit(network, devices, in_flight))
    return [d for d, first, last in best for _ in range(first, last)]


def _does_not_fit(network, devices, in_flight):
    weights = sum(layer.weight_bytes for layer in network.layers)
    quotas = sum(device.quota_bytes for device in devices)
    return (
        f"no cut into stages fits the quotas: {weights} bytes of weights and {in_flight}"
        f" micro-batches in flight, on devices of {quotas} bytes together")


def stage_seconds(network, devices, in_flight):
    """Per device a matrix [first, last]: seconds of a stage of those layers, infinity where it
    would not fit."""
    n = len(network.layers)
    reads, latencies, writes, written = (numpy.zeros((n + 1, n + 1)) for _ in range(4))
    for last in range(1, n + 1):
        for first, moved in _transfers(network, last):
            reads[first, last], latencies[first, last] = moved[0], moved[1]
            writes[first, last], written[first, last] = moved[2], moved[3]
    weights = numpy.cumsum([0] + [layer.weight_bytes for layer in network.layers])
    held = weights[None, :] - weights[:, None]
    # The weights are one tensor with a header of its own, unless there are none.
    held = numpy.where(held > 0, _pool_bytes_of(held), 0)
    held = held + in_flight * written
    is_stage = numpy.triu(numpy.ones((n + 1, n + 1), dtype=bool), 1)
    result = []
    for device in devices:
        computing = numpy.cumsum(
            [0.0] + [device.compute_seconds(layer) for layer in network.layers])
        seconds = computing[None, :] - computing[:, None]
        seconds = seconds + device.transfer_seconds(reads + writes)
        seconds = seconds + latencies * device.link_latency_s
        fits = is_stage & (held <= device.quota_bytes)
        result.append(numpy.where(fits, seconds, numpy.inf))
    return result


_pool_bytes_of = numpy.vectorize(pool_bytes, otypes=[numpy.int64])


def _transfers(network, last):
    """For the stages that end before layer `last`, from the shortest: (first, (bytes read, values
    read, bytes written, pool bytes written)). Each step takes one more layer in at the front."""
    ends = network.last_use()
    size = network.bytes_of
    outside = set()  # read by the stage so far, made before it
    read = written = held = 0
    for first in range(last - 1, -1, -1):
        layer = network.layers[first]
        for value in layer.outputs:
            if value in outside:
                outside.remove(value)
                read -= size[value]
            if ends.get(value, -1) >= last:
                written += size[value]
                held += pool_bytes(size[value])
        for value in set(layer.inputs) - outside:
            outside.add(value)
            read += size[value]
        yield first, (read, len(outside), written, held)


def _cheapest(seconds, limit):
    """[(device, first, last)] of the chain of stages with the smallest sum, none above `limit`;
    None when there is none."""
    n = seconds[0].shape[0] - 1
    allowed = [numpy.where(matrix <= limit, matrix, numpy.inf) for matrix in seconds]
    start = numpy.full(n + 1, numpy.inf)
    start[0] = 0.0
    sums, froms = {0: start}, {}
    for mask in range(1, 1 << len(seconds)):
        best = numpy.full(n + 1, numpy.inf)
        device_of = numpy.full(n + 1, -1)
        first_of = numpy.full(n + 1, -1)
        for d in (d for d in range(len(seconds)) if mask >> d & 1):
            total = sums[mask & ~(1 << d)][:, None] + allowed[d]
            firsts = total.argmin(axis=0)
            costs = total[firsts, numpy.arange(n + 1)]
            better = costs < best
            best[better], device_of[better], first_of[better] = costs[better], d, firsts[better]
        sums[mask], froms[mask] = best, (device_of, first_of)
    mask = min(sums, key=lambda used: sums[used][n])
    if sums[mask][n] == numpy.inf:
        return None
    stages, last = [], n
    while last > 0:
        device_of, first_of = froms[mask]
        d, first = int(device_of[last]), int(first_of[last])
        stages.append((d, first, last))
        mask, last = mask & ~(1 << d), first
    return stages[::-1]
