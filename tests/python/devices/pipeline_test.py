"""Devices as processes: the outputs, the quotas, and what happens when one dies or hangs."""

import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    from torch import nn
except ImportError:
    fabric_test.skip("PyTorch is not installed")

from fabricshm._daemon import EmbeddedDaemon  # noqa: E402
from fabricshm.devices import pipeline, place  # noqa: E402
from fabricshm.devices.stage import StageError  # noqa: E402

warnings.filterwarnings("ignore", module="torch")

DEVICES = """
[[device]]
name = "gpu0"
kind = "gpu"
gflops = 1.0
memory = "64MiB"
link_gbytes_per_s = 4
link_latency = "20us"
[[device]]
name = "fpga0"
kind = "fpga"
gflops = 0.5
memory = "64MiB"
vgpu_share_percent = 50
link_gbytes_per_s = 4
[[device]]
name = "asic0"
kind = "asic"
gflops = 0.25
memory = "64MiB"
link_gbytes_per_s = 4
"""


class Net(nn.Module):
    """Three blocks with a way around, then two fully connected layers."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1) for i in range(3))
        self.last = nn.Sequential(nn.Linear(8 * 12 * 12, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        x = torch.relu(self.blocks[0](x))
        for block in self.blocks[1:]:
            x = x + torch.relu(block(x))
        return self.last(x.flatten(1))


class Pipelines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.devices = os.path.join(cls.folder.name, "devices.toml")
        cls.graph = os.path.join(cls.folder.name, "net.pt")
        with open(cls.devices, "w") as file:
            file.write(DEVICES)
        torch.set_num_threads(1)
        torch.manual_seed(1)
        torch.jit.save(torch.jit.trace(Net().eval(), torch.randn(2, 3, 12, 12)), cls.graph)

    def options(self, *more):
        words = [self.graph, self.devices, "--input", "2x3x12x12", "--micro-batches", "7",
                 "--in-flight", "3", *more]
        return place.make_parser().parse_args(words)

    def plan(self, options):
        return place.make_plan(options, self.read(self.devices))

    @staticmethod
    def read(path):
        from fabricshm.devices.model import read_devices

        return read_devices(path, place.find_fabricctl())

    def tearDown(self):
        with self.assertRaises(ChildProcessError):  # nothing is left behind
            os.waitpid(-1, os.WNOHANG)

    def test_outputs_have_the_bits_of_one_process_and_take_the_devices_time(self):
        for policy in ("kind", "cost"):
            with self.subTest(policy):
                options = self.options("--policy", policy)
                plan = self.plan(options)
                run, _, comparison = place.run_plan(options, plan)
                self.assertTrue(comparison.equal)
                self.assertEqual(comparison.values, 7 * 2 * 10)
                # Slower is possible on a busy machine, faster is not: the devices are paced.
                self.assertGreater(run.seconds, 0.95 * plan.schedule.seconds)
                for told in run.devices.values():
                    self.assertGreater(told["busy_s"], 0.0)

    def test_a_wrong_weight_is_found_by_the_comparison(self):
        options = self.options()
        plan = self.plan(options)
        plan.graph.weights[0] = plan.graph.weights[0] + 1e-3
        _, _, comparison = place.run_plan(options, plan)
        self.assertFalse(comparison.good)
        self.assertGreater(comparison.largest, 1e-6)

    def test_quotas_hold_to_the_byte_and_the_device_without_room_is_named(self):
        options = self.options()
        plan = self.plan(options)
        need = {d.name: bytes for d, bytes in zip(plan.devices, plan.memory)}
        seen = {}
        with self.daemon(need) as daemon:
            run = self.run_on(daemon, plan, lambda pids: seen.update(self.usage(daemon)))
            self.assertEqual(len(run.outputs), 7)
        self.assertEqual(seen, {name: (1, bytes) for name, bytes in need.items()})
        with self.daemon({**need, "fpga0": need["fpga0"] - 1}) as daemon:
            with self.assertRaisesRegex(StageError, "^device fpga0: OutOfMemoryError"):
                self.run_on(daemon, plan)

    def daemon(self, quotas):
        """A fabricd with these vGPU quotas."""
        path = os.path.join(self.folder.name, "tight.toml")
        with open(path, "w") as file:
            for block in DEVICES.split("[[device]]")[1:]:
                name = block.split('"')[1]
                file.write(f'[[device]]{block}vgpu_memory = "{quotas[name]}"\n')
        return EmbeddedDaemon(
            pool_bytes=1 << 27, options=["--pool-backend", "emu", "--devices-file", path])

    @staticmethod
    def usage(daemon):
        """What `fabricctl devices` shows: name -> (sessions, bytes)."""
        words = [place.find_fabricctl(), "devices", "--json", "--socket",
                 os.path.join(daemon.folder, "admin.sock")]
        shown = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        return {d["name"]: (d["sessions"], d["bytes_used"]) for d in shown["devices"]}

    @staticmethod
    def run_on(daemon, plan, on_ready=None, timeout=60.0):
        job = pipeline.make_job(
            plan.graph, plan.devices, plan.segments, plan.schedule.orders, 3, daemon.socket, timeout)
        return pipeline.run(job, pipeline.micro_batches(plan.graph, 7), on_ready)

    def test_a_device_that_dies_or_hangs_is_named(self):
        plan = self.plan(self.options())
        quotas = {d.name: d.quota_bytes for d in plan.devices}
        for name in quotas:
            with self.subTest(killed=name), self.daemon(quotas) as daemon:
                with self.assertRaisesRegex(
                        StageError, f"^device {name}: process .* was killed by SIGKILL"):
                    self.run_on(daemon, plan, lambda pids: os.kill(pids[name], signal.SIGKILL))
        with self.daemon(quotas) as daemon:
            with self.assertRaisesRegex(StageError, "^device fpga0: no .* of fpga0 within 1 s, says"):
                self.run_on(
                    daemon, plan, lambda pids: os.kill(pids["fpga0"], signal.SIGSTOP), 1.0)

    def test_a_device_that_the_daemon_does_not_know_is_named(self):
        plan = self.plan(self.options())
        plan.devices[1] = dataclasses.replace(plan.devices[1], name="fpga9")
        with self.daemon({"gpu0": 1 << 20, "fpga0": 1 << 20, "asic0": 1 << 20}) as daemon:
            with self.assertRaisesRegex(StageError, "^device fpga9: NotFoundError"):
                self.run_on(daemon, plan)


class Program(unittest.TestCase):
    """fabric-place itself."""

    setUpClass = Pipelines.__dict__["setUpClass"]

    def main(self, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = place.main(list(words))
            except SystemExit as ended:
                code = ended.code
        return code, out.getvalue(), err.getvalue()

    def test_a_plan_shows_layers_stages_devices_and_the_predicted_step(self):
        code, out, _ = self.main(self.graph, self.devices, "--input", "1x3x12x12")
        self.assertEqual(code, 0)
        for part in ("convolution", "aten::linear", "STAGE", "fpga0", "QUOTA", "predicted step",
                     "bottleneck"):
            self.assertIn(part, out)

    def test_json_has_the_plan_and_the_run(self):
        code, out, _ = self.main(
            self.graph, self.devices, "--input", "1x3x12x12", "--policy", "cost",
            "--micro-batches", "2", "--run", "--json")
        self.assertEqual(code, 0)
        picture = json.loads(out)
        self.assertGreater(picture["predicted_step_s"], 0.0)
        self.assertTrue(picture["run"]["outputs"]["equal"])
        self.assertEqual(
            sum(stage["last_layer"] - stage["first_layer"] + 1 for stage in picture["stages"]),
            len(picture["layers"]))

    def test_wrong_usage_is_one_line_that_names_it_and_code_2(self):
        shape = ("--input", "1x3x12x12")
        tight = os.path.join(self.folder.name, "small.toml")
        with open(tight, "w") as file:
            file.write(DEVICES.replace('memory = "64MiB"', 'memory = "8KiB"'))
        for words, said in (
            ((self.graph, self.devices), "--input"),
            ((self.graph, self.devices, "--input", "1x5x12x12"), "can't be played"),
            ((self.graph, self.devices, "--input", "1xx3"), "1xx3"),
            ((self.graph, self.devices, *shape, "--map", "relu=gpu"), "relu=gpu"),
            ((self.graph, self.devices, *shape, "--timeout", "0"), "--timeout"),
            ((self.graph, self.folder.name + "/none.toml", *shape), "none.toml: can't be read"),
            ((self.folder.name + "/none.pt", self.devices, *shape), "none.pt"),
            ((self.graph, tight, *shape), "no device has room for layer"),
            ((self.graph, tight, *shape, "--policy", "cost"), "no cut into stages fits"),
        ):
            with self.subTest(words=words[2:]):
                code, _, err = self.main(*words)
                self.assertEqual(code, 2)
                self.assertIn(said, err)
                self.assertTrue(err.splitlines()[-1].startswith("fabric-place: "))

    def test_the_program_runs_as_it_is_installed(self):
        program = os.path.join(os.path.dirname(place.__file__), "..", "..", "fabric-place")
        done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("exit codes:", done.stdout)
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self.assertRegex(done.stdout, r"^fabric-place \d")


if __name__ == "__main__":
    fabric_test.main()
