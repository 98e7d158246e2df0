#!/usr/bin/python3
"""The examples of README.md build and run with the commands that it prints: two ranks of each,
against a daemon of their own and the installed library. So do those of examples/c, with the
commands that stand at their beginning."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FABRIC_BUILD_DIR", ROOT / "build/release")).resolve()
DEADLINE_S = 60

def example(language: str) -> str:
    """The first block of README.md in this language."""
    text = (ROOT / "README.md").read_text()
    return re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL).group(1)


def commands(language: str) -> list[str]:
    """What the console shows below that block: to build, then to run."""
    text = (ROOT / "README.md").read_text()
    after = text[text.index(f"```{language}\n"):]
    block = re.search(r"^```console\n(.*?)^```", after, re.MULTILINE | re.DOTALL).group(1)
    return re.findall(r"^\$ (.*)$", block, re.MULTILINE)


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="fabric-readme-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", "development"],
                       check=True, stdout=subprocess.DEVNULL)
        cls.environment = dict(os.environ, XDG_RUNTIME_DIR=str(cls.folder), HOME=str(cls.folder),
                               FABRIC_SOCKET=str(cls.folder / "fabricd/attach.sock"),
                               PKG_CONFIG_PATH=str(next(cls.prefix.rglob("fabricshm.pc")).parent),
                               LD_LIBRARY_PATH=str(next(cls.prefix.rglob("libfabricshm.so")).parent))
        command = [BUILD / "fabricd/fabricd", "--pool-backend", "emu", "--pool-capacity", "256MiB",
                   "--server-runtime-dir", cls.folder / "fabricd", "--state-dir", cls.folder / "state"]
        (cls.folder / "fabricd").mkdir(mode=0o700)
        cls.log = (cls.folder / "fabricd.log").open("w+")
        cls.addClassCleanup(cls.log.close)
        cls.daemon = subprocess.Popen([str(part) for part in command], env=cls.environment,
                                      stdout=cls.log, stderr=cls.log)
        cls.addClassCleanup(cls.stop_daemon)
        cls.wait_for_socket()

    @classmethod
    def wait_for_socket(cls):
        end = time.monotonic() + DEADLINE_S
        while not Path(cls.environment["FABRIC_SOCKET"]).exists():
            if cls.daemon.poll() is not None or time.monotonic() > end:
                cls.log.seek(0)
                raise AssertionError(f"fabricd did not start:\n{cls.log.read()}")
            time.sleep(0.01)

    @classmethod
    def stop_daemon(cls):
        cls.daemon.terminate()
        try:
            cls.daemon.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            cls.daemon.kill()
            cls.daemon.wait()

    def shell(self, command: str, **environment) -> tuple[int, str]:
        done = subprocess.run(["bash", "-c", command], env=dict(self.environment, **environment),
                              cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=DEADLINE_S)
        return done.returncode, done.stdout

    def check_example(self, language: str, source: str, values: str):
        """Compiles and runs with the very commands that are printed below it."""
        (self.folder / source).write_text(example(language))
        build, run = commands(language)
        self.assertEqual(self.shell(build), (0, ""))
        code, output = self.shell(run)
        self.assertEqual((code, sorted(output.splitlines())), (0, [f"rank 0: {values}", f"rank 1: {values}"]))
        program = "./" + Path(source).stem
        code, output = self.shell(program)
        self.assertEqual(code, 2)
        self.assertIn("usage: ", output)
        code, output = self.shell(f"{program} 5 2")
        self.assertEqual(code, 1)
        self.assertIn("rank is not", output)
        code, output = self.shell(f"{program} 0 2", FABRIC_SOCKET="/nonexistent/attach.sock")
        self.assertEqual(code, 1)
        self.assertIn("/nonexistent/attach.sock", output)
        self.assertEqual(output.count("\n"), 1, output)

    def lose_a_rank(self, *arguments: str) -> str:
        """What fabric-bench says after its last rank was killed."""
        program = BUILD / "bench/fabric-bench"
        if not program.is_file():
            self.skipTest("built without benchmarks")
        environment = dict(self.environment)
        environment.pop("LD_LIBRARY_PATH")
        with subprocess.Popen([str(program), *arguments, "--ranks", "3"], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as bench:
            listed = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
            ranks: list[str] = []
            give_up = time.monotonic() + DEADLINE_S
            while len(ranks) < 3 and time.monotonic() < give_up:
                ranks = listed.read_text().split()
            os.kill(int(ranks[-1]), signal.SIGKILL)
            output, _ = bench.communicate(timeout=DEADLINE_S)
            self.assertEqual(bench.returncode, 1, output)
        return output

    def test_fabric_bench_names_the_rank_that_dies_and_ends_the_others(self):
        line = "fabric-bench: rank 2 was ended by signal 9 (Killed); the others are ended\n"
        running = self.lose_a_rank("allreduce", "--sizes", "8", "--iterations", "100000000")
        self.assertTrue(running.endswith(line), running)
        self.assertEqual(running.count("fabric-bench: "), 1, running)
        # Before they join: nothing answers them.
        path = self.folder / "silent.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.bind(str(path))
            silent.listen(8)
            began = time.monotonic()
            self.assertEqual(self.lose_a_rank("barrier", "--socket", str(path)), line)
            self.assertLess(time.monotonic() - began, 25)

    def test_the_cpp_example(self):
        self.check_example("cpp", "example.cpp", "2")

    def test_the_c_example(self):
        self.check_example("c", "sum.c", "2 4 6")

    def check_file(self, name: str, *lines: str):
        """An example of examples/c, as C11 with every warning, with the commands of its comment."""
        source = ROOT / "examples/c" / f"{name}.c"
        shutil.copy(source, self.folder)
        build, run = re.findall(r"^ \*   (.*)$", source.read_text(), re.MULTILINE)
        self.assertTrue(build.startswith("cc -o "), build)
        strict = build.replace("cc ", "cc -std=c11 -Wall -Wextra -Wpedantic -Werror ", 1)
        self.assertEqual(self.shell(strict), (0, ""))
        code, output = self.shell(run)
        self.assertEqual((code, sorted(output.splitlines())), (0, sorted(lines)))
        code, output = self.shell(f"./{name}")
        self.assertEqual((code, output), (2, f"usage: {name} RANK RANKS\n"))

    def test_the_c_example_of_an_allreduce(self):
        self.check_file("allreduce", *(f"rank {rank}, step {step}: {3 * step}"
                                       for rank in range(2) for step in (1, 2, 3)))

    def test_the_c_example_of_a_scan(self):
        self.check_file("scan", "rank 0: records 0 to 9", "rank 1: records 10 to 29",
                        "rank 0: loss 1.5 of rank 1", "rank 1: loss 1.5 of rank 1")

    def test_the_c_example_of_messages(self):
        self.check_file("messages", "rank 0: from rank 1", "rank 1: from rank 0")

    def test_the_c_example_of_a_failure(self):
        self.check_file("failure", *(f"rank {rank}: 3 ranks" for rank in range(3)),
                        *(f"rank {rank}: FABRICSHM_EPEER, rank 2" for rank in range(2)),
                        *(f"rank {rank}: 2 ranks" for rank in range(2)))

    def test_the_c_example_of_data(self):
        program = BUILD / "fabricd/data/program/fabric-data"
        if not program.is_file():
            self.skipTest("built without fabric-data")
        texts = self.folder / "texts"
        (texts / "deep").mkdir(parents=True)
        (texts / "one").write_text("1\n2\n3\n")
        (texts / "deep/two").write_text("4\n")
        configuration = self.folder / "data.toml"
        configuration.write_text(
            f'[cache]\nmemory = "32MiB"\n[[silo]]\nat = "/texts"\nfrom = "{texts}"\n')
        sockets = {"FABRIC_DATA_SOCKET": str(self.folder / "data.sock")}
        with subprocess.Popen([str(program), "serve", "--config", str(configuration), "--socket",
                               sockets["FABRIC_DATA_SOCKET"]], env=self.environment, stderr=self.log) as service:
            end = time.monotonic() + DEADLINE_S
            while not Path(sockets["FABRIC_DATA_SOCKET"]).exists() and time.monotonic() < end:
                self.assertIsNone(service.poll())
                time.sleep(0.01)
            source = ROOT / "examples/c/data.c"
            shutil.copy(source, self.folder)
            build, run = re.findall(r"^ \*   (.*)$", source.read_text(), re.MULTILINE)
            strict = build.replace("cc ", "cc -std=c11 -Wall -Wextra -Wpedantic -Werror ", 1)
            self.assertEqual(self.shell(strict), (0, ""))
            self.assertEqual(self.shell(run, **sockets), (0, "4 lines\n"))
            self.assertEqual(self.shell("./data", **sockets), (2, "usage: data PATH\n"))
            code, output = self.shell("./data /nothing", **sockets)
            self.assertEqual((code, output.count("\n")), (1, 1), output)
            service.terminate()

    def bench(self, *arguments: str) -> tuple[int, str]:
        program = BUILD / "bench/fabric-bench"
        if not program.is_file():
            self.skipTest("built without benchmarks")
        environment = dict(self.environment)
        environment.pop("LD_LIBRARY_PATH")
        done = subprocess.run([str(program), *arguments], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=DEADLINE_S)
        return done.returncode, done.stdout

    def test_fabric_bench_measures_every_collective_and_checks_it(self):
        code, output = self.bench("all", "--sizes", "64:4K:64", "--ranks", "4", "--check",
                                  "--iterations", "3", "--json")
        self.assertEqual(code, 0, output)
        document = json.loads(output)
        self.assertEqual((document["wrong"], document["ranks"]), (0, 4))
        kinds = {row["collective"] for row in document["rows"]}
        self.assertEqual(len(kinds), 12)
        self.assertEqual(len(document["rows"]), 23)  # the barrier has no sizes
        row = next(row for row in document["rows"] if row["collective"] == "all_gather")
        self.assertEqual((row["bytes"], row["count"], row["op"]), (64, 4, "none"))
        self.assertGreater(row["out_of_place"]["microseconds"], 0)

    def test_fabric_bench_prints_a_table(self):
        code, output = self.bench("allreduce", "--sizes", "1K", "--dtype", "bf16", "--memory", "heap",
                                  "--iterations", "3", "--check")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"(?m)^ +1024 +512 +bf16 +sum( +[0-9.]+){3} +0( +[0-9.]+){3} +0$")
        self.assertIn("busbw", output)

    def test_fabric_bench_all_leaves_out_what_cannot_be_measured(self):
        code, output = self.bench("all", "--sizes", "64", "--ranks", "3", "--iterations", "1", "--json")
        self.assertEqual(code, 0, output)
        self.assertIn("fabric-bench: left out: send_recv: an even number of ranks", output)
        rows = json.loads(output[output.index("{"):])["rows"]
        self.assertEqual(len(rows), 11)

    def test_fabric_bench_says_what_is_wrong_with_its_command_line(self):
        for arguments, word in ((("allrduce",), "allreduce"), (("scan", "--dtype", "f31"), "bf16"),
                                (("scan", "--sizes", "8:4"), "FROM:TO"), ((), "which collective"),
                                (("scan", "--algorithm", "ring"), "allreduce"),
                                (("send_recv", "--ranks", "3"), "even"), (("--nothing",), "--help"),
                                (("scan", "--ranks"), "missing")):
            code, output = self.bench(*arguments)
            self.assertEqual(code, 2, output)
            self.assertIn(word, output)
        code, output = self.bench("barrier", "--socket", "/nonexistent/attach.sock")
        self.assertEqual(code, 1)
        self.assertIn("/nonexistent/attach.sock", output)

    def test_the_pytorch_example(self):
        launcher = BUILD / "python/fabricrun"
        if not launcher.is_file() or not (BUILD / "python/fabricshm/torch").exists():
            self.skipTest("built without PyTorch")
        script = self.folder / "train.py"
        script.write_text(example("python"))
        environment = dict(self.environment, PYTHONPATH=str(BUILD / "python"), OMP_NUM_THREADS="1",
                           FABRIC_ARENA_BYTES="64M")
        result = subprocess.run(["/usr/bin/python3", str(launcher), "--nproc-per-node", "2", str(script)],
                                env=environment, capture_output=True, text=True, check=False,
                                timeout=2 * DEADLINE_S)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    if not (BUILD / "CMakeCache.txt").is_file():
        sys.exit(f"set FABRIC_BUILD_DIR: {BUILD} is no build folder")
    unittest.main()
