"""ONNX operators as PyTorch computes them: for each a maker that takes the node's attributes and gives
a function of its inputs."""

import torch
from torch.nn import functional

from .model import PlacementError

KIND_OF = {
    "Conv": "convolution", "ConvTranspose": "convolution",
    "Gemm": "fully_connected", "MatMul": "fully_connected",
    "Relu": "activation", "LeakyRelu": "activation", "PRelu": "activation", "Elu": "activation",
    "Selu": "activation", "Sigmoid": "activation", "HardSigmoid": "activation",
    "HardSwish": "activation", "Tanh": "activation", "Clip": "activation", "Softmax": "activation",
    "LogSoftmax": "activation", "Softplus": "activation", "Erf": "activation",
}  # fmt: skip


def SHAPE(tensor):
    """Known without the data, so it becomes a constant."""
    return torch.tensor(tensor.shape)


def _pads(attributes, dimensions):
    """(begin, end) per dimension of space."""
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise PlacementError(f"auto_pad {attributes['auto_pad']} is not supported")
    pads = attributes.get("pads", [0] * 2 * dimensions)
    return list(zip(pads[:dimensions], pads[dimensions:]))


def _padded(data, pads, value, always=False):
    """The data and the padding that the operation itself can do: the same at both ends."""
    if not always and all(begin == end for begin, end in pads):
        return data, [begin for begin, _ in pads]
    # functional.pad begins with the last dimension.
    flat = [length for pair in reversed(pads) for length in pair]
    return functional.pad(data, flat, value=value), [0] * len(pads)


def _conv(attributes):
    def run(data, weight, bias=None):
        space = data.dim() - 2
        data, padding = _padded(data, _pads(attributes, space), 0.0)
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[space - 1]
        return convolve(
            data, weight, bias, attributes.get("strides", [1] * space), padding,
            attributes.get("dilations", [1] * space), attributes.get("group", 1))

    return run


def _conv_transpose(attributes):
    def run(data, weight, bias=None):
        space = data.dim() - 2
        pads = _pads(attributes, space)
        if any(begin != end for begin, end in pads) or "output_shape" in attributes:
            raise PlacementError("ConvTranspose with uneven pads or output_shape is not supported")
        convolve = (
            functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
        return convolve[space - 1](
            data, weight, bias, attributes.get("strides", [1] * space),
            [begin for begin, _ in pads], attributes.get("output_padding", [0] * space),
            attributes.get("group", 1), attributes.get("dilations", [1] * space))

    return run


def _max_pool(attributes):
    def run(data):
        space = len(attributes["kernel_shape"])
        # -inf: padding never is the largest.
        data, padding = _padded(data, _pads(attributes, space), float("-inf"))
        pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[space - 1]
        return pool(
            data, attributes["kernel_shape"], attributes.get("strides", [1] * space), padding,
            attributes.get("dilations", [1] * space), bool(attributes.get("ceil_mode", 0)))

    return run


def _average_pool(attributes):
    def run(data):
        kernel = attributes["kernel_shape"]
        pads = _pads(attributes, len(kernel))
        counts = bool(attributes.get("count_include_pad", 0))
        # What is padded beforehand counts as data.
        if any(begin != end for begin, end in pads) and not counts:
            raise PlacementError("AveragePool with uneven pads is not supported")
        data, padding = _padded(data, pads, 0.0)
        pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
        return pool[len(kernel) - 1](
            data, kernel, attributes.get("strides", [1] * len(kernel)), padding,
            bool(attributes.get("ceil_mode", 0)), counts)

    return run


def _gemm(attributes):
    def run(a, b, c=None):
        a = a.t() if attributes.get("transA", 0) else a
        b = b.t() if attributes.get("transB", 0) else b
        alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
        return alpha * (a @ b) if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)

    return run


def _batch_norm(attributes):
    def run(data, scale, bias, mean, variance):
        return functional.batch_norm(
            data, mean, variance, scale, bias, False, 0.0, attributes.get("epsilon", 1e-5))

    return run


def _layer_norm(attributes):
    def run(data, scale, bias=None):
        axis = attributes.get("axis", -1) % data.dim()
        return functional.layer_norm(
            data, data.shape[axis:], scale, bias, attributes.get("epsilon", 1e-5))

    return run


def _clip(attributes):
    def run(data, low=None, high=None):
        low = attributes.get("min") if low is None else low.item()
        high = attributes.get("max") if high is None else high.item()
        return data if low is None and high is None else torch.clamp(data, low, high)

    return run


def _axes(attributes, given, count=0):
    """An attribute in older files, an input in newer ones; all `count` where there is neither."""
    axes = attributes.get("axes") if given is None else given.tolist()
    return list(range(count)) if axes is None else axes


def _reshape(attributes):
    def run(data, shape):
        lengths = shape.tolist()
        keep_zero = attributes.get("allowzero", 0)
        return data.reshape([data.shape[i] if length == 0 and not keep_zero else length
                             for i, length in enumerate(lengths)])  # fmt: skip

    return run


def _flatten(attributes):
    def run(data):
        axis = attributes.get("axis", 1) % (data.dim() + 1)
        rows = 1
        for length in data.shape[:axis]:
            rows *= length
        return data.reshape(rows, -1)

    return run


def _squeeze(attributes):
    def run(data, axes=None):
        if axes is None and "axes" not in attributes:
            return data.squeeze()
        # From the last on, so that the others keep their places.
        for axis in sorted((a % data.dim() for a in _axes(attributes, axes)), reverse=True):
            data = data.squeeze(axis)
        return data

    return run


def _unsqueeze(attributes):
    def run(data, axes=None):
        wanted = _axes(attributes, axes)
        # From the first on: they are places in the result.
        for axis in sorted(a % (data.dim() + len(wanted)) for a in wanted):
            data = data.unsqueeze(axis)
        return data

    return run


def _reduce_mean(attributes):
    def run(data, axes=None):
        return data.mean(_axes(attributes, axes, data.dim()), bool(attributes.get("keepdims", 1)))

    return run


def _slice(attributes):
    def run(data, starts=None, ends=None, axes=None, steps=None):
        starts = attributes["starts"] if starts is None else starts.tolist()
        ends = attributes["ends"] if ends is None else ends.tolist()
        axes = _axes(attributes, axes, len(starts))
        steps = [1] * len(starts) if steps is None else steps.tolist()
        if any(step < 1 for step in steps):
            raise PlacementError("Slice backwards is not supported")
        index = [slice(None)] * data.dim()
        for axis, start, end, step in zip(axes, starts, ends, steps):
            index[axis % data.dim()] = slice(start, end, step)
        return data[tuple(index)]

    return run


def _split(attributes):
    def run(data, lengths=None):
        axis = attributes.get("axis", 0)
        lengths = attributes.get("split") if lengths is None else lengths.tolist()
        if lengths is None:
            raise PlacementError("Split without lengths is not supported")
        return list(torch.split(data, lengths, axis))

    return run


def _pad(attributes):
    def run(data, pads=None, value=None):
        if attributes.get("mode", "constant") != "constant":
            raise PlacementError(f"Pad of mode {attributes['mode']} is not supported")
        pads = attributes["pads"] if pads is None else pads.tolist()
        value = attributes.get("value", 0.0) if value is None else value.item()
        return _padded(data, list(zip(pads[:data.dim()], pads[data.dim():])), value, always=True)[0]

    return run


def _gather(attributes):
    def run(data, indices):
        axis = attributes.get("axis", 0) % data.dim()
        # Indices may count from the end.
        flat = data.index_select(axis, indices.reshape(-1) % data.shape[axis])
        return flat.reshape(*data.shape[:axis], *indices.shape, *data.shape[axis + 1:])

    return run


def _cast(attributes):
    def run(data):
        from onnx.mapping import TENSOR_TYPE_TO_NP_TYPE

        return data.to(torch.from_numpy(data.new_empty(0).numpy().astype(
            TENSOR_TYPE_TO_NP_TYPE[attributes["to"]])).dtype)

    return run


def _softmax(function):
    return lambda attributes: lambda data: function(data, attributes.get("axis", -1))


def _transpose(attributes):
    return lambda data: data.permute(attributes.get("perm", range(data.dim())[::-1]))


def _plain(function):
    """An operator without attributes."""
    return lambda attributes: function


def _divide(a, b):
    """Whole numbers are divided towards zero, as ONNX has it."""
    whole = not a.is_floating_point() and not b.is_floating_point()
    return torch.div(a, b, rounding_mode="trunc") if whole else torch.div(a, b)


OPERATORS = {
    "Add": _plain(torch.add), "Sub": _plain(torch.sub), "Mul": _plain(torch.mul),
    "Div": _plain(_divide), "Pow": _plain(torch.pow), "Sqrt": _plain(torch.sqrt),
    "Exp": _plain(torch.exp), "Erf": _plain(torch.erf), "Neg": _plain(torch.neg),
    "MatMul": _plain(torch.matmul), "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv_transpose,
    "Relu": _plain(torch.relu), "Sigmoid": _plain(torch.sigmoid), "Tanh": _plain(torch.tanh),
    "Softplus": _plain(functional.softplus), "HardSwish": _plain(functional.hardswish),
    "PRelu": _plain(lambda data, slope: torch.where(data < 0, data * slope, data)),
    "LeakyRelu": lambda a: lambda data: functional.leaky_relu(data, a.get("alpha", 0.01)),
    "Elu": lambda a: lambda data: functional.elu(data, a.get("alpha", 1.0)),
    "Selu": _plain(functional.selu),
    "HardSigmoid": lambda a: lambda data: torch.clamp(
        data * a.get("alpha", 0.2) + a.get("beta", 0.5), 0, 1),
    "Clip": _clip, "Softmax": _softmax(torch.softmax), "LogSoftmax": _softmax(torch.log_softmax),
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm,
    "MaxPool": _max_pool, "AveragePool": _average_pool,
    "GlobalAveragePool": _plain(lambda data: data.mean(list(range(2, data.dim())), True)),
    "ReduceMean": _reduce_mean, "Concat": lambda a: lambda *parts: torch.cat(parts, a["axis"]),
    "Flatten": _flatten, "Reshape": _reshape, "Transpose": _transpose, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze, "Slice": _slice, "Split": _split, "Gather": _gather, "Cast": _cast,
    "Pad": _pad,
}  # fmt: skip
