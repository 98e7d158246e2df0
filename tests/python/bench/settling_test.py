"""The figures of bench/control.py, from logs whose figures are known."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from harness import settling  # noqa: E402

PLAN = {"ends": [40], "speeds": [[1, 0.5]], "rate": 100, "batch": 30}
IDEAL_S = 0.2


def log(*parts, phase=0):
    """Steps of (count, seconds, counts)."""
    steps, now = [], 0.0
    for count, seconds, counts in parts:
        for _ in range(count):
            now += seconds
            steps.append({"t": now, "s": seconds, "counts": counts, "phase": phase})
    return steps


class Settling(unittest.TestCase):
    def test_the_ideal_step_is_the_batch_over_all_speeds(self):
        self.assertAlmostEqual(settling.ideal_step(30, 100, [1, 0.5]), IDEAL_S)

    def test_settled_is_after_the_last_cut_that_was_far_from_the_ideal(self):
        steps = log((10, 0.3, [15, 15]), (30, 0.21, [20, 10]))
        self.assertAlmostEqual(settling.settled_after(steps, 100, [1, 0.5]), 3.0)
        self.assertEqual(settling.settled_after(log((9, 0.2, [19, 11])), 100, [1, 0.5]), 0)
        self.assertIsNone(settling.settled_after(log((9, 0.3, [15, 15])), 100, [1, 0.5]))

    def test_what_the_machine_adds_to_a_step_unsettles_nothing(self):
        steps = log((10, 0.2, [20, 10]), (2, 0.9, [20, 10]), (1, 0.1, [2, 1]))
        self.assertEqual(settling.settled_after(steps, 100, [1, 0.5]), 0)

    def test_a_reversal_is_a_change_of_direction_beyond_the_dead_band(self):
        self.assertEqual(settling.reversals(log((5, 0.2, [15, 15]), (5, 0.2, [20, 10]))), 0)
        back = log((5, 0.2, [15, 15]), (5, 0.2, [24, 6]), (5, 0.2, [20, 10]))
        self.assertEqual(settling.reversals(back), 1)
        to_and_fro = back + log((5, 0.2, [24, 6]), (5, 0.2, [20, 10]))
        self.assertEqual(settling.reversals(to_and_fro), 3)

    def test_a_tail_is_no_change(self):
        steps = log((5, 0.2, [20, 10]), (1, 0.1, [4, 2]), (5, 0.2, [20, 10]))
        self.assertEqual(len(settling.changes(steps)), 1)

    def test_a_phase_is_told_as_it_went(self):
        steps = log((10, 0.3, [15, 15]), (30, 0.2, [20, 10]))
        told = settling.phase_figures(steps, PLAN, 0, 1.0)
        self.assertAlmostEqual(told["seconds"], 9.0)
        self.assertAlmostEqual(told["samples_per_s"], 1200 / 9)
        self.assertAlmostEqual(told["of_ideal"], 1200 / 9 / 150)
        self.assertAlmostEqual(told["settled_of_ideal"], 1.0)
        self.assertEqual((told["settled_windows"], told["changes"]), (3, 1))

    def test_the_time_to_an_accuracy_is_that_of_the_first_that_reached_it(self):
        rows = [[1, 0.5], [2, 0.86], [3, 0.84]]
        self.assertEqual(settling.time_to(rows, 0.85), 2)
        self.assertIsNone(settling.time_to(rows, 0.9))

    def test_a_run_that_never_settled_counts_as_the_worst(self):
        never = log((40, 0.3, [15, 15]))
        soon = log((10, 0.3, [15, 15]), (30, 0.2, [20, 10]))

        def told(*runs):
            rows = [settling.figures({"steps": steps, "accuracy": [[1, 0.9]]}, PLAN, 1.0, 0.85)
                    for steps in runs]
            return settling.medians(rows)["phases"][0]
        self.assertEqual(told(soon, never, soon)["settled_windows"], 3)
        self.assertIsNone(told(soon, never, never)["settled_windows"])
        self.assertIsNone(told(soon, never, never)["settled_of_ideal"])
        self.assertEqual(told(never, never)["changes"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
