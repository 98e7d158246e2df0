"""Placement: by kind of layer, and by the cost model against trying everything."""

import dataclasses
import itertools
import random
import unittest

import networks
from networks import chain

from fabricshm.devices.cost import memory_of, pipeline_seconds, segments_of
from fabricshm.devices.model import KINDS, Device, PlacementError
from fabricshm.devices.placement import place_by_cost, place_by_kind

INFINITY = float("inf")


def device(name, kind, quota=1 << 30, speed=1e6):
    return Device(name, kind, speed, quota, 1e9)


def step_of(network, devices, placement, micro_batches, in_flight):
    """Seconds of a step; infinity when it does not fit or a device has two stages."""
    segments = segments_of(network, devices, placement)
    held = memory_of(network, devices, segments, in_flight)
    fits = all(bytes <= d.quota_bytes for bytes, d in zip(held, devices))
    if not fits or len({s.device for s in segments}) < len(segments):
        return INFINITY
    times = [segment.seconds for segment in segments]
    return pipeline_seconds(sum(times), max(times), micro_batches, in_flight)


def best_step(network, devices, micro_batches, in_flight):
    """Every assignment of every layer."""
    return min(
        step_of(network, devices, list(placement), micro_batches, in_flight)
        for placement in itertools.product(range(len(devices)), repeat=len(network.layers)))


def random_case(generator, quotas):
    network = networks.random_network(generator, generator.randrange(1, 7))
    devices = [networks.random_device(generator, f"d{i}", generator.choice(quotas))
               for i in range(generator.randrange(1, 4))]
    return network, devices, generator.randrange(1, 9), generator.randrange(1, 5)


class ByCost(unittest.TestCase):
    def test_no_cut_is_better_and_none_passes_a_quota(self):
        generator = random.Random(11)
        refused = 0
        for number in range(150):
            network, devices, count, in_flight = random_case(
                generator, [1 << 30, 20_000, 40_000, 90_000])
            best = best_step(network, devices, count, in_flight)
            with self.subTest(number):
                if best == INFINITY:
                    refused += 1
                    with self.assertRaisesRegex(PlacementError, "quotas"):
                        place_by_cost(network, devices, count, in_flight)
                    continue
                placement = place_by_cost(network, devices, count, in_flight)
                got = step_of(network, devices, placement, count, in_flight)
                self.assertAlmostEqual(got, best, delta=1e-9 * best)
        self.assertTrue(10 < refused < 140, refused)  # both outcomes were seen

    def test_more_speed_memory_or_devices_never_make_a_step_longer(self):
        generator = random.Random(12)
        for _ in range(60):
            network, devices, count, in_flight = random_case(generator, [90_000, 1 << 30])
            last = self._step(network, devices, count, in_flight)
            devices[0] = dataclasses.replace(devices[0], quota_bytes=devices[0].quota_bytes * 2)
            last = self._no_longer(network, devices, count, in_flight, last)
            devices[0] = dataclasses.replace(devices[0], flops_per_s=devices[0].flops_per_s * 2)
            last = self._no_longer(network, devices, count, in_flight, last)
            devices.append(networks.random_device(generator, "more"))
            self._no_longer(network, devices, count, in_flight, last)

    def _step(self, network, devices, count, in_flight):
        try:
            placement = place_by_cost(network, devices, count, in_flight)
        except PlacementError:
            return INFINITY
        return step_of(network, devices, placement, count, in_flight)

    def _no_longer(self, network, devices, count, in_flight, last):
        step = self._step(network, devices, count, in_flight)
        self.assertLessEqual(step, last * (1 + 1e-9))
        return step

    def test_equal_devices_share_the_work_equally(self):
        devices = [device(f"d{i}", "gpu") for i in range(3)]
        placement = place_by_cost(chain([1000] * 9, bytes=1), devices, 100, 10)
        self.assertEqual(sorted(placement.count(d) for d in range(3)), [3, 3, 3])

    def test_a_link_that_is_too_slow_keeps_all_on_one_device(self):
        slow = [dataclasses.replace(device(f"d{i}", "gpu"), link_bytes_per_s=10.0)
                for i in range(2)]
        placement = place_by_cost(chain([1000] * 4, bytes=1000), slow, 4, 2)
        self.assertEqual(len(set(placement)), 1)

    def test_too_many_devices_are_refused(self):
        with self.assertRaisesRegex(PlacementError, "up to 10"):
            place_by_cost(chain([1]), [device(f"d{i}", "gpu") for i in range(11)], 1, 1)


class ByKind(unittest.TestCase):
    KINDS = ["convolution", "other", "activation", "fully_connected", "activation"]

    def names(self, network, devices, **options):
        placement = place_by_kind(network, devices, 2, **options)
        return [devices[d].name for d in placement]

    def test_each_kind_of_layer_goes_to_its_kind_of_device(self):
        network = chain([1] * 5, kinds=self.KINDS)
        devices = [device("g", "gpu"), device("f", "fpga"), device("a", "asic"), device("c", "cpu")]
        self.assertEqual(self.names(network, devices), ["f", "f", "a", "g", "a"])
        devices[2] = device("d", "dpu")
        self.assertEqual(self.names(network, devices), ["f", "f", "d", "g", "d"])

    def test_a_missing_kind_of_device_is_replaced(self):
        network = chain([1] * 5, kinds=self.KINDS)
        self.assertEqual(self.names(network, [device("c", "cpu")]), ["c"] * 5)

    def test_preferences_can_be_changed(self):
        network = chain([1] * 5, kinds=self.KINDS)
        devices = [device("g", "gpu"), device("f", "fpga"), device("a", "asic")]
        got = self.names(network, devices, preferences={"convolution": ("gpu", "fpga", "asic")})
        self.assertEqual(got, ["g", "g", "a", "g", "a"])

    def test_devices_of_one_kind_take_turns_by_their_load(self):
        network = chain([100, 1, 1, 1], kinds=["convolution"] * 4)
        devices = [device("f0", "fpga"), device("f1", "fpga")]
        self.assertEqual(self.names(network, devices), ["f0", "f1", "f1", "f1"])

    def test_what_comes_before_the_first_of_a_kind_goes_where_that_is(self):
        network = chain([1, 1], kinds=["other", "convolution"])
        self.assertEqual(
            self.names(network, [device("g", "gpu"), device("f", "fpga")]), ["f", "f"])

    def test_what_does_not_fit_goes_to_the_next_choice(self):
        network = chain([1] * 4, kinds=["convolution"] * 4, weights=50_000)
        devices = [device("f", "fpga", quota=130_000), device("g", "gpu")]
        self.assertEqual(sorted(set(self.names(network, devices))), ["f", "g"])

    def test_no_quota_is_passed_and_the_layer_without_room_is_named(self):
        generator = random.Random(13)
        refused = 0
        for number in range(200):
            network, devices, _, in_flight = random_case(generator, [20_000, 60_000, 1 << 30])
            with self.subTest(number):
                try:
                    placement = place_by_kind(network, devices, in_flight)
                except PlacementError as error:
                    refused += 1
                    self.assertRegex(str(error), r"no device has room for layer l\d+")
                    continue
                held = memory_of(
                    network, devices, segments_of(network, devices, placement), in_flight)
                for bytes, one in zip(held, devices):
                    self.assertLessEqual(bytes, one.quota_bytes)
        self.assertTrue(5 < refused < 195, refused)

    def test_all_kinds_of_layers_have_a_place(self):
        network = chain([1] * 4, kinds=list(KINDS))
        for kind in "cpu gpu npu tpu bpu fpga asic dpu".split():
            self.assertEqual(self.names(network, [device("only", kind)]), ["only"] * 4)


if __name__ == "__main__":
    unittest.main()
