"""Prepared pictures have the bytes that Pillow and torchvision give of the same files, and what is damaged
is an error wherever it is one for Pillow. Argument: the program prepare_files."""

import io
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import numpy as np
    from PIL import Image
except ImportError as error:
    fabric_test.skip(error)

PROGRAM = sys.argv.pop()


def noise(generator, height, width, channels):
    """Something between noise and a smooth picture."""
    down, across = np.mgrid[:height, :width]
    picture = [60 * np.sin(down / generator.uniform(3, 30)) + 60 * np.cos(across / generator.uniform(3, 30))
               + 128 + 40 * np.random.default_rng(generator.randrange(1000)).standard_normal((height, width))
               for _ in range(channels)]
    return np.stack(picture, -1).clip(0, 255).astype(np.uint8)


def jpeg(generator, height, width, mode):
    pixels = noise(generator, height, width, len(mode))
    image = Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=generator.choice([30, 75, 95]), optimize=True,
               subsampling=generator.choice([0, 1, 2]) if mode != "CMYK" else 0,
               progressive=generator.random() < 0.3)
    return content.getvalue()


def make_files(folder, count, seed):
    generator = random.Random(seed)
    for number in range(count):
        mode = generator.choice(["RGB", "RGB", "L", "CMYK"])
        height, width = generator.randrange(1, 200), generator.randrange(1, 200)
        with open(os.path.join(folder, f"{number:03}.{mode}.jpeg"), "wb") as file:
            file.write(jpeg(generator, height, width, mode))


def shorter(image, side):
    """torchvision's Resize(side)."""
    width, height = image.size
    size = (side, side * height // width) if width <= height else (side * width // height, side)
    return image.resize(size, Image.BILINEAR)


def centre(image, height, width):
    """torchvision's CenterCrop: black around what is smaller, halves rounded to even."""
    pixels = np.asarray(image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    more = [max(wanted - had, 0) for wanted, had in zip((height, width), pixels.shape)]
    pixels = np.pad(pixels, ((more[0] // 2, (more[0] + 1) // 2), (more[1] // 2, (more[1] + 1) // 2), (0, 0)))
    top = round((pixels.shape[0] - height) / 2)
    left = round((pixels.shape[1] - width) / 2)
    return pixels[top : top + height, left : left + width]


def whole(image):
    return centre(image, image.size[1], image.size[0])


CASES = {
    ("decode",): lambda image: whole(image.convert("RGB")),
    ("decode grey",): lambda image: whole(image.convert("L")),
    ("decode", "resize 64"): lambda image: whole(shorter(image.convert("RGB"), 64)),
    ("decode", "resize 33x120"):
        lambda image: whole(image.convert("RGB").resize((120, 33), Image.BILINEAR)),
    ("decode", "resize 64", "centre-crop 57"):
        lambda image: centre(shorter(image.convert("RGB"), 64), 57, 57),
    ("decode grey", "centre-crop 90x40"): lambda image: centre(image.convert("L"), 90, 40),
}


class Pictures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source, self.target = os.path.join(folder.name, "from"), os.path.join(folder.name, "to")
        os.mkdir(self.source)
        os.mkdir(self.target)

    def prepare(self, *steps):
        done = subprocess.run([PROGRAM, self.source, self.target, *steps], capture_output=True,
                              text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_every_byte_is_that_of_pillow(self):
        make_files(self.source, 60, seed=1)
        for steps, expected in CASES.items():
            self.assertEqual(self.prepare(*steps), "")
            for name in sorted(os.listdir(self.source)):
                with self.subTest(steps=steps, name=name):
                    found = np.load(os.path.join(self.target, name + ".npy"))
                    wanted = expected(Image.open(os.path.join(self.source, name)))
                    self.assertEqual(found.dtype, np.uint8)
                    np.testing.assert_array_equal(found, wanted)

    def test_what_pillow_refuses_is_refused_and_named(self):
        generator = random.Random(2)
        content = jpeg(generator, 60, 80, "RGB")
        refused = 0
        for number in range(200):
            cut = generator.randrange(len(content))
            with open(os.path.join(self.source, f"{number:03}"), "wb") as file:
                file.write(content[:cut])
        complaints = self.prepare("decode").splitlines()
        for number in range(200):
            name = f"{number:03}"
            is_there = os.path.exists(os.path.join(self.target, name + ".npy"))
            self.assertEqual(is_there, not any(line.startswith(name + ": ") for line in complaints))
            try:
                Image.open(os.path.join(self.source, name)).load()
            except (OSError, SyntaxError):
                self.assertFalse(is_there, name)
                refused += 1
        self.assertGreater(refused, 150)


    def test_inks_that_are_sampled_differently_are_refused_and_called_unsupported(self):
        pixels = noise(random.Random(4), 30, 40, 4)
        for sampling in range(3):
            path = os.path.join(self.source, f"{sampling}.jpeg")
            Image.fromarray(pixels, "CMYK").save(path, quality=75, subsampling=sampling)
        complaints = self.prepare("decode").splitlines()
        self.assertEqual([line.split(": ")[0] for line in complaints], ["1.jpeg", "2.jpeg"])
        for line in complaints:
            self.assertIn("sampled in a way that libturbojpeg does not decode", line)
            self.assertRegex(line, r"\(kUnsupported\)$")
        with Image.open(os.path.join(self.source, "0.jpeg")) as image:
            wanted = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(np.load(os.path.join(self.target, "0.jpeg.npy")), wanted)


class Torchvision(unittest.TestCase):
    def test_what_is_called_torchvision_here_is_what_it_does(self):
        try:
            from torchvision import transforms
        except ImportError as error:
            self.skipTest(str(error))
        generator = random.Random(3)
        for _ in range(100):
            size = generator.randrange(1, 90), generator.randrange(1, 90)
            image = Image.fromarray(noise(generator, *size, 3))
            side, height, width = (generator.randrange(1, 70) for _ in range(3))
            np.testing.assert_array_equal(whole(transforms.Resize(side)(image)), whole(shorter(image, side)))
            np.testing.assert_array_equal(
                whole(transforms.CenterCrop((height, width))(image)), centre(image, height, width))


if __name__ == "__main__":
    fabric_test.main()
