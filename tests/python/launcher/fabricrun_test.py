"""fabricrun: exit codes, restarts, signals, output, and that nothing stays behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm._daemon as daemon  # noqa: E402
from fabricshm import run  # noqa: E402

TIMEOUT = 100


def processes_with(mark):
    """Ids of processes that carry `mark` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


class LauncherCase(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="fabricrun-test-")
        self.addCleanup(self._folder.cleanup)
        self.folder = Path(self._folder.name)
        self.scratch = self.folder / "tmp"
        self.scratch.mkdir()
        self.mark = f"FABRIC_TEST_MARK={self.folder.name}"
        name, value = self.mark.split("=")
        self.environment = {**os.environ, name: value, "TMPDIR": str(self.scratch),
                            "XDG_RUNTIME_DIR": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("FABRIC_SOCKET", None)

    def script(self, text, name="script.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def command(self, *arguments):
        return [sys.executable, "-m", "fabricshm.run", *arguments]

    def run_it(self, *arguments, code=0):
        done = subprocess.run(self.command(*arguments), env=self.environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.nothing_left()
        return done

    def nothing_left(self):
        limit = time.monotonic() + 20
        while processes_with(self.mark):
            self.assertLess(time.monotonic(), limit, f"left: {processes_with(self.mark)}")
            time.sleep(0.02)
        self.assertEqual(list(self.scratch.iterdir()), [])

    def await_files(self, *names):
        limit = time.monotonic() + TIMEOUT
        while not all((self.folder / name).exists() for name in names):
            self.assertLess(time.monotonic(), limit, f"no {names}")
            time.sleep(0.02)


class Launcher(LauncherCase):
    def test_every_rank_gets_the_variables_of_torchrun(self):
        script = self.script("""
            import os, sys
            names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "
                     "FABRIC_SOCKET FABRIC_ARENA_BYTES").split()
            values = [os.environ[name] for name in names] + sys.argv[1:]
            os.write(1, (" ".join(values) + "\\n").encode())  # at once: lines must not mix
        """)
        done = self.run_it("--nproc-per-node=3", "--arena-bytes", "64M", script, "--lr", "0.1", "-x")
        lines = sorted(line.split() for line in done.stdout.splitlines())
        self.assertEqual([line[0] for line in lines], ["0", "1", "2"])
        for rank, line in enumerate(lines):
            self.assertEqual(line[:5], [str(rank), str(rank), "3", "3", "127.0.0.1"])
            self.assertEqual(line[5:7], lines[0][5:7])
            self.assertEqual(line[7:], [str(64 << 20), "--lr", "0.1", "-x"])

    def test_ranks_of_several_nodes_are_numbered_node_by_node(self):
        script = self.script("""
            import os
            names = ("RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE MASTER_ADDR "
                     "MASTER_PORT FABRIC_NET_TRUSTED TORCHELASTIC_RUN_ID").split()
            os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
        """)
        common = ("--nnodes", "2", "--master-addr", "host1", "--master-port", "29500", "--trusted",
                  "10.0.0.0/8", "--nproc-per-node", "3,2")
        lines = []
        for node in "0", "1":
            done = self.run_it(*common, "--node-rank", node, script)
            lines += sorted(done.stdout.splitlines())
        after = "host1 29500 10.0.0.0/8 fabricrun-host1-29500"
        self.assertEqual(lines, [f"{rank} {local} {node} 5 {count} 2 {after}" for rank, local, node, count in
                                 ((0, 0, 0, 3), (1, 1, 0, 3), (2, 2, 0, 3), (3, 0, 1, 2), (4, 1, 1, 2))])

    def test_nodes_of_slurm_come_from_its_variables(self):
        self.environment |= {"SLURM_NNODES": "3", "SLURM_NODEID": "2", "SLURM_JOB_ID": "12345",
                             "SLURM_JOB_NODELIST": "node[07-08],other"}
        script = self.script("""
            import os
            print(*(os.environ[name] for name in "RANK WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT".split()))
        """)
        done = self.run_it("--nnodes", "slurm", script)
        self.assertEqual(done.stdout.split(), ["2", "3", "2", "node07", "20345"])

    def test_what_nodes_lack_is_named(self):
        for arguments, text in (
                (("--nnodes", "2"), "--nnodes 2 needs --node-rank"),
                (("--nnodes", "2", "--node-rank", "1"), "--nnodes 2 needs --master-addr"),
                (("--nnodes", "2", "--node-rank", "1", "--master-addr", "a"), "--nnodes 2 needs --master-port"),
                (("--nnodes", "1:3"), "--nnodes: '1:3' is no number"),
                (("--nnodes", "0"), "--nnodes: '0' is no number"),
                (("--daemon", ""), "--daemon: the value is empty"),
                (("--trusted", ""), "--trusted: the value is empty"),
                (("--nnodes", "slurm"), "SLURM_NNODES, SLURM_NODEID"),
                (("--node-rank", "1"), "--node-rank: 1 is not below --nnodes 1"),
                (("--nproc-per-node", "1,2"), "--nproc-per-node: 2 numbers for 1 nodes"),
                (("--nproc-per-node", "1,"), "no number of processes"),
                (("--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "--master-port", "1",
                  "--max-restarts", "1"), "--max-restarts: the nodes know nothing")):
            with self.subTest(arguments):
                done = self.run_it(*arguments, "absent.py", code=2)
                self.assertIn(text, done.stderr)

    def test_underscores_modules_and_programs_are_taken(self):
        self.script("import os, sys; os.write(1, f'module {sys.argv[1]}\\n'.encode())", "thing.py")
        done = self.run_it("--nproc_per_node", "2", "-m", "thing", "a")
        self.assertEqual(done.stdout.split(), ["module", "a"] * 2)
        done = self.run_it("--nproc-per-node", "2", "--no-python", "/bin/echo", "plain")
        self.assertEqual(done.stdout.split(), ["plain"] * 2)

    def test_a_script_sees_itself_as_main_beside_its_neighbours(self):
        self.script("value = 42", "neighbour.py")
        script = self.script("""
            import sys, neighbour
            assert __name__ == "__main__" and sys.argv == [__file__, "--flag"], sys.argv
            print(neighbour.value)
        """)
        self.assertEqual(self.run_it(script, "--flag").stdout.split(), ["42"])

    def test_the_first_failure_ends_the_job_and_is_named(self):
        script = self.script("""
            import os, signal, sys
            if os.environ["RANK"] == "1":
                sys.exit(7)
            signal.pause()
        """)
        done = self.run_it("--nproc-per-node", "3", script, code=7)
        self.assertRegex(done.stderr, r"rank 1 \(pid \d+\) exited with code 7")

    def test_a_killed_rank_gives_128_and_the_signal(self):
        script = self.script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
        done = self.run_it(script, code=128 + signal.SIGSEGV)
        self.assertIn("was killed by SIGSEGV", done.stderr)

    def test_what_ignores_sigterm_is_killed_after_the_grace(self):
        script = self.script("""
            import os, signal, sys, pathlib
            if os.environ["RANK"] == "0":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                pathlib.Path("ready").touch()
                while True:
                    signal.pause()
            while not pathlib.Path("ready").exists():
                pass
            sys.exit(1)
        """)
        self.run_it("--nproc-per-node", "2", "--grace", "0.3", script, code=1)

    def test_children_of_ranks_end_too(self):
        script = self.script("""
            import os, subprocess, sys
            subprocess.Popen(["sleep", "1000"])
            sys.exit(0 if os.environ["RANK"] == "0" else 3)
        """)
        self.run_it("--nproc-per-node", "2", script, code=3)

    def test_a_failed_job_starts_again_as_a_whole(self):
        script = self.script("""
            import os, sys, signal
            attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            os.write(1, f"attempt {attempt} rank {os.environ['RANK']}\\n".encode())
            if attempt < 2:
                if os.environ["RANK"] == "1":
                    sys.exit(5)
                signal.pause()
        """)
        done = self.run_it("--nproc-per-node", "2", "--max-restarts", "3", script)
        for attempt in range(3):
            self.assertIn(f"attempt {attempt} rank 1", done.stdout)
        self.assertIn("starting again (2 of 3)", done.stderr)
        self.assertNotIn("attempt 3", done.stdout)

    def test_restarts_run_out(self):
        script = self.script("raise SystemExit(4)")
        done = self.run_it("--max-restarts", "1", script, code=4)
        self.assertEqual(done.stderr.count("exited with code 4"), 2)

    def test_signals_end_the_job(self):
        script = self.script("""
            import os, pathlib, signal
            pathlib.Path("ready" + os.environ["RANK"]).touch()
            signal.pause()
        """)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for stale in self.folder.glob("ready*"):
                stale.unlink()
            process = subprocess.Popen(
                self.command("--nproc-per-node", "2", script), env=self.environment,
                cwd=self.folder, stderr=subprocess.PIPE, text=True)
            self.await_files("ready0", "ready1")
            process.send_signal(number)
            _, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 128 + number, errors)
            self.assertIn(f"ended by {number.name}", errors)
            self.nothing_left()

    def test_nothing_survives_a_killed_fabricrun(self):
        script = self.script("""
            import os, pathlib, signal
            pathlib.Path("ready" + os.environ["RANK"]).touch()
            signal.pause()
        """)
        process = subprocess.Popen(self.command("--nproc-per-node", "2", script),
                                   env=self.environment, cwd=self.folder)
        self.await_files("ready0", "ready1")
        process.kill()
        process.wait(TIMEOUT)
        limit = time.monotonic() + 20
        while processes_with(self.mark):
            self.assertLess(time.monotonic(), limit, "processes are left")
            time.sleep(0.02)

    def test_completions_have_every_option_and_the_shells_take_them(self):
        parser = run.make_parser()
        names = [name for action in parser._actions for name in action.option_strings]
        for shell in ("bash", "zsh", "fish"):
            script = self.run_it("--completion", shell).stdout
            for name in names:
                wanted = f"-l {name[2:]} " if shell == "fish" and name.startswith("--") else name
                self.assertIn(wanted if shell != "fish" or name.startswith("--") else f"-s {name[1:]} ",
                              script)
            if shutil.which(shell):
                path = self.script(script, shell)
                done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def offered(self, *words):
        """What bash offers for the last of these words."""
        file = self.folder / "completion"
        file.write_text(self.run_it("--completion", "bash").stdout)
        done = subprocess.run(
            ["bash", "-c", 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fabricrun; '
             'printf "%s\\n" "${COMPREPLY[@]}"', str(file), "fabricrun", *words],
            capture_output=True, text=True, cwd=self.folder)
        return done.stdout.split()

    def test_bash_is_offered_options_their_values_and_scripts(self):
        self.script("", "train.py")
        self.assertEqual(self.offered("--nproc"), ["--nproc-per-node"])
        self.assertEqual(self.offered("--completion", "z"), ["zsh"])
        self.assertEqual(self.offered("--grace", ""), [])
        self.assertEqual(self.offered("--prefix", "tr"), ["train.py"])

    def test_an_unknown_shell_is_refused(self):
        done = self.run_it("--completion", "tcsh", code=2)
        self.assertIn("tcsh", done.stderr)

    def test_lines_carry_their_rank_on_demand(self):
        script = self.script("""
            import os, sys
            print("out", flush=True)
            sys.stderr.write("no newline")
        """)
        done = self.run_it("--nproc-per-node", "2", "--prefix", script)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] out", "[1] out"])
        self.assertEqual(sorted(done.stderr.splitlines()), ["[0] no newline", "[1] no newline"])
        done = self.run_it("--nproc-per-node", "2", "--prefix", "--colour", "always", script)
        self.assertEqual(sorted(done.stdout.splitlines()), ["\x1b[32m[0]\x1b[0m out", "\x1b[33m[1]\x1b[0m out"])

    def test_a_running_daemon_is_used_and_left_alone(self):
        script = self.script("import os; print(os.environ['FABRIC_SOCKET'])")
        with daemon.EmbeddedDaemon(pool_bytes=64 << 20) as running:
            done = self.run_it("--daemon", running.socket, script)
            self.assertEqual(done.stdout.strip(), running.socket)
            self.environment["FABRIC_SOCKET"] = running.socket
            done = self.run_it("--no-daemon", script)
            self.assertEqual(done.stdout.strip(), running.socket)
            self.assertTrue(daemon.answers(running.socket))

    def test_what_cannot_start_says_why(self):
        script = self.script("")
        self.assertIn("no fabricd runs", self.run_it("--no-daemon", script, code=2).stderr)
        self.assertIn("/nowhere", self.run_it("--daemon", "/nowhere", script, code=2).stderr)
        self.assertIn("needs --node-rank", self.run_it("--nnodes", "2", script, code=2).stderr)
        self.assertIn("no size", self.run_it("--arena-bytes", "much", script, code=2).stderr)
        for options, part in ((("--wrap", "--no-python"), "--wrap is for Python scripts"),
                              (("--wrap-reduction", "sum"), "--wrap-reduction is for --wrap"),
                              (("--strategy", "parameter-server"), "--strategy is for --wrap"),
                              (("--wrap", "--staleness", "1"), "--staleness is for --strategy"),
                              (("--wrap", "--strategy", "parameter-server", "--nnodes", "2", "--node-rank", "0", "--master-addr",
                                "host1", "--master-port", "29500"), "a parameter server is of one host")):
            self.assertIn(part, self.run_it(*options, script, code=2).stderr)
        for option, part in (("--max-restarts=-1", "number of restarts from 0"), ("--grace=-1", "seconds from 0"),
                             ("--grace=nan", "seconds from 0"), ("--master-port=99999", "port from 0 to 65535")):
            said = self.run_it(option, script, code=2).stderr
            self.assertIn(f"argument {option.split('=')[0]}: ", said)
            self.assertIn(part, said)
        self.environment["FABRICD"] = "/bin/false"
        self.assertIn("fabricd did not start", self.run_it(script, code=2).stderr)


    def test_the_version_is_the_packages(self):
        import fabricshm
        self.assertEqual(self.run_it("--version").stdout, f"fabricrun {fabricshm.__version__}\n")

    def test_a_missing_script_is_one_line(self):
        for arguments, part in ((("nosuch.py",), "there is no script 'nosuch.py'"),
                                (("-m", "nosuch.part"), "there is no module 'nosuch.part'"),
                                (("--no-python", "nosuch"), "there is no program 'nosuch'"),
                                ((str(self.folder),), "is a folder without a __main__.py")):
            said = self.run_it("--nproc-per-node", "2", *arguments, code=2).stderr
            self.assertIn(part, said)
            self.assertEqual(said.count("\n"), 1, said)


class WithTorch(LauncherCase):
    @classmethod
    def setUpClass(cls):
        try:
            import torch.distributed  # noqa: F401
        except ImportError as error:
            raise unittest.SkipTest(str(error))

    TRAINING = """
        import os
        import torch
        import torch.distributed as dist
        dist.init_process_group("{backend}")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
        model(torch.ones(3, 20)).sum().backward()
        value = torch.ones(1)
        dist.all_reduce(value)
        os.write(1, f"{{dist.get_backend()}} {{int(value.item())}}\\n".encode())
        dist.destroy_process_group()
    """

    def test_an_unmodified_script_trains(self):
        script = self.script(self.TRAINING.format(backend="fabricshm"))
        done = self.run_it("--nproc-per-node", "2", script)
        self.assertEqual(done.stdout.split(), ["fabricshm", "2"] * 2)

    def test_a_script_that_asks_for_gloo_gets_what_it_asks_for_unless_overridden(self):
        script = self.script(self.TRAINING.format(backend="gloo"))
        done = self.run_it("--nproc-per-node", "2", script)
        self.assertEqual(done.stdout.split(), ["gloo", "2"] * 2)
        done = self.run_it("--nproc-per-node", "2", "--override-backend", script)
        self.assertEqual(done.stdout.split(), ["fabricshm", "2"] * 2)


if __name__ == "__main__":
    try:
        daemon.find_program()
    except FileNotFoundError as error:
        fabric_test.skip(error)
    fabric_test.main()
