"""Networks from TorchScript files: what torch.jit.trace or torch.jit.script made and saved.

Any operator of ATen is played and run as it is; control flow that depends on data is refused.
"""

import torch

from .graph import Recorder, Ref, example_input
from .model import PlacementError

_KINDS = {
    "convolution": ("conv1d", "conv2d", "conv3d", "_convolution", "convolution",
                    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    "fully_connected": ("linear", "addmm", "matmul", "mm", "bmm"),
    "activation": ("relu", "relu6", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "silu",
                   "mish", "sigmoid", "tanh", "hardtanh", "hardsigmoid", "hardswish", "softmax",
                   "log_softmax", "softplus", "logsigmoid", "clamp"),
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}

# What they say about a tensor follows from its shape and type.
_OF_SHAPE = {"size", "dim", "numel", "len", "is_floating_point", "is_complex", "stride",
             "storage_offset", "is_contiguous"}  # fmt: skip


def load(path, inputs):
    try:
        module = torch.jit.load(path, map_location="cpu").eval()
    except (RuntimeError, OSError, ValueError) as error:
        raise PlacementError(f"{path} is no TorchScript file: {str(error).splitlines()[0]}")
    if not inputs:
        raise PlacementError("a TorchScript file does not say its input: give its shape (--input)")
    player = _Player(module)
    graph = player.play([example_input(shape, seed) for seed, shape in enumerate(inputs)])
    graph.reference = _Reference(module)
    return graph


class _Reference:
    """The module itself, in one process, without what torch's optimiser might change."""

    def __init__(self, module):
        self._module = module

    def __call__(self, inputs):
        with torch.no_grad(), torch.jit.optimized_execution(False):
            result = self._module(*inputs.values())
        return _flat(result)


def _flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in _flat(part)]


class _Player:
    def __init__(self, module):
        # Freezing turns parameters into constants and drops what belongs to training.
        frozen = torch.jit.freeze(module, optimize_numerics=False) \
            if hasattr(module, "training") else module
        self._graph = frozen.graph
        torch._C._jit_pass_inline(self._graph)
        self._recorder = Recorder()
        self._parts = {}  # debug name -> what it stands for

    def play(self, examples):
        wanted = list(self._graph.inputs())[1:]  # the first is the module itself
        if len(wanted) != len(examples):
            raise PlacementError(
                f"the network has {len(wanted)} inputs, {len(examples)} shapes were given")
        for number, (value, tensor) in enumerate(zip(wanted, examples)):
            name = f"input{number}" if len(wanted) > 1 else "input"
            self._parts[value.debugName()] = self._recorder.input(name, tensor)
        for node in self._graph.nodes():
            self._node(node)
        outputs = [self._parts[value.debugName()] for value in self._graph.outputs()]
        return self._recorder.finish(outputs)

    def _node(self, node):
        space, name = node.kind().split("::")
        handler = getattr(self, f"_{space}_{name}", None)
        if handler is None and space != "aten":
            raise PlacementError(f"{node.kind()} is not supported: trace the network instead")
        parts = [self._recorder.current(self._parts[value.debugName()])
                 for value in node.inputs() if value.debugName() in self._parts]
        results = handler(node, parts) if handler else [self._call(node, name, parts)]
        for value, result in zip(node.outputs(), results):
            self._parts[value.debugName()] = result

    # ---- Nodes that compute nothing ----

    def _prim_Constant(self, node, parts):
        return [next(node.outputs()).toIValue()]

    def _prim_ListConstruct(self, node, parts):
        return [list(parts)]

    def _prim_TupleConstruct(self, node, parts):
        return [tuple(parts)]

    def _prim_ListUnpack(self, node, parts):
        return list(parts[0])

    _prim_TupleUnpack = _prim_ListUnpack

    def _prim_NumToTensor(self, node, parts):
        return [torch.tensor(parts[0])]

    def _prim_dtype(self, node, parts):
        return [self._recorder.concrete(parts[0]).dtype]

    def _prim_device(self, node, parts):
        return [torch.device("cpu")]

    def _prim_unchecked_cast(self, node, parts):
        return [parts[0]]

    def _prim_RaiseException(self, node, parts):
        raise PlacementError("the network raises an exception for this shape of input")

    def _prim_If(self, node, parts):
        """Only the branch that is taken; the condition may ask for shapes."""
        taken, other = node.blocks()
        block = taken if self._known(node, parts[0]) else other
        for inner in block.nodes():
            self._node(inner)
        return [self._parts[value.debugName()] for value in block.outputs()]

    def _aten_len(self, node, parts):
        return [len(self._recorder.concrete(parts[0]))]

    def _aten_Int(self, node, parts):
        return [int(self._known(node, parts[0]))]

    def _aten_Float(self, node, parts):
        return [float(self._known(node, parts[0]))]

    def _aten_Bool(self, node, parts):
        return [bool(self._known(node, parts[0]))]

    def _aten_ScalarImplicit(self, node, parts):
        return [self._known(node, parts[0]).item()]

    def _aten___getitem__(self, node, parts):
        return [parts[0][parts[1]]]

    def _known(self, node, part):
        if self._recorder.is_data(part):
            raise PlacementError(f"{node.kind()} depends on the data, not only on its shape")
        return part

    # ---- Operators ----

    def _call(self, node, name, parts):
        schema = torch._C.parse_schema(node.schema())
        packet = getattr(torch.ops.aten, name)
        operator = getattr(packet, schema.overload_name or "default")
        if name in _OF_SHAPE:
            return operator(*[self._recorder.concrete(part) for part in parts])
        plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        if plain != name:
            operator = self._out_of_place(plain, schema)
        split = sum(not argument.kwarg_only for argument in schema.arguments)
        names = [argument.name for argument in schema.arguments][split:]
        function = _Operator(operator, split, names)
        result = self._recorder.call(
            self._name_of(node, plain), f"aten::{plain}", _KIND_OF.get(plain, "other"), function,
            parts)
        if plain != name and isinstance(parts[0], Ref):
            self._recorder.moved(parts[0], result)
        return result

    @staticmethod
    def _out_of_place(plain, schema):
        packet = getattr(torch.ops.aten, plain, None)
        overload = schema.overload_name or "default"
        if packet is None or overload not in packet.overloads():
            raise PlacementError(f"aten::{plain}_ changes its input and has no form that does not")
        return getattr(packet, overload)

    @staticmethod
    def _name_of(node, plain):
        """layer1.0.conv1 for an operator that reads self.layer1.0.conv1.weight, else the
        operator's own name."""
        for value in node.inputs():
            owner, dot, _ = value.debugName().rpartition(".")
            if dot and owner.startswith("self."):
                return owner.removeprefix("self.")
        return plain


class _Operator:
    """An ATen operator called with all of its arguments in the schema's order."""

    def __init__(self, operator, split, names):
        self._operator = operator
        self._split = split
        self._names = names

    def __call__(self, *arguments):
        rest = dict(zip(self._names, arguments[self._split:]))
        return self._operator(*arguments[:self._split], **rest)
