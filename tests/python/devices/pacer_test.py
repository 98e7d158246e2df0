"""The pacer, on a clock that only the test moves."""

import unittest

from fabricshm.devices.pacer import Pacer


class Clock:
    """sleep() overshoots, as the kernel's does."""

    def __init__(self, overshoot=0.0):
        self.now = 100.0
        self.overshoot = overshoot

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds + self.overshoot


def serve(pacer, clock, waits, computes, takes):
    pacer.ask()
    clock.now += waits
    pacer.begin()
    clock.now += computes
    pacer.finish(takes)


class Pacing(unittest.TestCase):
    def test_a_fast_machine_waits_the_rest_of_the_devices_time(self):
        clock = Clock()
        pacer = Pacer(clock, clock.sleep)
        serve(pacer, clock, waits=0.0, computes=0.25, takes=1.0)
        self.assertAlmostEqual(clock.now, 101.0)
        self.assertAlmostEqual(pacer.busy_s, 1.0)
        self.assertAlmostEqual(pacer.real_s, 0.25)
        self.assertEqual(pacer.late, 0)

    def test_what_one_sleep_overshoots_the_next_leaves_out(self):
        clock = Clock(overshoot=0.0625)
        pacer = Pacer(clock, clock.sleep)
        for _ in range(100):
            serve(pacer, clock, waits=0.0, computes=0.25, takes=1.0)
        self.assertAlmostEqual(clock.now, 200.0625)
        self.assertAlmostEqual(pacer.busy_s, 100.0)

    def test_a_slow_machine_is_late_and_nothing_is_made_up_for(self):
        clock = Clock()
        pacer = Pacer(clock, clock.sleep)
        serve(pacer, clock, waits=0.0, computes=3.0, takes=1.0)
        serve(pacer, clock, waits=0.0, computes=0.0, takes=1.0)
        self.assertAlmostEqual(clock.now, 104.0)
        self.assertEqual(pacer.late, 1)
        self.assertAlmostEqual(pacer.busy_s, 4.0)

    def test_a_wait_for_data_is_not_the_devices_time(self):
        clock = Clock()
        pacer = Pacer(clock, clock.sleep)
        serve(pacer, clock, waits=0.0, computes=0.0, takes=1.0)
        serve(pacer, clock, waits=5.0, computes=0.5, takes=1.0)
        self.assertAlmostEqual(clock.now, 107.0)
        self.assertAlmostEqual(pacer.busy_s, 2.0)


if __name__ == "__main__":
    unittest.main()
