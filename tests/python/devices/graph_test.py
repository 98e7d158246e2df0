"""Networks from TorchScript and ONNX files: the same numbers as PyTorch's own, and honest refusals."""

import os
import sys
import tempfile
import unittest
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import onnx  # noqa: F401
    import torch
    from torch import nn
except ImportError as error:
    fabric_test.skip(error)

from fabricshm.devices.graph import load  # noqa: E402
from fabricshm.devices.model import PlacementError  # noqa: E402

warnings.filterwarnings("ignore", module="torch")


class Block(nn.Module):
    """Two ways from input to output, changes in place, shapes asked for, shared weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.twice = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu_(self.norm(self.first(x)))
        y = self.twice(self.twice(x))
        y += x
        a, b = torch.chunk(y, 2, 1)
        y = self.pool(torch.cat([b, torch.sigmoid(a)], 1))
        return self.last(y.view(y.size(0), -1)), y.mean([2, 3])


class OnTheData(nn.Module):
    def forward(self, x):
        return x * 2 if bool(x.sum() > 0) else x


class OnTheShape(nn.Module):
    def forward(self, x):
        if x.size(0) > 1:
            return torch.relu(x)
        return torch.tanh(x) if x.dim() == 2 else x


class Graphs(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(3)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.module = Block().eval()
        # Statistics other than 0 and 1, so that leaving the norm out would be seen.
        self.module.norm.running_mean.normal_()
        self.module.norm.running_var.uniform_(0.5, 2.0)
        self.x = torch.randn(2, 3, 8, 8)

    def path(self, name):
        return os.path.join(self.folder, name)

    def saved(self, module, name="m.pt"):
        torch.jit.save(module, self.path(name))
        return self.path(name)

    def check_equal(self, graph, module):
        with torch.no_grad():
            wanted = module(self.x)
            got = graph.run_all({graph.network.inputs[0]: self.x})
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for a, b in zip(wanted, got):
            self.assertTrue(torch.equal(a, b))

    def test_a_traced_network_gives_the_same_bits(self):
        graph = load(self.saved(torch.jit.trace(self.module, self.x)), [[2, 3, 8, 8]])
        self.check_equal(graph, self.module)
        self.assertEqual(len(graph.network.outputs), 2)
        names = [layer.name for layer in graph.network.layers]
        for name in ("first", "norm", "twice", "last"):
            self.assertIn(name, names)

    def test_a_scripted_network_gives_the_same_bits_also_when_it_is_frozen(self):
        scripted = torch.jit.script(self.module)
        self.check_equal(load(self.saved(scripted), [[2, 3, 8, 8]]), self.module)
        frozen = self.saved(torch.jit.freeze(scripted, optimize_numerics=False))
        self.check_equal(load(frozen, [[2, 3, 8, 8]]), self.module)

    def test_an_onnx_network_agrees_to_rounding(self):
        torch.onnx.export(self.module, self.x, self.path("m.onnx"), opset_version=13)
        graph = load(self.path("m.onnx"), [])
        with torch.no_grad():
            wanted = self.module(self.x)
            got = graph.run_all({graph.network.inputs[0]: self.x})
        # The exporter folds the norm into the convolution: other roundings, not other numbers.
        for a, b in zip(wanted, got):
            self.assertLess((a - b).abs().max().item(), 1e-5 * a.abs().max().item())

    def test_layers_have_their_kind_operations_and_bytes(self):
        network = load(self.saved(torch.jit.trace(self.module, self.x)), [[2, 3, 8, 8]]).network
        of = {layer.name: layer for layer in network.layers}
        self.assertEqual(of["first"].kind, "convolution")
        self.assertEqual(of["first"].flops, 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3))
        self.assertEqual(of["first"].weight_bytes, 8 * 3 * 3 * 3 * 4 + 32)  # 864, in 64s
        self.assertEqual(of["last"].kind, "fully_connected")
        self.assertEqual(of["last"].flops, 2 * (2 * 10) * (8 * 4 * 4))
        self.assertEqual(of["relu"].kind, "activation")
        self.assertEqual(of["relu"].flops, 2 * 8 * 8 * 8)
        self.assertEqual(network.bytes_of[of["relu"].outputs[0]], 2 * 8 * 8 * 8 * 4)

    def test_any_cut_gives_the_same_bits(self):
        graph = load(self.saved(torch.jit.trace(self.module, self.x)), [[2, 3, 8, 8]])
        network = graph.network
        with torch.no_grad():
            whole = graph.run_all({"input": self.x})
            for cut in range(len(network.layers) + 1):
                values = {"input": self.x}
                graph.run(0, cut, values)
                used = {v for layer in network.layers[cut:] for v in layer.inputs}
                crossing = {v: values[v].clone() for v in values
                            if v in used or v in network.outputs}
                graph.run(cut, len(network.layers), crossing)
                for value, tensor in zip(network.outputs, whole):
                    self.assertTrue(torch.equal(crossing[value], tensor))

    def test_branches_on_the_shape_are_taken_and_on_the_data_refused(self):
        self.x = torch.randn(2, 5)
        shape = load(self.saved(torch.jit.script(OnTheShape().eval())), [[2, 5]])
        self.assertEqual([layer.name for layer in shape.network.layers], ["relu"])
        with self.assertRaisesRegex(PlacementError, "depends on the data"):
            load(self.saved(torch.jit.script(OnTheData().eval())), [[2, 5]])

    def test_what_is_no_network_is_said_so(self):
        with self.assertRaisesRegex(PlacementError, "no TorchScript file"):
            load(self.path("none.pt"), [[1]])
        with open(self.path("bad.pt"), "w") as file:
            file.write("nonsense")
        with self.assertRaisesRegex(PlacementError, "no TorchScript file"):
            load(self.path("bad.pt"), [[1]])
        path = self.saved(torch.jit.trace(self.module, self.x))
        with self.assertRaisesRegex(PlacementError, "--input"):
            load(path, [])
        with self.assertRaisesRegex(PlacementError, "1 inputs, 2 shapes"):
            load(path, [[2, 3, 8, 8]] * 2)
        with self.assertRaisesRegex(PlacementError, "no ONNX file"):
            with open(self.path("bad.onnx"), "w") as file:
                file.write("nonsense")
            load(self.path("bad.onnx"), [])


if __name__ == "__main__":
    fabric_test.main()
