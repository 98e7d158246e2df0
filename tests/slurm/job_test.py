"""fabricctl jobs submit --slurm under a real Slurm: one job file of two groups, one world over two nodes."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python", "support"))
sys.path.insert(0, os.path.dirname(__file__))
import fabric_test  # noqa: E402
import slurm_cluster  # noqa: E402
from slurm_test import FABRICCTL, PLUGIN, Fabricd  # noqa: E402

RANK = Path(__file__).resolve().parent / "job_rank.py"
DEVICES = "".join(f'[[device]]\nname = "{kind}0"\nkind = "{kind}"\ngflops = {speed}\nmemory = "1GiB"\nlink_gbytes_per_s = 10\n'
                  for kind, speed in (("cpu", 20), ("npu", 30)))
GROUPS = ('[[group]]\nkind = "cpu"\nranks = 2\npool = "64MiB"\nslurm = ["--constraint=a"]\n',
          '[[group]]\nkind = "npu"\nranks = 1\npool = "16MiB"\nslurm = ["--constraint=b"]\n')
HOSTILE = ["it's", ":", "$(touch gone) `touch gone` \" \\", "", "--het-group=9", "a\nb"]


def setUpModule():
    """One Slurm and one fabricd for all cases."""
    global FABRICD, CLUSTER, JOBS, DEVICE_FILE
    folder = tempfile.TemporaryDirectory(prefix="fabric-slurm-jobs-")
    unittest.addModuleCleanup(folder.cleanup)
    JOBS = Path(folder.name) / "jobs of it's"
    DEVICE_FILE = Path(folder.name) / "devices.toml"
    DEVICE_FILE.write_text(DEVICES)
    FABRICD = Fabricd("--devices-file", DEVICE_FILE)
    FABRICD.start()
    unittest.addModuleCleanup(FABRICD.remove)
    line = f"optional {PLUGIN} socket={FABRICD.socket} fabricctl={FABRICCTL} spool={FABRICD.spool}"
    CLUSTER = slurm_cluster.Cluster(plugin_line=line, slurm_lines="GresTypes=fabric,npu\n", npus=2)
    unittest.addModuleCleanup(CLUSTER.stop)


class Jobs(unittest.TestCase):
    def setUp(self):
        self.addCleanup(CLUSTER.wait_idle)

    def ctl(self, *words, check=0, **more):
        done = CLUSTER.run(FABRICCTL, "jobs", *words, FABRIC_JOBS_DIR=str(JOBS),
                           FABRIC_ADMIN_SOCKET=str(FABRICD.runtime / "admin.sock"), **more)
        self.assertEqual(done.returncode, check, done.stdout + done.stderr)
        return done

    def file(self, name, arguments=(), *lines):
        path = CLUSTER.folder / f"{name}.toml"
        path.write_text("\n".join(('[job]', f'name = "{name}"', f'script = "{RANK}"', f'interpreter = "{sys.executable}"',
                                   f"arguments = {json.dumps(list(arguments))}", 'schedule = "by-resource"', 'grace = "5s"',
                                   *lines, "")) + "".join(GROUPS))
        return path

    def submit(self, *words, **more):
        """The number of the job, and Slurm's."""
        done = self.ctl("submit", "--slurm", self.file(*words), "--devices", DEVICE_FILE, **more)
        return re.fullmatch(r"job (\d+) \(slurm (\d+)\)\n", done.stdout).groups()

    def record(self, job):
        return json.loads(self.ctl("show", job, "--json").stdout)

    def wait_for(self, job, *states):
        return slurm_cluster.wait_until(lambda: self.record(job) if self.record(job)["state"] in states else None,
                                        lambda: f"{self.record(job)}\n{self.logs(job)}\n{CLUSTER.logs()}")

    def wait_for_lines(self, job, count):
        slurm_cluster.wait_until(lambda: len(self.logs(job)) == count, lambda: f"{self.logs(job)}\n{CLUSTER.logs()}")

    def logs(self, job):
        return self.ctl("logs", job).stdout.splitlines()

    def said(self, job):
        """All that there is of a job, for a case that fails."""
        return (JOBS / job / "slurm.log").read_text() + self.ctl("logs", job).stdout

    def states(self, job):
        return [edge["state"] for edge in self.record(job)["edges"]]

    def assert_no_leaks(self):
        CLUSTER.wait_idle()
        slurm_cluster.wait_until(lambda: self.ctl_leaks() == "", self.ctl_leaks)

    def ctl_leaks(self):
        done = subprocess.run([FABRICCTL, "jobs", "leaks", "--socket", FABRICD.runtime / "admin.sock"], capture_output=True,
                              text=True, check=False, env={**CLUSTER.environment, "FABRIC_JOBS_DIR": str(JOBS)})
        return done.stdout + done.stderr

    def test_groups_of_two_kinds_on_two_nodes_are_one_world(self):
        job, slurm = self.submit("two", HOSTILE)
        record = self.wait_for(job, "ended")
        self.assertEqual((record["outcome"], record["code"], record["slurm"]), ("ok", 0, slurm), CLUSTER.logs())
        self.assertEqual([state for state in self.states(job) if state != "queued"], ["placed", "running", "ended"])
        text = self.ctl("logs", job).stdout
        end = f"127.0.0.1 slurm-{slurm}-0 " + " ".join(HOSTILE).replace("\n", "\n[{0}] ") + "\n"
        shares = f"two {{}} {{}} 0.2,0.2,0.6 {64 << 20} "
        for rank, line in enumerate(("local 0/2 node 0/2 " + shares.format(0, "cpu cpu0"), "local 1/2 node 0/2 " + shares.format(0, "cpu cpu0"),
                                     "local 0/1 node 1/2 " + shares.format(1, "npu npu0"))):
            self.assertIn(f"[{rank}] sum 6 world 3 {line}{end.format(rank)}", text)
        self.assertFalse((CLUSTER.folder / "gone").exists())
        self.assertIn(f"job {slurm} of Slurm", self.ctl("show", job).stdout)
        self.assert_no_leaks()

    def test_the_code_is_that_of_the_rank_that_failed(self):
        job, _ = self.submit("fails", ("fail", "7"))
        record = self.wait_for(job, "ended")
        self.assertEqual((record["outcome"], record["code"]), ("failed", 7), self.said(job))
        self.assertIn("rank 1 ended with code 7", self.said(job))
        self.assertIn("a rank failed with code 7", self.ctl("why", job).stdout)
        self.assert_no_leaks()

    def test_a_rank_that_fails_costs_a_restart_of_all(self):
        job, slurm = self.submit("again", ("fail", "3", "ONCE"), "max_restarts = 1")
        record = self.wait_for(job, "ended")
        self.assertEqual((record["outcome"], record["code"]), ("ok", 0), self.said(job))
        self.assertEqual([state for state in self.states(job) if state != "queued"],
                         ["placed", "running", "repairing", "running", "ended"])
        for attempt in (0, 1):
            self.assertEqual(len([line for line in self.logs(job) if f"slurm-{slurm}-{attempt} " in line]), 3)
        self.assert_no_leaks()

    def test_cancel_releases_everything(self):
        job, _ = self.submit("held", ("hold",))
        self.wait_for_lines(job, 3)
        self.assertEqual(len(FABRICD.ask("arenas").stdout.split('"name"')), 2)
        self.ctl("cancel", job)
        record = self.wait_for(job, "ended")
        self.assertEqual((record["outcome"], record["code"]), ("cancelled", 143))
        self.assertIn("has ended: Slurm: CANCELLED", self.ctl("cancel", job, check=1).stderr)
        self.assert_no_leaks()
        self.assertEqual(json.loads(FABRICD.ask("arenas").stdout)["arenas"], [])

    def test_a_job_that_is_requeued_waits_and_begins_again(self):
        job, slurm = self.submit("requeued", ("hold",), "max_restarts = 1")
        self.wait_for_lines(job, 3)
        self.assertEqual(CLUSTER.run("scontrol", "requeue", slurm).returncode, 0)
        # Not before the journal's last line is older than what two clocks may differ by.
        record = self.wait_for(job, "queued")
        self.assertEqual(record["edges"][-1]["reason"], "requeued; Slurm: BeginTime")
        # Slurm lets a job wait for two minutes then; of both components.
        for component in (int(slurm), int(slurm) + 1):
            self.assertEqual(CLUSTER.run("scontrol", "update", f"JobId={component}", "StartTime=now").returncode, 0)
        self.wait_for_lines(job, 6)
        # Ranks that have one restart for each begin of the job know that they were started before.
        for attempt in (0, 2):
            self.assertEqual(len([line for line in self.logs(job) if f"slurm-{slurm}-{attempt} " in line]), 3, self.logs(job))
        self.assertEqual(self.states(job)[-2:], ["placed", "running"])
        self.ctl("cancel", job)
        self.assertEqual(self.wait_for(job, "ended")["outcome"], "cancelled")
        self.assert_no_leaks()

    def test_a_node_that_is_down_ends_a_job_without_restarts(self):
        job, _ = self.submit("down", ("hold",))
        self.wait_for_lines(job, 3)
        self.addCleanup(CLUSTER.run, "scontrol", "update", "NodeName=host2", "State=resume")
        CLUSTER.run("scontrol", "update", "NodeName=host2", "State=down", "Reason=test")
        record = self.wait_for(job, "ended")
        self.assertEqual((record["outcome"], record["code"], record["edges"][-1]["reason"]), ("failed", 1, "Slurm: NODE_FAIL"))
        CLUSTER.run("scontrol", "update", "NodeName=host2", "State=resume")
        self.assert_no_leaks()

    def test_what_squeue_says_of_the_time_limit_is_code_124(self):
        # Slurm's shortest limit is a minute: its word is written by hand here.
        job, slurm = self.submit("late", ("hold",))
        self.wait_for_lines(job, 3)
        squeue = CLUSTER.folder / "late/squeue"
        squeue.parent.mkdir()
        squeue.write_text(f"#!/bin/sh\necho '{slurm}|TIMEOUT|TimeLimit'\n")
        squeue.chmod(0o755)
        self.ctl("list", PATH=f"{squeue.parent}:{CLUSTER.environment['PATH']}")
        record = self.record(job)
        self.assertEqual((record["outcome"], record["code"], record["edges"][-1]["reason"]), ("failed", 124, "Slurm: TIMEOUT"))
        CLUSTER.run("scancel", slurm)
        self.assert_no_leaks()

    def test_a_job_after_one_that_fails_never_begins(self):
        first, _ = self.submit("first", ("fail", "2"))
        second, slurm = self.submit("second", (), 'after = ["first"]')
        third = self.file("third", (), 'after = ["gone"]')
        self.assertIn("after: there is no job gone", self.ctl("submit", "--slurm", third, "--devices", DEVICE_FILE, check=2).stderr)
        self.wait_for(first, "ended")
        record = self.wait_for(second, "ended")
        self.assertEqual(record["outcome"], "cancelled", record)
        self.assertNotIn("running", self.states(second))
        self.assertIn("after: job second cancelled",
                      self.ctl("submit", "--slurm", self.file("fourth", (), 'after = ["second"]'), "--devices", DEVICE_FILE,
                               check=2).stderr)

    def test_what_slurm_refuses_is_one_line_and_an_end(self):
        path = self.file("big")
        path.write_text(path.read_text().replace("ranks = 1", "ranks = 3"))
        done = self.ctl("submit", "--slurm", path, "--devices", DEVICE_FILE, check=1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("Requested node configuration is not available", done.stderr)
        self.assertIn("ended failed", self.ctl("why", "big").stdout)

    def test_check_starts_nothing_and_a_host_without_slurm_says_so(self):
        path = self.file("dry")
        before = len(list(JOBS.iterdir())) if JOBS.exists() else 0
        text = self.ctl("check", "--slurm", path, "--devices", DEVICE_FILE).stdout
        self.assertIn(" --gres=npu:1 --constraint=b ", text)
        self.assertRegex(text, r"2 +1 +npu +slurm-1\.0 +npu0 +60\.0 % +compute")
        self.assertIn("--devices FILE", self.ctl("check", "--slurm", path, check=2).stderr)
        self.assertEqual(before, len(list(JOBS.iterdir())) if JOBS.exists() else 0)
        done = self.ctl("submit", "--slurm", path, "--devices", DEVICE_FILE, check=1, PATH="/nonexistent")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_check_names_what_slurm_leaves_out(self):
        self.assertEqual(self.ctl("check", "--slurm", self.file("all"), "--devices", DEVICE_FILE).stderr, "")
        path = self.file("less", (), "priority = 5", "min_ranks = 2", "max_restarts = 1", 'device_fault = "move"')
        said = self.ctl("check", "--slurm", path, "--devices", DEVICE_FILE).stderr.splitlines()
        self.assertEqual([line.split(":")[1] for line in said], [" priority", " min_ranks", ' device_fault = "move"'])
        self.assertTrue(all(line.endswith(", it is left out") for line in said), said)


def main():
    missing = slurm_cluster.missing()
    if missing:
        fabric_test.skip(f"no {', '.join(missing)} here (scripts/setup installs slurmctld, slurmd, slurm-client, munge)")
    if not PLUGIN.is_file():
        fabric_test.skip("built without the plugin (scripts/setup installs libslurm-dev)")
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
