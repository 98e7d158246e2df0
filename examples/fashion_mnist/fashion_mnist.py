"""Fashion-MNIST from Debian's package dataset-fashion-mnist, and a small CNN for it."""

import gzip
import os
import struct

import numpy
import torch
from torch import nn
from torch.nn import functional

FOLDER = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
MEAN, DEVIATION = 0.2860, 0.3530  # of the training images, scaled to 0..1
CLASSES = 10


def read_idx(path):
    """An array from an idx file: two zero bytes, type, number of dimensions, the dimensions as
    big-endian 32-bit words, the elements in row-major order."""
    with gzip.open(path, "rb") as file:
        zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
        if zero != 0 or kind != 0x08:  # 0x08: unsigned bytes, the only type this data set has
            raise ValueError(f"{path} is not an idx file of bytes")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        return numpy.frombuffer(bytearray(file.read()), dtype=numpy.uint8).reshape(shape)


def load(split):
    """Images as float32 [n, 1, 28, 28], normalised, and labels. `split` is "train" or "t10k"."""
    try:
        images = read_idx(os.path.join(FOLDER, f"{split}-images-idx3-ubyte.gz"))
        labels = read_idx(os.path.join(FOLDER, f"{split}-labels-idx1-ubyte.gz"))
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing: apt install dataset-fashion-mnist")
    scaled = torch.from_numpy(images).float().div_(255).sub_(MEAN).div_(DEVIATION)
    return scaled.unsqueeze(1), torch.from_numpy(labels).long()


class Cnn(nn.Module):
    """Two convolutions, two fully connected layers: 421,642 parameters."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * 7 * 7, 128)
        self.scores = nn.Linear(128, CLASSES)

    def forward(self, images):
        features = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        features = functional.max_pool2d(functional.relu(self.conv2(features)), 2)
        return self.scores(functional.relu(self.hidden(features.flatten(1))))


@torch.no_grad()
def count_correct(model, images, labels, batch=500):
    """Of the images, how many the model names right. In parts, for the memory."""
    correct = 0
    for first in range(0, len(images), batch):
        scores = model(images[first : first + batch])
        correct += (scores.argmax(1) == labels[first : first + batch]).sum().item()
    return correct
