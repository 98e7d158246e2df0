"""The tensors of models whose steps are measured, by name: lists of shapes."""

from math import prod


def _convolution(inputs, outputs, width):
    # A batch normalisation behind each.
    return [(outputs, inputs, width, width), (outputs,), (outputs,)]


def resnet50():
    """25,557,032 parameters in 161 tensors (He et al. 2015)."""
    shapes, inputs = _convolution(3, 64, 7), 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            shapes += _convolution(inputs, inner, 1) + _convolution(inner, inner, 3)
            shapes += _convolution(inner, 4 * inner, 1)
            if block == 0:
                shapes += _convolution(inputs, 4 * inner, 1)
            inputs = 4 * inner
    return shapes + [(1000, inputs), (1000,)]


def gpt2():
    """124,439,808 parameters in 148 tensors (GPT-2 small, Radford et al. 2019); the output layer is the
    embedding."""
    width = 768
    layer = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,),
             (width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width)] + 12 * layer + [(width,), (width,)]


def tiny():
    """Enough for every contender to do everything once."""
    return [(100, 330), (330,), (330, 200), (200,), (200, 10), (10,)]


MODELS = {"resnet50": resnet50, "gpt2": gpt2, "tiny": tiny}


def elements_of(shapes):
    """Parameters of a model."""
    return sum(prod(shape) for shape in shapes)
