"""Four small but real trainings: what each learns, from which data, and how.

A workload has a model, an optimiser and `batch(step, rank, world)`, a function of its arguments
alone, so that two runs see the same data whatever the backend does.
"""

import os
import sys
from dataclasses import dataclass
from typing import Callable

import torch
from torch import nn
from torch.nn import functional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "examples", "fashion_mnist"))

import fashion_mnist  # noqa: E402

WORDNET = "/usr/share/wordnet/data.noun"
GLOSS_CHARACTERS = 300_000  # enough for every step of the test, read in a moment


@dataclass
class Workload:
    """`load` returns the data; the other functions get it as their first argument."""

    load: Callable
    model: Callable
    optimizer: Callable
    batch: Callable  # (data, generator) -> inputs, targets
    steps: dict  # by number of ranks
    loss: Callable = functional.cross_entropy

    def draw(self, data, step, rank):
        generator = torch.Generator().manual_seed(1_000_003 * step + rank)
        return self.batch(data, generator)


def pick(data, generator, count):
    inputs, targets = data
    chosen = torch.randint(len(inputs), (count,), generator=generator)
    return inputs[chosen], targets[chosen]


def momentum(rate):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9)


# ---- digits: a multilayer perceptron -----------------------------------------------------------


def load_digits():
    from sklearn.datasets import load_digits as sklearn_digits

    images, labels = sklearn_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def digits_model():
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


# ---- glosses: a character transformer ----------------------------------------------------------


def load_glosses():
    """The definitions of WordNet's nouns as one text of characters, numbered by frequency of use."""
    glosses, length = [], 0
    with open(WORDNET, encoding="ascii", errors="ignore") as file:
        for line in file:
            if line.startswith("  "):  # the licence at the top
                continue
            glosses.append(line.rsplit("| ", 1)[-1].strip())
            length += len(glosses[-1]) + 1
            if length > GLOSS_CHARACTERS:
                break
    text = "\n".join(glosses).encode("ascii")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def gloss_batch(text, generator, count=8, length=64):
    starts = torch.randint(len(text) - length - 1, (count, 1), generator=generator)
    windows = text[starts + torch.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # Without biases: a key's bias has a gradient of zero but for rounding, which Adam would
        # blow up to whole steps, different for every order of summation.
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.attend(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        x = x + self.merge(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))


class CharTransformer(nn.Module):
    def __init__(self, width=128, layers=2, heads=4, length=64, characters=128):
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.scores = nn.Linear(width, characters)

    def forward(self, text):
        x = self.characters(text) + self.positions(torch.arange(text.shape[1]))
        return self.scores(self.blocks(x)).transpose(1, 2)  # classes come second for the loss


# ---- ResNet-50 ---------------------------------------------------------------------------------


def load_large_images():
    """Fashion-MNIST at 64 x 64 in three channels; 512 images are more than the steps draw."""
    images, labels = fashion_mnist.load("t10k")
    large = functional.interpolate(images[:512], size=64, mode="bilinear", align_corners=False)
    return large.expand(-1, 3, -1, -1).contiguous(), labels[:512]


def resnet50():
    from torchvision.models import resnet50 as build

    # Residual branches that begin at zero keep the first steps well-conditioned. Without, a change
    # of one gradient in its last bit has grown to 3 % of the weights three steps later.
    return build(weights=None, zero_init_residual=True)


WORKLOADS = {
    "digits_mlp": Workload(
        load=load_digits,
        model=digits_model,
        optimizer=momentum(0.05),
        batch=lambda data, generator: pick(data, generator, 32),
        steps={2: 100, 4: 100},
    ),
    "fashion_cnn": Workload(
        load=lambda: fashion_mnist.load("t10k"),
        model=fashion_mnist.Cnn,
        optimizer=momentum(0.02),
        batch=lambda data, generator: pick(data, generator, 32),
        steps={2: 40, 4: 25},
    ),
    "gloss_transformer": Workload(
        load=load_glosses,
        model=CharTransformer,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, eps=1e-6),
        batch=gloss_batch,
        steps={2: 30, 4: 20},
    ),
    "resnet50": Workload(
        load=load_large_images,
        model=resnet50,
        optimizer=momentum(0.01),
        batch=lambda data, generator: pick(data, generator, 2),
        steps={2: 4, 4: 2},
    ),
}
