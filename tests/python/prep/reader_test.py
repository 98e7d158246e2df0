"""fabricshm.prepare: the numbers of torchvision, and cuts and flips that follow from (seed, epoch, index)."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import numpy as np
except ImportError as error:
    fabric_test.skip(error)

from fabricshm import bfloat16_from  # noqa: E402
from fabricshm.prepare import Augment, Normalise  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture_of(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def formula(picture):
    return (picture.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)


class Normalised(unittest.TestCase):
    def test_each_type_and_layout_has_the_numbers_of_the_formula(self):
        picture = picture_of(40, 30, 3)
        for dtype, rounded in (("float32", lambda x: x), ("float16", lambda x: x.astype(np.float16)),
                               ("bfloat16", bfloat16_from)):
            for layout in ("CHW", "HWC"):
                wanted = formula(picture).transpose(2, 0, 1) if layout == "CHW" else formula(picture)
                found = Normalise(MEAN, STD, dtype=dtype, layout=layout)(picture)
                np.testing.assert_array_equal(found, rounded(np.ascontiguousarray(wanted)))

    def test_its_bits_are_those_of_torchvision(self):
        try:
            from torchvision import transforms
        except ImportError as error:
            self.skipTest(str(error))
        there = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
        for seed in range(5):
            picture = picture_of(50, 60, 3, seed=seed)
            np.testing.assert_array_equal(Normalise(MEAN, STD)(picture), there(picture).numpy())

    def test_pictures_stack_into_memory_that_is_given(self):
        pictures = [picture_of(5, 6, 3, seed=seed)[:, ::-1] for seed in range(4)]
        normalise = Normalise(MEAN, STD)
        out = np.empty((4, 3, 5, 6), np.float32)
        self.assertIs(normalise.stack(pictures, out), out)
        for picture, numbers in zip(pictures, out):
            np.testing.assert_array_equal(numbers, normalise(picture))

    def test_what_does_not_fit_is_refused(self):
        normalise = Normalise(MEAN, STD)
        picture = picture_of(4, 5, 3)
        for bad in (picture.astype(np.int8), picture[0], picture[..., :2], picture[..., ::-1]):
            with self.assertRaises((ValueError, TypeError)):
                normalise(bad)
        for out in (np.empty(59, np.float32), np.empty((4, 5, 3), np.float64), np.empty((60, 2), np.float32)[:, 0]):
            with self.assertRaisesRegex(ValueError, "out is not contiguous"):
                normalise(picture, out)
        readonly = np.empty((3, 4, 5), np.float32)
        readonly.flags.writeable = False
        with self.assertRaises(ValueError):
            normalise(picture, readonly)
        for options in ({"dtype": "float64"}, {"layout": "WHC"}, {"std": (1, 0, 1)}, {"mean": (1,)}):
            with self.assertRaises(ValueError):
                Normalise(**{"mean": MEAN, "std": STD, **options})
        with self.assertRaises(ValueError):
            normalise.stack([])


class Augmented(unittest.TestCase):
    def test_a_picture_is_cut_and_flipped_as_it_was_chosen_without_a_copy(self):
        picture = picture_of(12, 17, 3)
        augment = Augment(5, crop=(8, 9))
        for index in range(50):
            top, left, height, width, flipped = augment.choice(picture.shape, 1, index)
            found = augment(picture, 1, index)
            wanted = picture[top : top + 8, left : left + 9]
            np.testing.assert_array_equal(found, wanted[:, ::-1] if flipped else wanted)
            self.assertTrue(np.shares_memory(found, picture))
            # The strides of a view go straight into the numbers.
            np.testing.assert_array_equal(Normalise(MEAN, STD)(found),
                                          Normalise(MEAN, STD)(np.ascontiguousarray(found)))

    def test_another_process_chooses_alike(self):
        code = ("from fabricshm.prepare import Augment\n"
                "print([Augment(7, crop=3).choice((9, 9, 3), 2, i) for i in range(20)])")
        there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                               timeout=60, env={**os.environ, "PYTHONHASHSEED": "3"}).stdout.strip()
        self.assertEqual(there, str([Augment(7, crop=3).choice((9, 9, 3), 2, i) for i in range(20)]))

    def test_every_place_and_both_sides_come_about_as_often(self):
        augment = Augment(1, crop=4)
        chosen = [augment.choice((6, 7, 3), epoch, index) for epoch in range(3) for index in range(4000)]
        self.assertEqual(sum(Augment(1, crop=4).choice((6, 7, 3), 0, 0) == one for one in chosen[:1]), 1)
        counts = {}
        for one in chosen:
            counts[one] = counts.get(one, 0) + 1
        self.assertEqual(len(counts), 3 * 4 * 2)
        self.assertLess(max(counts.values()) / min(counts.values()), 1.35)
        epochs = [chosen[begin : begin + 4000] for begin in (0, 4000, 8000)]
        self.assertNotEqual(epochs[0], epochs[1])
        self.assertTrue(all(one[4] for one in [Augment(1, flip=1.0).choice((2, 2, 1), 0, i) for i in range(50)]))
        self.assertFalse(any(Augment(1, flip=0.0).choice((2, 2, 1), 0, i)[4] for i in range(50)))

    def test_a_cut_that_is_larger_than_the_picture_is_refused(self):
        with self.assertRaisesRegex(ValueError, "9 x 9 can't be cut out of 8 x 20"):
            Augment(1, crop=9)(picture_of(8, 20, 3), 0, 0)
        with self.assertRaisesRegex(ValueError, "flip is 2"):
            Augment(1, flip=2)


if __name__ == "__main__":
    fabric_test.main()
