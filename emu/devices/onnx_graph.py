"""Networks from ONNX files, for the operators of common image and text networks (onnx_operators.py).

The file's graph is played by PyTorch, so what comes out is what PyTorch computes.
"""

import numpy
import torch

from .graph import Recorder, example_input
from .model import PlacementError
from .onnx_operators import KIND_OF, OPERATORS, SHAPE


def load(path, inputs):
    """Raises PlacementError for what is no ONNX file, or uses what is missing here."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise PlacementError("reading ONNX files needs the package python3-onnx") from None
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise PlacementError(f"{path} is no ONNX file: {str(error).splitlines()[0]}") from None
    except Exception as error:  # protobuf's own
        if type(error).__name__ != "DecodeError":
            raise
        raise PlacementError(f"{path} is no ONNX file: {error}") from None
    player = _Player(model, numpy_helper)
    graph = player.play(inputs)
    # Nothing else here computes such files: runs are compared with the graph in one process.
    graph.reference = lambda values: graph.run_all(values)
    return graph


class _Player:
    def __init__(self, model, numpy_helper):
        self._graph = model.graph
        self._helper = numpy_helper
        self._recorder = Recorder()
        self._parts = {"": None}  # an input that is left out has no name
        for tensor in self._graph.initializer:
            self._parts[tensor.name] = self._tensor(tensor)

    def _tensor(self, tensor):
        # A copy: the file's bytes can't be written, and PyTorch warns of that.
        return torch.from_numpy(numpy.array(self._helper.to_array(tensor)))

    def play(self, shapes):
        wanted = [value for value in self._graph.input if value.name not in self._parts]
        if shapes and len(shapes) != len(wanted):
            raise PlacementError(
                f"the network has {len(wanted)} inputs, {len(shapes)} shapes were given")
        for seed, value in enumerate(wanted):
            shape = shapes[seed] if shapes else self._shape_of(value)
            element = self._dtype_of(value)
            self._parts[value.name] = self._recorder.input(
                value.name, example_input(shape, seed, element))
        for node in self._graph.node:
            self._node(node)
        return self._recorder.finish([self._parts[value.name] for value in self._graph.output])

    @staticmethod
    def _shape_of(value):
        lengths = [length.dim_value for length in value.type.tensor_type.shape.dim]
        if not lengths or not all(length > 0 for length in lengths):
            raise PlacementError(f"the file leaves the shape of {value.name} open: give --input")
        return lengths

    @staticmethod
    def _dtype_of(value):
        import onnx

        number = value.type.tensor_type.elem_type
        return torch.from_numpy(numpy.empty(0, onnx.mapping.TENSOR_TYPE_TO_NP_TYPE[number])).dtype

    def _attribute(self, attribute):
        import onnx

        value = onnx.helper.get_attribute_value(attribute)
        if attribute.type == onnx.AttributeProto.TENSOR:
            return self._tensor(value)
        if attribute.type == onnx.AttributeProto.STRING:
            return value.decode()
        return list(value) if hasattr(value, "__len__") else value

    def _node(self, node):
        attributes = {one.name: self._attribute(one) for one in node.attribute}
        parts = [self._recorder.current(self._parts[name]) for name in node.input]
        results = self._results(node, attributes, parts)
        if not isinstance(results, (list, tuple)):
            results = [results]
        for name, result in zip(node.output, results):
            self._parts[name] = result

    def _results(self, node, attributes, parts):
        if node.op_type == "Constant":
            value = next(iter(attributes.values()))
            return value if isinstance(value, torch.Tensor) else torch.tensor(value)
        if node.op_type == "Shape":
            return SHAPE(self._recorder.concrete(parts[0]))
        # Dropout is for training: afterwards it does nothing.
        if node.op_type in ("Identity", "Dropout"):
            return parts[0]
        make = OPERATORS.get(node.op_type)
        if make is None:
            raise PlacementError(
                f"the ONNX operator {node.op_type} is not supported; there are"
                f" {', '.join(sorted(OPERATORS))}")
        name = node.name.strip("/").replace("/", ".") or node.op_type.lower()
        return self._recorder.call(
            name, f"onnx::{node.op_type}", KIND_OF.get(node.op_type, "other"), make(attributes),
            parts)
