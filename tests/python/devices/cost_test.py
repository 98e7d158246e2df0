"""The cost model: what a segment reads, writes, holds and takes."""

import random
import unittest

import networks
from networks import chain

from fabricshm.devices.cost import memory_of, pipeline_seconds, segments_of
from fabricshm.devices.model import Device, Layer, Network, devices_from_json, pool_bytes
from fabricshm.devices.schedule import make_schedule

FAST = Device("fast", "gpu", 1000.0, 1 << 20, 100.0, 0.5)
SLOW = Device("slow", "fpga", 100.0, 1 << 20, 10.0, 0.25, {"convolution": 0.5})


class Cost(unittest.TestCase):
    def test_a_segment_takes_its_operations_its_bytes_and_a_latency_per_read(self):
        network = chain([1000, 500], bytes=50)
        first, second = segments_of(network, [FAST, SLOW], [0, 1])
        self.assertAlmostEqual(first.seconds, 1.0 + 50 / 100 + 50 / 100 + 0.5)
        self.assertAlmostEqual(second.seconds, 500 / 50 + 50 / 10 + 50 / 10 + 0.25)
        self.assertEqual((first.reads, first.writes), (("in",), ("v0",)))
        self.assertEqual((second.reads, second.writes, second.needs), (("v0",), ("v1",), (0,)))

    def test_what_stays_on_the_device_costs_nothing(self):
        network = chain([1000, 500], bytes=50)
        (only,) = segments_of(network, [FAST], [0, 0])
        self.assertEqual((only.reads, only.writes), (("in",), ("v1",)))

    def test_a_device_that_has_a_value_does_not_read_it_again(self):
        layers = (
            Layer("a", "other", "op", 1, 0, ("in",), ("a",)),
            Layer("b", "other", "op", 1, 0, ("a",), ("b",)),
            Layer("c", "other", "op", 1, 0, ("a", "b", "in"), ("c",)))
        network = Network(layers, ("in",), ("c",), {"in": 1, "a": 1, "b": 1, "c": 1})
        segments = segments_of(network, [FAST, SLOW], [0, 1, 0])
        self.assertEqual([s.reads for s in segments], [("in",), ("a",), ("b",)])
        self.assertEqual(segments[2].needs, (0, 1))

    def test_memory_is_weights_once_and_written_values_per_micro_batch_in_flight(self):
        network = chain([1, 1], bytes=5000, weights=4000)
        segments = segments_of(network, [FAST, SLOW], [0, 1])
        self.assertEqual(memory_of(network, [FAST, SLOW], segments, 3), [8192 + 3 * 8192] * 2)
        self.assertEqual(pool_bytes(4096 - 128), 4096)
        self.assertEqual(pool_bytes(4096 - 127), 8192)

    def test_the_closed_form_of_a_step_is_what_a_simulated_chain_takes(self):
        # On a chain every stage waits for the one before, which is what the form assumes.
        generator = random.Random(5)
        for _ in range(200):
            stages = generator.randrange(1, 5)
            devices = [networks.random_device(generator, f"d{i}") for i in range(stages)]
            network = chain([generator.randrange(1, 10**6) for _ in range(stages)])
            segments = segments_of(network, devices, list(range(stages)))
            count, in_flight = generator.randrange(1, 9), generator.randrange(1, 6)
            times = [segment.seconds for segment in segments]
            self.assertAlmostEqual(
                make_schedule(segments, count, in_flight).seconds,
                pipeline_seconds(sum(times), max(times), count, in_flight))

    def test_a_slice_has_its_share_of_the_speed_and_its_quota(self):
        (device,) = devices_from_json("""{"devices": [{"name": "g", "kind": "gpu", "gflops": 8.0,
            "vgpu_share_percent": 25, "memory_bytes": 100, "vgpu_memory_bytes": 50,
            "link_gbytes_per_s": 2.0, "link_latency_ns": 500, "efficiency": {"other": 0.5},
            "configured": true, "sessions": 0, "bytes_used": 0}]}""")
        self.assertEqual(device.flops_per_s, 2e9)
        self.assertEqual(device.quota_bytes, 50)
        self.assertEqual(device.link_bytes_per_s, 2e9)
        self.assertAlmostEqual(device.link_latency_s, 5e-7)


if __name__ == "__main__":
    unittest.main()
