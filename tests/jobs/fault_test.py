"""Jobs whose devices or ranks fail for good: moves to other devices, fewer ranks, alarms. docs/jobs.md."""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from job_bench import DEVICES, DaemonJobTest, JobTest, wait_until  # noqa: E402

HERE = "--without-daemon"
GPU1 = DEVICES[:DEVICES.rindex("[[device]]")].replace("gpu0", "gpu1")
NO_CPUS = '[[group]]\nkind = "gpu"\nranks = {}\n'
# Runs until the test says so: ranks of the first attempt fail, later ones end well.
UNTIL = "echo at $FABRIC_DEVICE $WORLD_SIZE\nuntil [ -e end-$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.02; done\n" \
        "exit $(cat end-$TORCHELASTIC_RESTART_COUNT)\n"


class FewerRanks(JobTest):
    def test_with_the_restarts_used_up_the_job_goes_on_without_the_rank_that_fails(self):
        text = "[ $WORLD_SIZE = 3 ] && [ $RANK = 1 ] && exit 5\n[ $WORLD_SIZE = 3 ] && sleep 600\n" \
               "echo $RANK of $WORLD_SIZE: $FABRIC_JOB_SHARES, group $FABRIC_JOB_GROUP\n"
        job = self.job(self.script(text), "max_restarts = 1", "min_ranks = 2", ranks=(2, 1))
        done = self.ctl("run", job, HERE, check=0)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         ["[0] 0 of 2: 0.5,0.5, group 0", "[1] 1 of 2: 0.5,0.5, group 1"])
        self.assertIn("the job goes on with 2 of 3 ranks", done.stderr)
        edges = self.edges(1)
        self.assertEqual(sum("all ranks are started again (1 of 1)" in edge[1] for edge in edges), 1)
        self.assertEqual(sum("all other ranks are started again without it" in edge[1] for edge in edges), 1)
        self.assertIn(("placed", "the job goes on with 2 of 3 ranks"), edges)
        self.assert_nothing_left()

    def test_ranks_that_move_up_have_the_restarts_that_they_have_not_used(self):
        text = "[ $WORLD_SIZE = 3 ] && [ $RANK = 1 ] && exit 5\n[ $WORLD_SIZE = 3 ] && exec sleep 600\n" \
               "[ $RANK = 0 ] && exit 0\n[ -e failed ] && exit 0\ntouch failed\nexit 9\n"
        job = self.job(self.script(text), 'restart = "rank"', "max_restarts = 1", "min_ranks = 2", ranks=(3,))
        done = self.ctl("run", job, HERE, check=0)
        self.assertIn("the job goes on with 2 of 3 ranks", done.stderr)
        self.assertRegex(done.stderr, r"rank 1 \(pid \d+\) exited with code 9")
        self.assert_nothing_left()

    def test_below_the_minimum_it_fails_with_the_code_of_the_rank(self):
        job = self.job(self.script("[ $RANK = 0 ] || exec sleep 600\nexit 6\n"), "min_ranks = 2", ranks=(3,))
        done = self.ctl("run", job, HERE, check=6)
        self.assertEqual(self.states(1).count("repairing"), 1)
        self.assertRegex(done.stderr, r"rank 0 \(pid \d+\) exited with code 6")
        self.assert_nothing_left()

    def test_an_agent_whose_ranks_are_all_left_out_leaves_with_the_job(self):
        text = "[ $WORLD_SIZE = 2 ] || { echo alone as $RANK; exit 0; }\n[ $RANK = 0 ] && exit 7\nsleep 600\n"
        done = self.ctl("run", self.job(self.script(text), "min_ranks = 1", ranks=(1, 1)), HERE, check=0)
        self.assertEqual(done.stdout, "[0] alone as 0\n")
        self.assert_nothing_left()

    def test_a_signal_while_it_starts_again_ends_it(self):
        # Rank 1 ignores SIGTERM by the time at which rank 0 fails.
        text = "trap '' TERM\n[ $RANK = 1 ] || { until [ -e up ]; do sleep 0.01; done; exit 7; }\n" \
               "touch up\nsleep 600\n"
        job = self.job(self.script(text), "min_ranks = 1", 'grace = "60s"')
        job.write_text(job.read_text().replace('grace = "300ms"\n', ""))
        process = self.start("run", job, HERE)
        wait_until(lambda: "repairing" in self.states(1), "no rank failed")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "ending" in self.states(1), "the signal was not heard")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        self.assert_nothing_left()


class DeviceFile(JobTest):
    def test_a_device_that_leaves_the_file_is_removed_and_its_ranks_move(self):
        devices = self.folder / "d.toml"
        devices.write_text(DEVICES + GPU1)
        job = self.job(self.script(UNTIL), "max_restarts = 1", 'device_fault = "move"', ranks=(),
                       more=NO_CPUS.format(2))
        self.start("run", job, HERE, "--devices", devices)
        wait_until(lambda: "running" in self.states(1), "the job did not run")
        devices.with_suffix(".new").write_text(DEVICES)
        devices.with_suffix(".new").rename(devices)
        (self.folder / "end-1").write_text("0")
        wait_until(lambda: "ended" in self.states(1), "the job did not end")
        edges = [edge for edge in self.edges(1) if "gpu1" in edge[1]]
        self.assertEqual(edges, [
            ("running", "device gpu1 of rank 1 is removed"),
            ("repairing", "device gpu1 of rank 1 is removed; all ranks are started again (1 of 1)"),
            ("placed", "device gpu1 is removed; rank 1 moves from gpu1 to gpu0")])
        self.assertEqual(self.record(1)["outcome"], "ok")

    def test_without_another_device_ranks_that_compute_are_left_alone(self):
        devices = self.folder / "d.toml"
        devices.write_text(DEVICES)
        job = self.job(self.script(UNTIL), "max_restarts = 1", 'device_fault = "move"', ranks=(),
                       more=NO_CPUS.format(1))
        self.start("run", job, HERE, "--devices", devices)
        wait_until(lambda: "running" in self.states(1), "the job did not run")
        devices.write_text(DEVICES[DEVICES.rindex("[[device]]"):])
        wait_until(lambda: "it stays where it is" in self.edges(1)[-1][1], "the fault was not seen")
        (self.folder / "end-0").write_text("0")
        wait_until(lambda: "ended" in self.states(1), "the job did not end")
        self.assertEqual(self.record(1)["outcome"], "ok")
        self.assertNotIn("repairing", self.states(1))


class Telemetry(DaemonJobTest):
    """With gpu0, whose driver (fake_nvml) counts the memory errors of a file, and gpu1."""

    def prepare(self):
        self.errors = self.folder / "errors"
        (self.folder / "libnvidia-ml.so.1").symlink_to(os.environ["FAKE_NVML"])
        self.daemon_environment.update(LD_LIBRARY_PATH=str(self.folder), FAKE_NVML_ECC=str(self.errors),
                                       FAKE_NVML_STEADY="1")
        (self.folder / "d.toml").write_text(DEVICES.replace('kind = "gpu"', 'kind = "gpu"\ngpu = "GPU-fake-a"') + GPU1)

    def run_gpus(self, ranks, *lines):
        more = NO_CPUS.format(ranks) + '[alarm]\ncommand = "echo $FABRIC_ALARM >> alarms"\n'
        process = self.start("run", self.job(self.script(UNTIL), *lines, ranks=(), more=more), "--socket", self.admin)
        wait_until(lambda: "running" in self.states(1), "the job did not run")
        return process

    def end(self, attempt, code):
        (self.folder / f"end-{attempt}").write_text(str(code))

    def alarms(self):
        path = self.folder / "alarms"
        return path.read_text().splitlines() if path.exists() else []

    def test_a_fault_is_one_alarm_and_a_rank_that_fails_of_it_starts_elsewhere(self):
        process = self.run_gpus(2, "max_restarts = 1")
        self.errors.write_text("1\n")
        fault = "device gpu0 of rank 0 is faulty: ecc"
        wait_until(self.alarms, "there was no alarm")
        self.assertEqual(self.alarms(), [f"job 1 (a): {fault}"])
        self.assertEqual(self.edges(1)[-1], ("running", fault))
        self.end(1, 0)
        self.end(0, 5)
        self.assertEqual(process.wait(60), 0)
        self.assertIn(("placed", "device gpu0 is faulty: ecc; rank 0 moves from gpu0 to gpu1"), self.edges(1))
        lines = [(self.jobs / f"1/rank-{rank}.log").read_text().splitlines() for rank in range(2)]
        self.assertEqual(lines, [["at gpu0 2", "at gpu1 2"], ["at gpu1 2", "at gpu1 2"]])
        self.assertEqual(len(self.alarms()), 2)  # and one of the rank
        self.assert_nothing_left()

    def test_configured_so_the_ranks_move_before_one_fails_and_fabricd_may_be_away(self):
        process = self.run_gpus(1, "max_restarts = 1", 'device_fault = "move"')
        self.errors.write_text("1\n")
        wait_until(lambda: self.states(1).count("running") == 3, "the ranks did not move")
        log = self.jobs / "1/rank-0.log"
        wait_until(lambda: log.read_text().count("\n") >= 2, "the rank did not say where it is")  # it runs, and says so later
        self.assertEqual(log.read_text(), "at gpu0 1\nat gpu1 1\n")
        self.daemon.kill()
        self.daemon.wait(60)
        edges = len(self.edges(1))
        self.end(1, 0)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(len(self.edges(1)), edges + 2)


if __name__ == "__main__":
    unittest.main()
