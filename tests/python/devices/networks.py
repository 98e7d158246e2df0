"""Small networks and devices for the tests of placement: random, but the same in every run."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))

from fabricshm.devices.model import KINDS, Device, Layer, Network  # noqa: E402


def chain(flops, bytes=1000, weights=100, kinds=None):
    """Layers one after the other."""
    layers = [
        Layer(f"l{i}", (kinds or ["convolution"] * len(flops))[i], "op", work, weights,
              (f"v{i - 1}" if i else "in",), (f"v{i}",))
        for i, work in enumerate(flops)]
    sizes = {"in": bytes, **{f"v{i}": bytes for i in range(len(flops))}}
    return Network(tuple(layers), ("in",), (f"v{len(flops) - 1}",), sizes)


def random_network(random, length):
    """Layers that read one or two of the values before them; all lead to the output."""
    values, sizes, layers, unread = ["in"], {"in": random.randrange(1, 5000)}, [], {"in"}
    for i in range(length):
        inputs = {values[-1], random.choice(values[-4:])}
        if i == length - 1:
            inputs |= unread  # so that every layer is needed
        unread -= inputs
        value = f"v{i}"
        layers.append(Layer(
            f"l{i}", random.choice(KINDS), "op", random.randrange(1, 10**6),
            random.choice([0, random.randrange(1, 20000)]), tuple(sorted(inputs)), (value,)))
        values.append(value)
        unread.add(value)
        sizes[value] = random.randrange(1, 9000)
    return Network(tuple(layers), ("in",), (values[-1],), sizes)


def random_device(random, name, quota=1 << 30):
    return Device(
        name, random.choice(["gpu", "fpga", "asic", "dpu", "cpu"]), random.uniform(1e6, 1e8), quota,
        random.uniform(1e6, 1e8), random.choice([0.0, 1e-4]),
        {kind: random.uniform(0.1, 1.0) for kind in KINDS})
