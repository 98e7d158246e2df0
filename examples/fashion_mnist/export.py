#!/usr/bin/env python3
"""Writes Fashion-MNIST as files, as image data sets mostly come: FOLDER/train/LABEL/NUMBER.jpeg.

  export.py FOLDER [--images N]
"""

import argparse
import os

from PIL import Image

import fashion_mnist


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--images", type=int, default=10_000, help="of the 60,000 (10,000)")
    options = parser.parse_args()
    images = fashion_mnist.read_idx(os.path.join(fashion_mnist.FOLDER, "train-images-idx3-ubyte.gz"))
    labels = fashion_mnist.read_idx(os.path.join(fashion_mnist.FOLDER, "train-labels-idx1-ubyte.gz"))
    for label in range(fashion_mnist.CLASSES):
        os.makedirs(os.path.join(options.folder, "train", str(label)), exist_ok=True)
    for number, (image, label) in enumerate(zip(images[: options.images], labels)):
        path = os.path.join(options.folder, "train", str(label), f"{number:05d}.jpeg")
        Image.fromarray(image).save(path, quality=90)


if __name__ == "__main__":
    main()
