"""A network that can run: its layers with the functions and weights behind them.

A file is played once with an example micro-batch (`Recorder`). Whatever depends on the example's data
becomes a layer; what depends only on its shape is computed then and kept as a constant. So a graph
is for micro-batches of one shape.
"""

import dataclasses
import math

import torch

from .model import Layer, Network, PlacementError

_ALIGNMENT = 64  # of each weight in the device's memory


@dataclasses.dataclass(frozen=True)
class Ref:
    """Stands for a value in the arguments of a layer."""

    value: str


@dataclasses.dataclass(frozen=True)
class Weight:
    """Stands for a constant tensor in the arguments of a layer."""

    number: int


@dataclasses.dataclass
class Operation:
    """What a layer does: function(*arguments), with Refs and Weights for tensors."""

    function: object
    arguments: tuple

    def weights(self):
        return sorted({part.number for part in _parts(self.arguments) if isinstance(part, Weight)})


@dataclasses.dataclass
class Graph:
    """network.layers[i] runs as operations[i]. example: the values of the inputs it was played with;
    specs: value -> (shape, torch dtype)."""

    network: Network
    operations: list
    weights: list
    specs: dict
    example: dict

    def run(self, first, last, values, weights=None):
        """Layers [first, last): reads from `values` and puts the outputs there."""
        weights = self.weights if weights is None else weights
        for layer, operation in zip(
                self.network.layers[first:last], self.operations[first:last]):
            result = operation.function(*_resolved(operation.arguments, values, weights))
            results = result if isinstance(result, (list, tuple)) else (result,)
            # Outputs that are not read have been dropped from the layer's list, not from the end.
            for value, tensor in zip(operation_outputs(layer, operation), results):
                if value is not None:
                    values[value] = tensor

    def run_all(self, inputs):
        """The outputs of the network for one micro-batch, in this process."""
        values = dict(inputs)
        self.run(0, len(self.operations), values)
        return [values[value] for value in self.network.outputs]


def operation_outputs(layer, operation):
    """With a place for each result: the layer's own list lacks outputs that are not read."""
    return getattr(operation, "outputs", layer.outputs)


def _parts(arguments):
    """Arguments one by one, whatever lists they are in."""
    for part in arguments:
        if isinstance(part, (list, tuple)):
            yield from _parts(part)
        else:
            yield part


def _resolved(part, values, weights):
    """The same arguments with tensors in the places of Refs and Weights."""
    if isinstance(part, (list, tuple)):
        return [_resolved(inner, values, weights) for inner in part]
    if isinstance(part, Ref):
        return values[part.value]
    return weights[part.number] if isinstance(part, Weight) else part


def tensor_bytes(tensor):
    return tensor.numel() * tensor.element_size()


class Recorder:
    """Takes down what a file's operations do to an example."""

    def __init__(self):
        self.weights = []
        self._weight_of = {}  # storage and shape -> number: what layers share is kept once
        self._layers = []
        self._operations = []
        self._values = {}
        self._specs = {}
        self._moved = {}
        self._names = set()
        self.inputs = []

    def input(self, name, tensor):
        """What it goes into becomes layers; what it does not reach is computed at once."""
        self.inputs.append(name)
        return self._value(name, tensor)

    def _value(self, name, tensor):
        self._values[name] = tensor
        self._specs[name] = (tuple(tensor.shape), tensor.dtype)
        return Ref(name)

    def concrete(self, part):
        """What `part` was for the example."""
        return _resolved(part, self._values, self.weights)

    def is_data(self, part):
        return any(isinstance(inner, Ref) for inner in _parts([part]))

    def moved(self, old, new):
        """An operation in place: readers of `old` from now on mean `new`."""
        self._moved[old.value] = new.value

    def current(self, part):
        if isinstance(part, (list, tuple)):
            return type(part)(self.current(inner) for inner in part)
        while isinstance(part, Ref) and part.value in self._moved:
            part = Ref(self._moved[part.value])
        return part

    def constant(self, part):
        """Constant tensors of some size become weights; what is small stays in the argument."""
        if isinstance(part, (list, tuple)):
            return type(part)(self.constant(inner) for inner in part)
        if not isinstance(part, torch.Tensor) or part.numel() <= 1:
            return part
        # Another shape or stride of the same storage is another weight.
        key = (part.data_ptr(), tuple(part.shape), part.stride(), part.dtype)
        if key not in self._weight_of:
            self._weight_of[key] = len(self.weights)
            self.weights.append(part.detach().contiguous())
        return Weight(self._weight_of[key])

    def call(self, name, operation, kind, function, arguments):
        """Plays one operation. Returns Refs for its tensors (a list when it has several), or the
        result itself when no data went in."""
        arguments = self.current(tuple(arguments))
        if not self.is_data(arguments):
            return function(*self.concrete(arguments))
        arguments = self.constant(arguments)
        concrete = self.concrete(arguments)
        result = function(*concrete)
        results = result if isinstance(result, (list, tuple)) else [result]
        if not all(isinstance(tensor, torch.Tensor) for tensor in results):
            raise PlacementError(f"{operation} depends on the data, not only on its shape")
        name = self._unique(name)
        outputs = [name if len(results) == 1 else f"{name}:{i}" for i in range(len(results))]
        refs = [self._value(value, tensor) for value, tensor in zip(outputs, results)]
        self._add(name, operation, kind, function, arguments, concrete, results, outputs)
        return refs if isinstance(result, (list, tuple)) else refs[0]

    def _add(self, name, operation, kind, function, arguments, concrete, results, outputs):
        recorded = Operation(function, arguments)
        weight_bytes = sum(
            -(-tensor_bytes(self.weights[number]) // _ALIGNMENT) * _ALIGNMENT
            for number in recorded.weights())
        reads = dict.fromkeys(p.value for p in _parts(arguments) if isinstance(p, Ref))
        self._layers.append(Layer(
            name, kind, operation, flops_of(kind, operation, concrete, results), weight_bytes,
            tuple(reads), tuple(outputs)))
        self._operations.append(recorded)

    def _unique(self, name):
        """Names in files may repeat."""
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        return unique

    def finish(self, outputs):
        """The graph of what the outputs (Refs) need."""
        outputs = [part for part in _parts([self.current(outputs)])]
        if not outputs or not all(isinstance(part, Ref) for part in outputs):
            raise PlacementError("the network puts out something that is no tensor of its data")
        wanted = {part.value for part in outputs}
        # Backwards: a layer is kept when one that is kept reads it.
        keep = []
        for i in range(len(self._layers) - 1, -1, -1):
            if wanted.intersection(self._layers[i].outputs):
                wanted.update(self._layers[i].inputs)
                keep.append(i)
        keep.reverse()
        layers, operations = [], []
        for i in keep:
            operation = self._operations[i]
            # All places stay, so that results and values keep their pairs; unread ones are None.
            operation.outputs = tuple(
                v if v in wanted else None for v in self._layers[i].outputs)
            layers.append(dataclasses.replace(
                self._layers[i], outputs=tuple(v for v in operation.outputs if v is not None)))
            operations.append(operation)
        used = [name for name in self.inputs if name in wanted]
        sizes = {name: math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
                 for name, (shape, dtype) in self._specs.items() if name in wanted}
        network = Network(tuple(layers), tuple(used), tuple(p.value for p in outputs), sizes)
        example = {name: self._values[name] for name in used}
        specs = {name: spec for name, spec in self._specs.items() if name in wanted}
        # The example's values are large, and they are not read again.
        self._values = {}
        return Graph(network, operations, self.weights, specs, example)


def flops_of(kind, operation, arguments, results):
    """Operations, a multiplication and an addition being two."""
    out = results[0].numel()
    tensors = [part for part in _parts(arguments) if isinstance(part, torch.Tensor)]
    if kind == "convolution":
        data, weight = tensors[0], tensors[1]
        # Transposed convolutions spread each input over the kernel, others gather each output.
        spread = "ranspose" in operation and weight.shape[0] == data.shape[1]
        per_element = weight[0].numel()
        return 2 * (data.numel() if spread else out) * per_element
    if kind == "fully_connected":
        # addmm has the bias in front; the contracted length is the last one of the data.
        data = tensors[1] if operation.endswith("addmm") else tensors[0]
        return 2 * out * data.shape[-1]
    # One for each element of the largest tensor.
    return max([out] + [tensor.numel() for tensor in tensors])


def load(path, inputs):
    """The graph of a TorchScript or ONNX file. inputs: shapes of the micro-batch, one per input of
    the network; may be empty for ONNX files that say them."""
    # Here and not above: both are made of what this file has, and ONNX may not be installed.
    if path.endswith(".onnx"):
        from . import onnx_graph as reader
    else:
        from . import torchscript as reader
    try:
        with torch.no_grad():
            return reader.load(path, inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        # What PyTorch says of an input that the network can't take.
        raise PlacementError(f"{path} can't be played: {error}") from error


def example_input(shape, seed, dtype=torch.float32):
    """Numbers for an input: normal for floating-point types, small whole ones for the others."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator, dtype=dtype)
