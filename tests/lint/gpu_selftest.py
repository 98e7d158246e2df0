#!/usr/bin/python3
"""scripts/gpu-check without a GPU, and the arithmetic of its parts: what a machine with one shows is not here."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
SCRIPT = SOURCE / "scripts/gpu-check"
sys.path.insert(0, str(SOURCE / "bench" / "gpu"))
import paired  # noqa: E402
import torch_quota  # noqa: E402
from torch_quota import MIB  # noqa: E402

HAS_GPU = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))
ONE_GPU = "GPU 0: A fake one (UUID: GPU-00112233-4455-6677-8899-aabbccddeeff)"



def run(*options, programs=None):
    """The script with stand-ins in front of the programs of this machine, and with a torch that can't be imported."""
    with tempfile.TemporaryDirectory() as folder:
        for name, body in (programs or {}).items():
            program = Path(folder) / name
            program.write_text(f"#!/bin/bash\n{body}\n")
            program.chmod(0o755)
        (Path(folder) / "torch.py").write_text("raise ImportError('there is none')\n")
        environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", PYTHONPATH=folder)
        return subprocess.run([SCRIPT, *options], env=environment, capture_output=True, text=True, check=False)


def fake_gpu(count=1):
    """An nvidia-smi that lists GPUs."""
    return {"nvidia-smi": f'[ "$1" = -L ] && for i in $(seq {count}); do echo "{ONE_GPU}"; done'}


def empty_build(folder):
    """A build whose programs say that there is nothing for them."""
    for name, body in (("bench/gpu/fabric_gpu_check", "echo skipped: there is no libcuda.so.1; exit 77"),
                       ("libfabricshm/vgpu/fabric-vgpu-check", "echo cuLaunchSomethingNew; exit 1"),
                       ("bench/gpu/fabric_gpu_measure", "echo '| what | us |'; echo '|---|---|'; echo '| copy | 1 |'")):
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    return folder


class Options(unittest.TestCase):
    def test_help_lists_the_parts_in_their_order(self):
        done = run("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        described = re.findall(r"^  ([a-z]+)  +\S", done.stdout, re.MULTILINE)
        declared = re.search(r"^PARTS=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE).group(1).split()
        self.assertEqual(described, declared)

    def test_wrong_options_end_it_with_2_and_say_why(self):
        for options, words in ((["--only", "everything"], "there is no part 'everything': correctness shim"),
                               (["--only"], "--only lacks its value"), (["--out"], "--out lacks its value"),
                               (["--seconds", "soon"], "--seconds takes a number"), (["--nonsense"], "usage: ")):
            with self.subTest(options):
                done = run(*options)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(words, done.stderr)


class WithoutWhatItNeeds(unittest.TestCase):
    @unittest.skipIf(HAS_GPU, "there is a GPU")
    def test_without_a_gpu_it_is_skipped_before_anything_is_built(self):
        done = run(programs={"cmake": "exit 9"})
        self.assertEqual((done.returncode, done.stdout), (77, ""))
        self.assertRegex(done.stderr, r"^gpu-check: skipped: (no \w+, )*no GPU \(nvidia-smi lists none")

    @unittest.skipIf(HAS_GPU, "there is a GPU")
    def test_parts_that_need_a_gpu_are_left_out_of_those_that_were_asked_for(self):
        done = run("--build", "nowhere", "--only", "shim", "--only", "kernels")
        self.assertEqual(done.returncode, 77)
        for part in ("shim", "kernels"):
            self.assertIn(f"| {part} | 0 | left out: no GPU (", done.stdout)

    def test_each_part_that_cant_run_says_why_and_the_page_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            done = run("--build", empty_build(folder), "--no-sanitizer", "--out", page, programs=fake_gpu())
            text = page.read_text()
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(text, done.stdout)
        rows = dict(re.findall(r"^\| (\w+) \| \d+ \| (.*) \|$", text, re.MULTILINE))
        self.assertEqual(rows["nccl"], "left out: one device")
        self.assertEqual(rows["sanitizer"], "left out: --no-sanitizer")
        self.assertEqual(rows["correctness"], "left out: there is no libcuda.so.1")
        self.assertEqual(rows["shim"], "**failed**: exit code 1")
        self.assertEqual(rows["kernels"], "ok")
        for part in ("quota", "shares", "cost", "gloo"):
            self.assertRegex(rows[part], "left out: no torch in .*python3")
        self.assertIn("cuLaunchSomethingNew", text)
        self.assertIn("| copy | 1 |", text)

    def test_what_can_not_be_built_has_failed_and_the_rest_runs(self):
        done = run("--only", "shim", "--only", "adamw", programs={**fake_gpu(), "cmake": "echo no such preset; exit 1"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("| shim | 0 | **failed**: not built |", done.stdout)
        self.assertIn("no such preset", done.stdout)
        self.assertRegex(done.stdout, r"\| adamw \| \d+ \| left out: no torch \|")

    def test_with_no_time_left_parts_are_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("--build", empty_build(folder), "--seconds", "5", "--only", "kernels", programs=fake_gpu())
        self.assertEqual(done.returncode, 77)
        self.assertIn("| kernels | 0 | left out: no time left |", done.stdout)

    def test_with_several_devices_nccl_is_asked_for(self):
        done = run("--build", "nowhere", "--only", "nccl", programs=fake_gpu(2))
        self.assertRegex(done.stdout, r"\| nccl \| \d+ \| left out: no torch in ")


class Arithmetic(unittest.TestCase):
    def test_memory_counts_as_nvidia_smi_shows_it(self):
        listing = "17, 500\n18, 300\n17, 24\n19, [N/A]\n"
        self.assertEqual(torch_quota.bytes_of_process(listing, 17), 524 * MIB)
        self.assertIsNone(torch_quota.bytes_of_process(listing, 19))
        self.assertIsNone(torch_quota.bytes_of_process(listing, 1))
        self.assertTrue(torch_quota.judge_context(524 * MIB + 1000, 524 * MIB).good)
        self.assertFalse(torch_quota.judge_context(530 * MIB, 524 * MIB).good)
        self.assertIsNone(torch_quota.judge_context(530 * MIB, None).good)
        self.assertTrue(torch_quota.judge_growth(3 * MIB, 11 * MIB, 8 * MIB).good)
        self.assertFalse(torch_quota.judge_growth(3 * MIB, 19 * MIB, 8 * MIB).good)

    def test_full_is_full_at_the_quota_alone(self):
        said = {"total": 100 * MIB, "refused": "no room"}
        for used, good in ((100, True), (98, True), (97, False), (101, False)):
            self.assertEqual(torch_quota.judge_full("default", 100 * MIB, used * MIB, said).good, good, used)
        self.assertFalse(torch_quota.judge_full("default", 100 * MIB, 100 * MIB, {**said, "total": 80 << 30}).good)
        self.assertFalse(torch_quota.judge_full("default", 100 * MIB, 100 * MIB, {**said, "refused": ""}).good)

    def test_shares_are_parts_of_the_work_that_was_done(self):
        self.assertTrue(torch_quota.judge_shares((25, 75), [290.0, 710.0]).good)
        self.assertFalse(torch_quota.judge_shares((25, 75), [310.0, 690.0]).good)
        self.assertTrue(torch_quota.judge_shares((50, 50), [460.0, 540.0]).good)
        self.assertFalse(torch_quota.judge_shares((50, 50), [0.0, 0.0]).good)

    def test_what_dies_is_gone_in_time_or_not(self):
        self.assertTrue(torch_quota.judge_death("x", 0.2).good)
        self.assertFalse(torch_quota.judge_death("x", 1.5).good)
        self.assertFalse(torch_quota.judge_death("x", None).good)
        self.assertFalse(torch_quota.judge_graphs({"captured": 0, "replayed": 0}, 100).good)

    def test_costs_are_compared_round_by_round(self):
        row = torch_quota.judge_cost("launch", [5.0, 6.0, 7.0], [5.2, 6.2, 7.2])
        self.assertEqual(row.found, "6.00 -> 6.20 us, +0.20 us")
        self.assertEqual(row.wanted, "with / without: 1.033")
        self.assertIsNone(row.good)

    def test_a_check_that_breaks_off_is_a_failed_row(self):
        def broken(_machine):
            yield torch_quota.Row("first", "", "", True)
            raise torch_quota.Failed("it ended")

        kept = dict(torch_quota.CHECKS)
        torch_quota.CHECKS["context"] = broken
        self.addCleanup(torch_quota.CHECKS.update, kept)
        rows = list(torch_quota.rows_of("context", None))
        self.assertEqual([row.good for row in rows], [True, False])
        self.assertEqual(rows[1].cells(), "| context | it ended |  | **FAILED** |")

    def test_more_ranks_than_processors_are_said_to_be_so(self):
        self.assertEqual(paired.heading("gloo", 16, 2), "16 ranks on 2 processors, oversubscribed")
        self.assertEqual(paired.heading("gloo", 8, 16), "8 ranks on 16 processors")
        self.assertEqual(paired.heading("nccl", 4, 2), "4 ranks, a GPU each")

    def test_there_is_nothing_to_compare_without_a_peer(self):
        gloo, nccl = (paired.parse_options([peer]) for peer in ("gloo", "nccl"))
        self.assertEqual(paired.reason_to_skip(gloo, "no torch", 0, False, False), "no torch")
        self.assertEqual(paired.reason_to_skip(gloo, None, 0, False, True), "this torch has no gloo")
        self.assertIsNone(paired.reason_to_skip(gloo, None, 0, True, False))
        self.assertEqual(paired.reason_to_skip(nccl, None, 1, True, True), "one device")
        self.assertEqual(paired.reason_to_skip(nccl, None, 0, True, True), "no CUDA device")
        self.assertIsNone(paired.reason_to_skip(nccl, None, 2, True, True))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch")
    def test_the_network_is_the_known_one(self):
        import torch
        from resnet50 import ResNet50
        model = ResNet50()
        self.assertEqual(sum(parameter.numel() for parameter in model.parameters()), 25_557_032)
        self.assertEqual(tuple(model(torch.zeros(2, 3, 64, 64)).shape), (2, 1000))


if __name__ == "__main__":
    unittest.main()
