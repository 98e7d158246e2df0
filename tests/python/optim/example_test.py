"""examples/shared_parameters, as it is started: it trains on after a rank was killed, and says what is saved."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch  # noqa: F401
except ImportError as error:
    fabric_test.skip(error)

PROGRAM = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "shared_parameters", "train.py")


def train(*arguments):
    """What it prints."""
    ended = subprocess.run([sys.executable, PROGRAM, "--batch", "2", "--every", "2", *arguments],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if "is missing: apt install" in ended.stderr:
        raise unittest.SkipTest(ended.stderr.strip().splitlines()[0])
    if ended.returncode != 0:
        raise AssertionError(f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
    return ended.stdout


class ExampleTest(unittest.TestCase):
    def check_survivors(self, *arguments):
        printed = train("--ranks", "3", "--steps", "6", "--survive", "--kill", "4", *arguments)
        self.assertIn("step 2 of 6", printed)
        self.assertIn("step 4: rank 2 is killed", printed)
        self.assertRegex(printed, r"step 6 of 6: loss [0-9.]+, 2 ranks")
        return printed

    def test_survivors_train_both_networks_on(self):
        for task in ("images", "characters"):
            with self.subTest(task=task):
                self.check_survivors("--task", task)

    def test_survivors_train_on_with_overlap_and_by_moments(self):
        self.check_survivors("--task", "characters", "--overlap")
        self.check_survivors("--task", "characters", "--optimiser", "max_adabelief", "--mode", "moment")

    def test_what_copies_would_take_is_saved(self):
        printed = train("--ranks", "4", "--steps", "2", "--task", "characters")
        copies, saved = map(float, re.search(r"would be ([0-9.]+) MB: ([0-9.-]+) MB are saved", printed).groups())
        # 3 arrays once instead of 4 times, next to 4 gradients; what the group itself takes is counted, too.
        self.assertGreater(saved, 0.2 * copies)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
