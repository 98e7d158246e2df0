"""fabricd under a real Slurm: srun --fabric=SIZE, GRES, licences, and what is left when something dies."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python", "support"))
sys.path.insert(0, os.path.dirname(__file__))
import fabric_test  # noqa: E402
import slurm_cluster  # noqa: E402

from fabricshm import _daemon  # noqa: E402

BUILD = Path(os.environ["FABRIC_BUILD_DIR"]).resolve()
FABRICCTL = BUILD / "fabricd/ctl/fabricctl"
PLUGIN = BUILD / "fabricd/slurm/fabric.so"
JOB_SUBMIT = Path(__file__).resolve().parents[2] / "packaging/slurm/job_submit.lua"
HAS_LUA = slurm_cluster.has_plugin("job_submit_lua")
TRAINER = Path(__file__).resolve().parent / "trainer.py"
TRAIN = (sys.executable, TRAINER)
POOL_UNITS = 2      # of 1 GiB: what any machine has
UNITS = 64          # that Slurm counts: it knows no pools
PLUGIN_TIMEOUT = 3  # seconds
COMPONENTS = ("-n1", "-C", "a", "--fabric=64M", *TRAIN, "sum", ":", "-n2", "-C", "b", "--fabric=64M", *TRAIN, "sum")
# Users that every Debian has: the group of the one is admitted, the other one is in no such group.
GUEST, STRANGER = "daemon", "bin"
ADMITTED = ["--server-socket-group", GUEST, "--server-socket-mode", "0660"] if os.geteuid() == 0 else []
WAIT = "until [ -e {} ]; do sleep 0.01; done"


class Fabricd:
    """At one place, where it can be ended and started again."""

    def __init__(self, *words):
        self.words = words
        # Not below a folder that is for root alone.
        self.folder = Path(tempfile.mkdtemp(prefix="fabricd-slurm-"))
        self.folder.chmod(0o755)
        self.runtime = self.folder / "run"
        self.socket = self.runtime / "attach.sock"
        self.spool = self.folder / "spool"
        self.process = None

    def start(self):
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [_daemon.find_program(), "--config", os.devnull, "--server-runtime-dir", self.runtime,
                 "--pool-capacity", f"{POOL_UNITS}GiB", *ADMITTED, *self.words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_daemon.die_with_parent)
        slurm_cluster.wait_until(lambda: self.ask("status").returncode == 0, "fabricd did not start")

    def ask(self, *words):
        """fabricctl to its end."""
        return subprocess.run([FABRICCTL, *words, "--json", "--socket", self.runtime / "admin.sock"], capture_output=True,
                              text=True, check=False, timeout=slurm_cluster.ENDED)

    def end(self):
        self.process.terminate()
        self.process.wait()

    @contextlib.contextmanager
    def ended(self):
        self.end()
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def stopped(self):
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def remove(self):
        self.end()
        _daemon.shutil.rmtree(self.folder, ignore_errors=True)


def setUpModule():
    """One Slurm and one fabricd for all cases; each case leaves both idle. What fabricctl prints for this pool is what
    Slurm is configured with."""
    global FABRICD, CLUSTER
    FABRICD = Fabricd()
    FABRICD.start()
    unittest.addModuleCleanup(FABRICD.remove)
    files = ask("slurm-config")["files"]
    assert re.fullmatch(rf"NodeName=\S+ Name=fabric Count={POOL_UNITS} Flags=CountOnly\n", files["gres.conf"]), files
    plugin = files["plugstack.conf"].strip()
    assert plugin == f"optional {PLUGIN} socket={FABRICD.socket} fabricctl={FABRICCTL}", files
    types, licence = (re.search(pattern, files["slurm.conf"], re.MULTILINE).group(1)
                      for pattern in ("^(GresTypes=.*)", "^# (Licenses=.*)"))
    assert licence == f"Licenses=fabricpool:{POOL_UNITS}", files
    CLUSTER = slurm_cluster.Cluster(plugin_line=f"{plugin} timeout={PLUGIN_TIMEOUT} spool={FABRICD.spool}", gres_units=UNITS,
                                    slurm_lines=f"{types}\nLicenses=fabricpool:{UNITS}\n",
                                    job_submit=JOB_SUBMIT if HAS_LUA else None)
    unittest.addModuleCleanup(CLUSTER.stop)


def ask(*words):
    """What fabricctl says, as JSON."""
    done = FABRICD.ask(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def srun(*words, **more):
    return CLUSTER.run("srun", *words, **more)


def lines_of(text, part):
    return [line for line in text.splitlines() if part in line]


class Case(unittest.TestCase):
    def setUp(self):
        self.go = CLUSTER.folder / f"go-{self.id()}"
        self.addCleanup(self.assert_nothing_is_left)

    def assert_nothing_is_left(self):
        self.go.touch()  # for what a failed case left waiting
        CLUSTER.wait_idle()
        slurm_cluster.wait_until(lambda: ask("arenas")["arenas"] == [], lambda: str(ask("arenas")))

    def assert_good(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def assert_refused(self, done, line):
        """The tasks did not run, and the user gets one line that says why."""
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        said = lines_of(done.stderr, "fabric: ")
        self.assertEqual(len(said), 1, done.stderr)
        self.assertRegex(said[0], line)

    def ended(self, process):
        out, error = process.communicate(timeout=slurm_cluster.ENDED)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def start(self, *words):
        process = CLUSTER.start("srun", *words)
        self.addCleanup(lambda: process.poll() is not None or process.kill())
        return process

    def wait_for_state(self, name, state, reason=None):
        def found():
            out = CLUSTER.run("squeue", "-h", "-n", name, "-o", "%T|%r").stdout.strip()
            return out == f"{state}|{reason}" if reason else out.startswith(state)
        slurm_cluster.wait_until(found, lambda: f"{name} is not {state}: {CLUSTER.jobs()}\n{CLUSTER.logs()}")


class Steps(Case):
    def test_ranks_of_a_step_add_up_in_the_arena_of_their_job(self):
        done = srun("-N1", "-n2", "--fabric=64M", *TRAIN, "sum")
        self.assert_good(done)
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(len(lines), 2, done.stdout)
        for rank, line in enumerate(lines):
            self.assertRegex(line, rf"^sum 3 rank {rank} of 2 local {rank} of 2 node 0 of 1 launcher slurm arena slurm-\d+$")

    def test_torch_finds_the_arena_and_its_size_by_itself(self):
        done = srun("-N1", "-n2", "--fabric=64M", *TRAIN, "torch", MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(slurm_cluster.free_ports(1)[0]))
        self.assert_good(done)
        self.assertEqual(len(re.findall(r"^sum 3 rank [01] of 2 ", done.stdout, re.MULTILINE)), 2, done.stdout)

    def test_two_nodes_number_their_ranks_through_and_know_their_places(self):
        done = srun("-N2", "--ntasks-per-node=2", "--fabric=64M", *TRAIN, "sum")
        self.assert_good(done)
        places = sorted(re.findall(r"rank (\d) of 4 local (\d) of (\d) node (\d) of (\d)", done.stdout))
        self.assertEqual(places, [("0", "0", "2", "0", "2"), ("1", "1", "2", "0", "2"), ("2", "0", "2", "1", "2"),
                                  ("3", "1", "2", "1", "2")], done.stdout)

    def test_a_fabricrun_on_each_node_takes_its_place_from_slurm(self):
        done = srun("-N2", "--ntasks-per-node=1", "--fabric=64M", sys.executable, "-m", "fabricshm.run", "--no-daemon",
                    "--nnodes", "slurm", "--nproc-per-node", "1,2", TRAINER, "sum")
        self.assert_good(done)
        places = sorted(re.findall(r"^sum 6 rank (\d) of 3 local (\d) of (\d) node (\d) of 2 launcher torchrun arena slurm-",
                                   done.stdout, re.MULTILINE))
        self.assertEqual(places, [("0", "0", "1", "0"), ("1", "0", "2", "1"), ("2", "1", "2", "1")], done.stdout)

    def assert_three_ranks_of_one_arena(self, done):
        self.assert_good(done)
        places = sorted(re.findall(r"^sum 6 rank (\d) of 3 local (\d) of (\d) node (\d) of 2 launcher slurm arena (\S+)$",
                                   done.stdout, re.MULTILINE))
        self.assertEqual([place[:4] for place in places],
                         [("0", "0", "1", "0"), ("1", "0", "2", "1"), ("2", "1", "2", "1")], done.stdout)
        self.assertEqual(len({place[4] for place in places}), 1, done.stdout)

    def test_components_of_a_heterogeneous_job_are_one_job(self):
        self.assert_three_ranks_of_one_arena(srun(*COMPONENTS))

    def test_components_of_a_heterogeneous_step_are_one_job(self):
        self.assert_three_ranks_of_one_arena(
            CLUSTER.run("salloc", "-N2", "--ntasks-per-node=2", "--fabric=64M", "srun", *COMPONENTS))

    def test_steps_of_a_batch_job_share_what_the_job_asked_for(self):
        script = CLUSTER.folder / "job.sh"
        script.write_text(f"""#!/bin/sh
#SBATCH --ntasks=2 --nodes=1 --fabric=64M
echo script $FABRIC_ARENA $FABRIC_ARENA_BYTES $FABRIC_SOCKET
{TRAIN[0]} -c "import fabricshm; fabricshm.launch()" 2>&1 | tail -n 1
srun {TRAIN[0]} {TRAINER} sum
{TRAIN[0]} -m fabricshm.run --no-daemon --nproc-per-node 2 {TRAINER} sum
""")
        done = CLUSTER.run("sbatch", "--parsable", "-o", "job.out", script)
        self.assert_good(done)
        CLUSTER.wait_idle()
        output = (CLUSTER.folder / "job.out").read_text()
        arena = f"slurm-{done.stdout.strip()}"
        self.assertIn(f"script {arena} {64 << 20} {FABRICD.socket}\n", output)
        self.assertRegex(output, r"NotFoundError: .*RANK and WORLD_SIZE")  # a script is no rank
        self.assertEqual(len(re.findall(rf"^sum 3 .* launcher slurm arena {arena}$", output, re.MULTILINE)), 2, output)
        self.assertEqual(len(re.findall(rf"^sum 3 .* launcher torchrun arena {arena}$", output, re.MULTILINE)), 2, output)

    def test_without_the_option_nothing_is_set(self):
        done = srun("-n1", "env")
        self.assert_good(done)
        self.assertEqual(lines_of(done.stdout, "FABRIC_"), [])


class Refusals(Case):
    def test_the_option_is_in_the_help_and_takes_sizes_alone(self):
        self.assertRegex(srun("--help").stdout, r"--fabric=SIZE\s+bytes of fabricd's pool")
        for text in ("64X", "0", "much"):
            done = srun("-n1", f"--fabric={text}", "true")
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stderr.splitlines()[0],
                             f"srun: error: --fabric: '{text}' is no size; expected bytes, as 64M or 48G")

    def test_more_than_the_pool_is_refused(self):
        done = srun("-N1", "-n2", "--fabric=3G", "echo", "ran")
        self.assert_refused(done, r"fabric: 3 GiB wanted for job \d+, 2 GiB of the pool's 2 GiB are free$")

    def test_a_step_that_wants_more_than_its_job_asked_for_is_refused(self):
        script = CLUSTER.folder / "more.sh"
        script.write_text("""#!/bin/sh
#SBATCH --ntasks=1 --nodes=1 --fabric=64M
srun --fabric=65M echo ran
srun --fabric=32M echo less
""")
        done = CLUSTER.run("sbatch", "--parsable", "-o", "more.out", script)
        self.assert_good(done)
        CLUSTER.wait_idle()
        output = (CLUSTER.folder / "more.out").read_text()
        job = done.stdout.strip()
        self.assertIn(f"fabric: 65 MiB wanted for a step of job {job}, which asked for 64 MiB\n", output)
        self.assertNotIn("ran", output)
        self.assertIn("less\n", output)

    def test_a_job_counts_with_what_it_asked_for_and_not_with_what_it_has_touched(self):
        # Without GRES, so that only fabricd can refuse.
        first = self.start("-J", "first", "-n1", "--fabric=1536M", *TRAIN, "hold", self.go)
        slurm_cluster.wait_until(lambda: ask("arenas")["arenas"], CLUSTER.logs)
        self.assert_refused(srun("-n1", "--fabric=1G", "echo", "ran"),
                            r"1 GiB wanted .* 512 MiB of the pool's 2 GiB are free$")
        self.assert_good(srun("-n1", "--fabric=512M", "true"))
        self.go.touch()
        self.assert_good(self.ended(first))

    @unittest.skipUnless(os.geteuid() == 0, "only root starts jobs of other users")
    def test_users_that_may_not_attach_are_refused(self):
        words = ("--chdir=/", "-n1", "--fabric=64M", "echo", "ran")
        self.assert_good(srun(f"--uid={GUEST}", f"--gid={GUEST}", *words))
        self.assert_refused(srun(f"--uid={STRANGER}", f"--gid={STRANGER}", *words),
                            r"fabric: this user can't attach to \S+/attach\.sock: ")

    def test_a_daemon_that_is_gone_or_drains_is_named(self):
        with FABRICD.ended():
            self.assert_refused(srun("-n2", "--fabric=64M", "echo", "ran"), r"fabric: no fabricd answers at \S+/admin\.sock")
            self.assert_good(srun("-n1", "true"))  # what does not ask for it does not need it
        ask("drain")
        self.assert_refused(srun("-n1", "--fabric=64M", "echo", "ran"), r"fabric: fabricd is draining")
        ask("drain", "--off")

    def test_a_daemon_that_hangs_holds_a_job_up_for_the_timeout_and_no_longer(self):
        with FABRICD.stopped():
            done = srun("-n1", "--fabric=64M", "echo", "ran")
        self.assert_refused(done, rf"fabric: fabricd did not answer within {PLUGIN_TIMEOUT} s at \S+/admin\.sock$")


class Resources(Case):
    def one_after_the_other(self, *first, second):
        """Starts both, and lets the first one end when Slurm says that the second one waits for it."""
        leader = self.start("-J", "leader", *first, "sh", "-c", WAIT.format(self.go))
        self.wait_for_state("leader", "RUNNING")
        follower = self.start("-J", "follower", *second, "true")
        reason = "Licenses" if "-L" in second else "Resources"
        self.wait_for_state("follower", "PENDING", reason)
        self.go.touch()
        self.assert_good(self.ended(leader))
        self.assert_good(self.ended(follower))

    def test_two_jobs_of_40_units_of_64_run_one_after_the_other(self):
        words = ("-n1", "-w", "host1", "--gres=fabric:40")
        self.one_after_the_other(*words, second=words)

    @unittest.skipUnless(HAS_LUA, "Slurm has no job_submit/lua here (package slurm-wlm-basic-plugins)")
    def test_the_option_counts_by_itself_in_whole_units_unless_the_user_counted(self):
        for words, units in ((("--fabric=64M",), 1), (("--fabric=1GiB",), 1), (("--fabric=1025M",), 2), (("--fabric=1.5G",), 2),
                             (("--fabric=64M", "--gres=fabric:7"), 7)):
            done = srun("-n1", *words, "sh", "-c", "scontrol -d show job $SLURM_JOB_ID")
            self.assert_good(done)
            self.assertIn(f"JOB_GRES=fabric:{units}\n", done.stdout, words)
        done = srun("-n1", "--fabric=64.5G", "echo", "ran")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Requested node configuration is not available", done.stderr)

    def test_more_units_than_a_node_has_are_refused_at_once(self):
        done = srun("-n1", "--gres=fabric:65", "echo", "ran")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Requested node configuration is not available", done.stderr)

    def test_a_pool_of_all_hosts_is_a_licence(self):
        self.one_after_the_other("-n1", "-w", "host1", "-L", "fabricpool:40",
                                 second=("-n1", "-w", "host2", "-L", "fabricpool:40"))
        done = srun("-n1", "-L", "fabricpool:65", "echo", "ran")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Invalid license specification", done.stderr)


class Deaths(Case):
    def test_a_killed_rank_ends_the_step_and_leaves_nothing_in_the_pool(self):
        done = srun("-N1", "-n2", "--kill-on-bad-exit=1", "--fabric=64M", *TRAIN, "die")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Killed", done.stderr)

    def test_a_process_that_a_job_leaves_behind_is_ended_after_it(self):
        note = CLUSTER.folder / "left"
        done = srun("-n1", "--fabric=64M", *TRAIN, "leave", note)
        self.assert_good(done)
        pid = int(note.read_text())
        slurm_cluster.wait_until(lambda: not is_running(pid), lambda: f"process {pid} lives\n{CLUSTER.logs()}")

    def test_what_a_job_leaves_behind_while_the_daemon_is_away_is_ended_when_it_is_back(self):
        note, ready = CLUSTER.folder / "missed", CLUSTER.folder / "ready"
        step = self.start("-n1", "--fabric=64M", "sh", "-c",
                          f"{TRAIN[0]} {TRAINER} leave {note}; touch {ready}; " + WAIT.format(self.go))
        slurm_cluster.wait_until(ready.exists, CLUSTER.logs)
        pid = int(note.read_text())
        job = str(next(iter(FABRICD.spool.iterdir())).name)
        with FABRICD.ended():
            self.go.touch()
            self.assert_good(self.ended(step))
            CLUSTER.wait_idle()
            record = FABRICD.spool / job
            slurm_cluster.wait_until(lambda: record.read_text().endswith(" 1 .\n"), CLUSTER.logs)
            self.assertTrue(is_running(pid))
        self.assert_good(srun("-n1", "--fabric=64M", "true"))  # of any job
        slurm_cluster.wait_until(lambda: not is_running(pid), lambda: f"process {pid} lives\n{CLUSTER.logs()}")
        slurm_cluster.wait_until(lambda: not list(FABRICD.spool.iterdir()), CLUSTER.logs)

    def test_a_job_goes_on_without_a_controller_and_new_ones_hear_of_it(self):
        running = self.start("-J", "running", "-n2", "--fabric=64M", *TRAIN, "hold", self.go)
        slurm_cluster.wait_until(lambda: ask("arenas")["arenas"], CLUSTER.logs)
        CLUSTER.stop_controller()
        try:
            refused = srun("-n1", "--fabric=64M", "true")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("Unable to contact slurm controller", refused.stderr)
            self.go.touch()
        finally:
            CLUSTER.start_controller()
        done = self.ended(running)
        self.assert_good(done)
        self.assertEqual(len(lines_of(done.stdout, "sum 3 ")), 2)


def is_running(pid):
    """False also for one that has ended and was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main():
    missing = slurm_cluster.missing()
    if missing:
        fabric_test.skip(f"no {', '.join(missing)} here (scripts/setup installs slurmctld, slurmd, slurm-client, munge)")
    if not PLUGIN.is_file():
        fabric_test.skip("built without the plugin (scripts/setup installs libslurm-dev)")
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
