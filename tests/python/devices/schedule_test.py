"""The order in which devices serve their segments."""

import random
import unittest

import networks

from fabricshm.devices.cost import segments_of
from fabricshm.devices.schedule import make_schedule


def random_case(generator):
    network = networks.random_network(generator, generator.randrange(1, 12))
    devices = [networks.random_device(generator, f"d{i}") for i in range(3)]
    placement = [generator.randrange(3) for _ in network.layers]
    return segments_of(network, devices, placement)


class Schedules(unittest.TestCase):
    def test_every_segment_is_served_once_per_micro_batch_after_what_it_needs(self):
        generator = random.Random(1)
        for _ in range(100):
            segments = random_case(generator)
            count, in_flight = generator.randrange(1, 7), generator.randrange(1, 5)
            schedule = make_schedule(segments, count, in_flight)
            served = [pair for order in schedule.orders.values() for pair in order]
            wanted = {(m, s) for m in range(count) for s in range(len(segments))}
            self.assertEqual((len(served), set(served)), (len(wanted), wanted))
            for m, number in wanted:
                start = schedule.finish[m, number] - segments[number].seconds
                before = [schedule.finish[m, s] for s in segments[number].needs]
                self.assertGreaterEqual(start, max(before, default=0.0) - 1e-9)

    def test_devices_that_keep_to_their_orders_never_wait_in_a_circle(self):
        generator = random.Random(2)
        for _ in range(100):
            segments = random_case(generator)
            count, in_flight = generator.randrange(1, 7), generator.randrange(1, 5)
            orders = {d: list(o) for d, o in
                      make_schedule(segments, count, in_flight).orders.items()}
            done = set()

            def is_in(m):
                return m < in_flight or all(
                    (m - in_flight, s) in done for s in range(len(segments)))

            while any(orders.values()):
                ready = [d for d, order in orders.items() if order and is_in(order[0][0]) and all(
                    (order[0][0], s) in done for s in segments[order[0][1]].needs)]
                self.assertTrue(ready)
                done.add(orders[generator.choice(ready)].pop(0))

    def test_no_more_micro_batches_are_in_flight_than_slots(self):
        generator = random.Random(3)
        for _ in range(50):
            segments = random_case(generator)
            in_flight = generator.randrange(1, 4)
            finish = make_schedule(segments, 6, in_flight).finish
            for m in range(in_flight, 6):
                left = max(finish[m - in_flight, s] for s in range(len(segments)))
                entered = min(finish[m, s] - segments[s].seconds for s in range(len(segments)))
                self.assertGreaterEqual(entered, left - 1e-9)

    def test_a_step_takes_no_less_than_its_busiest_device(self):
        generator = random.Random(4)
        for _ in range(100):
            segments = random_case(generator)
            busy = {}
            for segment in segments:
                busy[segment.device] = busy.get(segment.device, 0.0) + segment.seconds
            seconds = make_schedule(segments, 5, 3).seconds
            self.assertGreaterEqual(seconds, 5 * max(busy.values()) - 1e-9)
            self.assertLessEqual(seconds, 5 * sum(busy.values()) + 1e-9)


if __name__ == "__main__":
    unittest.main()
