"""ResNet-50 as a pipeline of devices: its outputs are those of a single process, bit for bit."""

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
    import torchvision
except ImportError as error:
    fabric_test.skip(error)

from fabricshm.devices import place  # noqa: E402
from fabricshm.devices.model import read_devices  # noqa: E402

warnings.filterwarnings("ignore")

# Slow enough that one processor can play all of them and mostly sleep.
DEVICES = "".join(
    f"[[device]]\nname = \"{kind}0\"\nkind = \"{kind}\"\ngflops = {gflops}\nmemory = \"256MiB\"\n"
    f"link_gbytes_per_s = 8\nlink_latency = \"2us\"\n"
    for kind, gflops in (("gpu", 4), ("fpga", 3), ("asic", 1)))


class ResNet50(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.devices = os.path.join(cls.folder.name, "devices.toml")
        with open(cls.devices, "w") as file:
            file.write(DEVICES)
        torch.set_num_threads(1)
        torch.manual_seed(50)  # no download: the weights are random
        cls.module = torchvision.models.resnet50(weights=None).eval()
        cls.x = torch.randn(1, 3, 64, 64)

    def run_it(self, graph, *words):
        options = place.make_parser().parse_args(
            [graph, self.devices, "--micro-batches", "3", "--in-flight", "3", *words])
        plan = place.make_plan(options, read_devices(self.devices, place.find_fabricctl()))
        run, _, comparison = place.run_plan(options, plan)
        self.assertTrue(comparison.equal)
        self.assertEqual(comparison.values, 3 * 1000)
        self.assertGreater(run.seconds, 0.95 * plan.schedule.seconds)
        return plan

    def kinds_on(self, plan, device):
        names = [one.name for one in plan.devices]
        layers = zip(plan.graph.network.layers, plan.placement)
        return [layer.kind for layer, d in layers if names[d] == device and layer.kind != "other"]

    def test_torchscript_by_kind(self):
        path = os.path.join(self.folder.name, "resnet50.pt")
        torch.jit.save(torch.jit.trace(self.module, self.x), path)
        plan = self.run_it(path, "--input", "1x3x64x64")
        self.assertEqual(self.kinds_on(plan, "fpga0"), ["convolution"] * 53)
        self.assertEqual(self.kinds_on(plan, "asic0"), ["activation"] * 49)
        self.assertEqual(self.kinds_on(plan, "gpu0"), ["fully_connected"])

    def test_onnx_by_cost(self):
        path = os.path.join(self.folder.name, "resnet50.onnx")
        torch.onnx.export(self.module, self.x, path, opset_version=13)
        plan = self.run_it(path, "--policy", "cost")
        self.assertGreater(len(plan.segments), 1)  # a pipeline pays, with devices this slow
        with torch.no_grad():
            wanted = self.module(plan.graph.example[plan.graph.network.inputs[0]])
            (got,) = plan.graph.reference(plan.graph.example)
        # The exporter folds the norms into the convolutions: other roundings.
        self.assertLess((wanted - got).abs().max().item(), 1e-4 * wanted.abs().max().item())


if __name__ == "__main__":
    fabric_test.main()
