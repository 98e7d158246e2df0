"""What of preparing pictures differs from epoch to epoch, or makes them larger: in the reader.

    from fabricshm.prepare import Augment, Normalise

    augment = Augment(seed=1, crop=224, flip=0.5)
    normalise = Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), dtype="float16")
    number = normalise(augment(picture, epoch, index))

A picture is uint8 (height, width, channels), as the prepared files of `[[prep]]` are: a view of one is
read once, where it lies. docs/data.md, "Preparation".
"""

import numpy as np

from . import _fabricshm
from ._random import numbers_of

__all__ = ["Augment", "Normalise"]

# NumPy has no bfloat16: its bits travel as uint16.
_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_CODES = {row.name: row.code for row in _fabricshm.DTYPES}


class Augment:
    """A random cut and a random flip, which follow from (seed, epoch, index) alone: every rank, and any
    number of ranks and workers, sees the same picture.

    seed    any whole number
    crop    the sides of what is cut out, (height, width) or one number; None: nothing is cut
    flip    how probable it is that left and right are exchanged
    """

    def __init__(self, seed, *, crop=None, flip=0.5):
        if not 0 <= flip <= 1:
            raise ValueError(f"flip is {flip}; it is a probability, 0 to 1")
        self.seed = seed
        self.crop = (crop, crop) if isinstance(crop, int) else crop
        self.flip = flip

    def choice(self, shape, epoch, index):
        """(top, left, height, width, flipped) for a picture of that shape."""
        height, width = self.crop or shape[:2]
        if not (1 <= height <= shape[0] and 1 <= width <= shape[1]):
            raise ValueError(f"{height} x {width} can't be cut out of {shape[0]} x {shape[1]}")
        numbers = numbers_of(self.seed, epoch, index)
        top = next(numbers) % (shape[0] - height + 1)
        left = next(numbers) % (shape[1] - width + 1)
        return top, left, height, width, next(numbers) < self.flip * 2.0**64

    def __call__(self, picture, epoch, index):
        """A view of the picture; no byte is copied."""
        top, left, height, width, flipped = self.choice(picture.shape, epoch, index)
        cut = picture[top : top + height, left : left + width]
        return cut[:, ::-1] if flipped else cut


class Normalise:
    """(value / 255 - mean) / std in float32, then the type: the bits of torchvision's ToTensor and
    Normalize, in one pass over the picture.

    mean, std    one number for each channel
    dtype        float32, float16 or bfloat16 (as uint16, the bits of it)
    layout       "CHW", as PyTorch has it, or "HWC"
    """

    def __init__(self, mean, std, *, dtype="float32", layout="CHW"):
        if dtype not in _TYPES:
            raise ValueError(f"dtype is {dtype}; it is one of {', '.join(_TYPES)}")
        if layout not in ("CHW", "HWC"):
            raise ValueError(f"layout is {layout}; it is CHW or HWC")
        if len(mean) != len(std) or not 1 <= len(mean) <= 4 or 0 in std:
            raise ValueError("mean and std are one number for each of 1 to 4 channels, no std is 0")
        self.dtype = np.dtype(_TYPES[dtype])
        self.layout = layout
        self._code = _CODES[dtype]
        self._tables = b"".join(
            _fabricshm.pixel_table(self._code, *pair) for pair in zip(mean, std))

    def shape(self, picture):
        """Of what comes of a picture."""
        height, width, channels = picture.shape
        return (channels, height, width) if self.layout == "CHW" else (height, width, channels)

    def __call__(self, picture, out=None):
        """The numbers of a picture: a new array, or `out`, which has its size and is contiguous."""
        if out is None:
            out = np.empty(self.shape(picture), self.dtype)
        _fabricshm.map_pixels(picture, self._code, self._tables, out, self.layout == "CHW")
        return out

    def stack(self, pictures, out=None):
        """Pictures of one size as one array; the first side counts them."""
        pictures = list(pictures)
        if not pictures:
            raise ValueError("there is no picture")
        if out is None:
            out = np.empty((len(pictures), *self.shape(pictures[0])), self.dtype)
        if len(out) != len(pictures):
            raise ValueError(f"out has room for {len(out)} pictures, of {len(pictures)}")
        for picture, place in zip(pictures, out):
            self(picture, place)
        return out
