"""What does preparing pictures cost, and what does it save? Three questions, each asked in turn, round by
round; medians and ratios.

  decode    pictures a second of one processor: ours, Pillow's, and what tjbench says of the library alone
  pipeline  decode, resize 256, centre-crop 224 of 500 x 375: ours against Pillow
  training  a set of small JPEGs: files and Pillow under a DataLoader with two workers, against arrays that
            were prepared before (a memory map of one file; the cache's views are measured elsewhere)

Processor time counts and not the clock's, so that other programs on the machine do little harm; of the
third question both are wall time. Prints a table, with --json one line of JSON."""

import argparse
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import fingerprint  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SKIPPED = 77
SIZES = {"500x375": (375, 500, 4), "224x224": (224, 224, 16), "28x28": (28, 28, 256)}
PIPELINE = ("decode", "resize 256", "centre-crop 224")

try:
    import numpy as np
    from PIL import Image
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(SKIPPED)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="build folder to measure")
    parser.add_argument("--rounds", type=int, default=5, help="all contenders in turn (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one sample (default 1)")
    parser.add_argument("--samples", type=int, default=10000, help="of the set of the third question")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


def write_pictures(folder, height, width, count):
    """Smooth, with some noise: about as many bytes a pixel as photographs of quality 90."""
    random = np.random.default_rng(1)
    down, across = np.mgrid[:height, :width]
    for number in range(count):
        smooth = [60 * np.sin(down / (7 + number % 5) + colour) + 60 * np.cos(across / (9 + number % 7))
                  for colour in range(3)]
        noise = 12 * random.standard_normal((height, width))
        pixels = (np.stack(smooth, -1) + noise[..., None] + 128).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(os.path.join(folder, f"{number:05}.jpg"), quality=90)


def contents(folder):
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found.append(file.read())
    return found


def ours(given, folder, steps):
    program = os.path.join(given.build, "bench", "bench_preparation")
    done = subprocess.run([program, folder, str(given.seconds), *steps], capture_output=True, text=True,
                          timeout=600, check=True)
    found = json.loads(done.stdout)
    return found["files"] / found["processor_seconds"]


def decoded(content):
    return Image.open(io.BytesIO(content)).convert("RGB")


def cut_to_224(content):
    image = decoded(content)
    width, height = image.size
    size = (256 * width // height, 256) if height <= width else (256, 256 * height // width)
    image = image.resize(size, Image.BILINEAR)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    return image.crop((left, top, left + 224, top + 224))


def pillow(given, files, function):
    begin, clock, done = time.thread_time(), time.monotonic(), 0
    while time.monotonic() - clock < given.seconds or done < len(files):
        np.asarray(function(files[done % len(files)]))
        done += 1
    return done / (time.thread_time() - begin)


def tjbench(given, folder, pixels):
    """Of its first file; by its clock, made processor time by what share of it the program had."""
    if shutil.which("tjbench") is None:
        return None
    name = os.path.join(folder, sorted(os.listdir(folder))[0])
    before, begin = os.times(), time.monotonic()
    done = subprocess.run(["tjbench", name, "-quiet", "-nowrite", "-rgb", "-benchtime", str(given.seconds),
                           "-warmup", "0.2"], capture_output=True, text=True, timeout=600, check=True)
    after, elapsed = os.times(), time.monotonic() - begin
    had = (after.children_user - before.children_user + after.children_system - before.children_system) / elapsed
    megapixels = float(re.findall(r"([\d.]+)\s*$", done.stdout.strip())[0])
    return megapixels * 1e6 / pixels / max(had, 1e-3)


class Files:
    """A set as most are: a path for each sample, opened and decoded when it is asked for."""

    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            return np.asarray(image.convert("RGB"))


def loader_rate(folder, workers):
    from torch.utils.data import DataLoader

    data = Files(folder)
    begin, seen = time.monotonic(), 0
    for batch in DataLoader(data, batch_size=64, shuffle=True, num_workers=workers):
        seen += len(batch)
    assert seen == len(data)
    return seen / (time.monotonic() - begin)


def prepared_rates(path, seconds):
    """(single views, batches of 64) a second, of a memory map in the order of a permutation."""
    import torch

    samples = np.load(path, mmap_mode="r")
    base = np.asarray(samples)
    order = np.random.default_rng(1).permutation(len(samples))
    views, begin, done = 0, time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        for index in order[:5000]:
            views += base[index].shape[0] > 0
        done += min(5000, len(order))
    single = done / (time.monotonic() - begin)
    begin, done = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        for first in range(0, len(order), 64):
            done += len(torch.from_numpy(base[order[first : first + 64]]))
    return single, done / (time.monotonic() - begin)


def measure_training(given, folder):
    small = os.path.join(folder, "small")
    os.mkdir(small)
    write_pictures(small, 28, 28, given.samples)
    stacked = np.stack([np.asarray(decoded(content)) for content in contents(small)])
    np.save(os.path.join(folder, "small.npy"), stacked)
    found = {"files and Pillow, 2 workers": [], "prepared, views": [], "prepared, batches": []}
    for _ in range(max(given.rounds // 2, 1)):
        found["files and Pillow, 2 workers"].append(loader_rate(small, 2))
        views, batches = prepared_rates(os.path.join(folder, "small.npy"), given.seconds)
        found["prepared, views"].append(views)
        found["prepared, batches"].append(batches)
    return found


def measure_pictures(given, folder):
    found = {}
    for size, (height, width, count) in SIZES.items():
        place = os.path.join(folder, size)
        os.mkdir(place)
        write_pictures(place, height, width, count)
        files = contents(place)
        contenders = {f"decode {size}, ours": lambda place=place: ours(given, place, ["decode"]),
                      f"decode {size}, Pillow": lambda files=files: pillow(given, files, decoded)}
        if shutil.which("tjbench"):
            contenders[f"decode {size}, tjbench"] = (
                lambda place=place, pixels=height * width: tjbench(given, place, pixels))
        if size == "500x375":
            contenders["pipeline, ours"] = lambda place=place: ours(given, place, PIPELINE)
            contenders["pipeline, Pillow"] = lambda files=files: pillow(given, files, cut_to_224)
        for turn in range(given.rounds):
            for name in list(contenders) if turn % 2 == 0 else list(contenders)[::-1]:
                found.setdefault(name, []).append(contenders[name]())
    return found


RATIOS = ([(f"decode {size}, ours", f"decode {size}, {other}") for size in SIZES
           for other in ("Pillow", "tjbench")]
          + [("pipeline, ours", "pipeline, Pillow"),
             ("prepared, views", "files and Pillow, 2 workers"),
             ("prepared, batches", "files and Pillow, 2 workers")])


def main():
    given = options()
    with tempfile.TemporaryDirectory(prefix="fabric-preparation-") as folder:
        found = measure_pictures(given, folder)
        try:
            found.update(measure_training(given, folder))
        except ImportError as error:
            print(f"preparation: without the third question: {error}", file=sys.stderr)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    ratios = {f"{one} / {other}": statistics.median(a / b for a, b in zip(found[one], found[other]))
              for one, other in RATIOS if one in found and other in found}
    if given.json:
        print(json.dumps({"per_second": medians, "ratios": ratios,
                          "machine": fingerprint.fingerprint(ROOT, {})}))
        return
    for name, rate in medians.items():
        print(f"{name:32} {rate:12,.0f} /s")
    for name, ratio in ratios.items():
        print(f"{name:64} {ratio:8.2f}")


if __name__ == "__main__":
    main()
