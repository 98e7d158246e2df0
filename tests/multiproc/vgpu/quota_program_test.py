#!/usr/bin/python3
"""fabric_gpu_quota serves vGPUs of a simulated GPU without fabricd, as scripts/gpu-check has it serve a real one; and the
checks of PyTorch under it (bench/gpu/torch_quota.py), with a program in PyTorch's place where one can stand for it."""

import argparse
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "bench" / "gpu"))
import quota_program  # noqa: E402
import torch_quota  # noqa: E402
from quota_program import MIB, Child, Failed, QuotaProgram  # noqa: E402

GPU_BYTES = 1 << 30
OUT_OF_MEMORY = "2"
paths = None  # of the programs, from the command line


class Player(Child):
    """fabric_gpu_player with a context, on a vGPU."""

    def __init__(self, folder, served, name, **more):
        environment = served.environment(paths.shim, name, FABRIC_MOCK_GPU=os.path.join(folder, "gpu"),
                                         LD_LIBRARY_PATH=paths.mock, **more)
        super().__init__([paths.player], os.path.join(folder, "player.log"), environment)
        self.began = [self.ask("init"), self.ask("context")]

    def ask(self, line):
        self.tell(line)
        return self.read(60)


class OverTheMock(unittest.TestCase):
    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.addCleanup(self.kept.cleanup)
        self.folder = self.kept.name
        subprocess.run([paths.make_gpu, os.path.join(self.folder, "gpu"), str(GPU_BYTES)], check=True)

    def serve(self, vgpus, *options):
        served = QuotaProgram(paths.program, self.folder, "0", GPU_BYTES, vgpus, options)
        self.addCleanup(served.kill)
        return served

    def play(self, served, name, **more):
        player = Player(self.folder, served, name, **more)
        self.addCleanup(player.kill)
        self.assertEqual(player.began, ["ok", "ok"])
        return player

    def test_a_quota_is_kept_and_moves_while_a_program_runs(self):
        served = self.serve({"a": 64 * MIB})
        player = self.play(served, "a")
        self.assertEqual(player.ask(f"alloc {40 * MIB}"), "ok 0")
        self.assertEqual(served.used("a"), 40 * MIB)
        self.assertEqual(served.processes("a"), {player.pid: 40 * MIB})
        self.assertEqual(player.ask(f"alloc {40 * MIB}"), OUT_OF_MEMORY)
        used, quota, peak, refusals, _busy = served.ask("used")
        self.assertEqual((used, quota, peak, refusals), (40 * MIB, 64 * MIB, 40 * MIB, 1))
        self.assertEqual(served.ask(f"quota a {80 * MIB}"), [80 * MIB, 80 * MIB])
        self.assertEqual(player.ask(f"alloc {40 * MIB}"), "ok 1")
        served.ask("share 30")
        # A smaller one follows the use, and never below it.
        self.assertEqual(served.ask(f"quota {16 * MIB}")[0], 80 * MIB)
        self.assertEqual(player.ask("free 0"), "ok")
        self.assertEqual(player.ask("free 1"), "ok")
        self.assertIsNotNone(served.seconds_until(lambda: served.ask("used a")[1] == 16 * MIB, 60))

    def test_what_a_killed_program_held_is_free(self):
        served = self.serve({"a": 64 * MIB})
        players = [self.play(served, "a") for _ in range(2)]
        for player in players:
            self.assertEqual(player.ask(f"alloc {8 * MIB}"), "ok 0")
        players[0].kill()
        self.assertIsNotNone(served.seconds_until(lambda: served.used("a") == 8 * MIB, 60))
        players[1].kill()
        self.assertIsNotNone(served.seconds_until(lambda: not served.processes("a"), 60))
        self.assertEqual(served.used("a"), 0)

    def test_the_loop_lends_what_another_vgpu_does_not_use(self):
        served = self.serve({"a": 64 * MIB, "b": 64 * MIB}, "--loop", "--wait", "60000", "--reserve",
                            str(GPU_BYTES - 128 * MIB))
        player = self.play(served, "a")
        self.assertEqual(player.ask(f"alloc {60 * MIB}"), "ok 0")
        self.assertEqual(player.ask(f"alloc {8 * MIB}"), "ok 1")
        self.assertGreater(served.ask("used a")[1], 64 * MIB)
        self.assertLess(served.ask("used b")[1], 64 * MIB)

    def test_a_wrong_line_is_an_error_and_changes_nothing(self):
        served = self.serve({"a": 64 * MIB, "b": 32 * MIB})
        for line in ("used", "quota a much", "quota a", "quota", "share c 20", "share a 0", "shrink a 1", "used a b",
                     f"quota a {GPU_BYTES}"):
            with self.subTest(line):
                served.tell(line)
                self.assertRegex(served.read(20), "^error ")
        self.assertEqual(served.ask("used a")[1], 64 * MIB)
        served.tell("end")
        with self.assertRaises(Failed):
            served.read(20)

    def test_wrong_options_end_it_with_2(self):
        folder = Path(self.folder)
        good = ["--socket", folder / "s", "--state", folder / "t", "--gpu", "0", "--memory", "1GiB"]
        for options in ([], good, good + ["--vgpu", "a"], good + ["--vgpu", "a=much"], good + ["--vgpu", "a=2GiB"],
                        good + ["--vgpu", "a=1MiB", "--nonsense", "1"], good + ["--vgpu"]):
            with self.subTest(options):
                done = subprocess.run([paths.program, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, "^fabric_gpu_quota: ")
        helped = subprocess.run([paths.program, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("--vgpu NAME=BYTES", helped.stdout)

    def test_the_checks_of_pytorch_with_a_program_in_its_place(self):
        machine = torch_quota.Machine(paths.program, paths.shim, "0", GPU_BYTES, 64 * MIB, self.folder)
        machine.wait_ms = 60_000
        folder = self.folder

        class Actor:
            """Stands for a job of torch_workers.py by what it makes the player do."""

            def __init__(self, job, served, name="a", **_more):
                self.player = Player(folder, served, name)
                self.pid = self.player.pid
                self.said = {"context": {"total": 64 * MIB}, "grow": {"ready": True}}.get(job)
                if job == "fill":
                    while self.player.ask(f"alloc {2 * MIB}") != OUT_OF_MEMORY:
                        pass
                    self.said = {"total": 64 * MIB, "refused": "no room"}

            def hear(self, _timeout=60):
                return self.said

            def tell(self, line):
                self.said = {"granted": self.player.ask(f"alloc {line}").startswith("ok"), "seconds": 0.5}

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.player.kill()

        machine.worker = lambda job, served=None, vgpu="a", **more: Actor(job, served, vgpu, **more)
        for name, wanted in (("context", 3), ("oom", 3), ("loop", 1)):
            with self.subTest(name):
                rows = list(torch_quota.rows_of(name, machine))
                self.assertEqual([row.good for row in rows if row.good is not None],
                                 [True] * (wanted - (name == "context")), [row.cells() for row in rows])
                self.assertEqual(len(rows), wanted)

    def test_a_job_that_fails_says_why(self):
        served = self.serve({"a": 64 * MIB})
        worker = quota_program.Worker("nonsense", self.folder, served.environment("", "a"))
        self.addCleanup(worker.kill)
        with self.assertRaisesRegex(Failed, "nonsense: ended: usage: torch_workers.py"):
            worker.hear()


def main():
    global paths  # pylint: disable=global-statement
    parser = argparse.ArgumentParser()
    for name in ("program", "player", "shim", "mock", "make-gpu"):
        parser.add_argument(f"--{name}", required=True)
    paths, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
