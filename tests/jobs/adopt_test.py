"""Task managers that are killed, and others that go on with their agents. docs/jobs.md."""

import ctypes
import os
import random
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
from held_agents import HeldAgents  # noqa: E402
from job_bench import FABRICCTL, TIMEOUT, JobTest, exists, wait_until  # noqa: E402

HERE = "--without-daemon"
# Says its pid and which attempt it is; ends with what the test writes.
GATED = "echo $$ > pid-$RANK\necho attempt $TORCHELASTIC_RESTART_COUNT $MASTER_PORT\n" \
        "until [ -s end-$RANK-$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.02; done\n" \
        "echo over\nexit $(cat end-$RANK-$TORCHELASTIC_RESTART_COUNT)\n"
WAITS = 'adopt_within = "60s"'


class Adopt(JobTest):
    gated = GATED

    def end(self, rank, code, attempt=0):
        (self.folder / f"end-{rank}-{attempt}").write_text(str(code))

    def pids(self):
        return [int((self.folder / f"pid-{rank}").read_text()) for rank in range(2)]

    def start_gated(self, number):
        process = self.start("run", self.job(self.script(GATED), WAITS, ranks=(1, 1)), HERE)
        wait_until(lambda: "running" in self.states(number), "the job did not run")
        return process

    def run_gated(self, *lines, options=()):
        process = self.start("run", self.job(self.script(self.gated), *lines, ranks=(1, 1)), HERE, *options)
        wait_until(lambda: "running" in self.states(1), "the job did not run")
        wait_until(lambda: all((self.folder / f"pid-{rank}").exists() and (self.folder / f"pid-{rank}").read_text()
                               for rank in range(2)), "ranks did not start")
        return process

    @staticmethod
    def kill(process):
        process.kill()
        process.wait(60)

    def resume(self):
        """Another manager, which has all agents."""
        before = self.states(1).count("running")
        process = self.start("run", 1, "--resume")
        wait_until(lambda: self.states(1).count("running") > before or process.poll() is not None, "it did not go on")
        return process

    def test_ranks_go_on_undisturbed_under_another_manager_and_their_ends_count(self):
        first = self.run_gated(WAITS)
        pids = self.pids()
        self.kill(first)
        self.assertIn("its task manager was killed", self.ctl("why", 1, check=0).stdout)
        second = self.resume()
        self.assertIn("has a task manager", self.ctl("run", 1, "--resume", check=1).stderr)
        self.end(0, 0)
        wait_until(lambda: not exists(pids[0]), "a rank did not end")
        self.kill(second)
        third = self.resume()
        self.assertEqual(self.pids(), pids)
        self.end(1, 0)
        self.assertEqual(third.wait(60), 0)
        self.assertIn("[1] over", third.stdout.read())
        self.assertRegex((self.jobs / "1/rank-0.log").read_text(), r"^attempt 0 \d+\nover\n$")
        self.assertIn(("starting", "its task manager was killed, and another one goes on"), self.edges(1))
        self.assertEqual(self.record(1)["outcome"], "ok")
        self.assert_nothing_left()
        self.assertEqual(sorted(path.name for path in (self.jobs / "1").iterdir()),
                         ["job.toml", "journal", "lock", "options", "rank-0.log", "rank-1.log"])

    def test_what_happened_while_no_manager_was_there_is_repaired_or_ends_the_job(self):
        first = self.run_gated(WAITS, "max_restarts = 1")
        pids = self.pids()
        self.kill(first)
        self.end(1, 5)
        wait_until(lambda: not exists(pids[1]), "a rank did not end")
        self.start("run", 1, "--resume")
        wait_until(lambda: self.states(1).count("running") == 2, "the ranks were not started again")
        self.assertIn("exited with code 5; all ranks are started again (1 of 1)",
                      next(edge[1] for edge in self.edges(1) if edge[0] == "repairing"))
        wait_until(lambda: "attempt 1" in (self.jobs / "1/rank-1.log").read_text(), "it did not run again")
        self.end(0, 6, attempt=1)
        wait_until(lambda: "ended" in self.states(1), "the job did not end")
        self.assertEqual((self.record(1)["outcome"], self.record(1)["code"]), ("failed", 6))
        self.assert_nothing_left()

    def test_an_agent_that_died_with_the_manager_has_lost_its_rank(self):
        first = self.run_gated(WAITS)
        os.kill(self.named("agent")[0], signal.SIGKILL)
        self.kill(first)
        done = self.ctl("run", 1, "--resume")
        # The first manager may have seen it before it was killed: then it was ending.
        self.assertIn(done.returncode, (1, 137))
        self.assertEqual(self.record(1)["code"], 137)
        self.assert_nothing_left()

    def test_without_another_manager_the_ranks_end(self):
        first = self.run_gated('adopt_within = "100ms"')
        self.kill(first)
        self.assert_nothing_left()
        self.assertEqual(self.ctl("run", 1, "--resume").returncode, 137)
        self.assertEqual(self.record(1)["outcome"], "failed")
        self.assertIn("has ended", self.ctl("run", 1, "--resume", check=1).stderr)

    def test_another_manager_looks_at_the_devices_that_the_first_one_was_given(self):
        devices = self.folder / "d.toml"
        both = [f'[[device]]\nname = "a{number}"\nkind = "cpu"\ngflops = 1.0\nmemory = "1GiB"\n'
                "link_gbytes_per_s = 1.0\n" for number in (0, 1)]
        devices.write_text("".join(both))
        self.kill(self.run_gated(WAITS, options=("--devices", "d.toml")))
        self.resume()
        devices.with_suffix(".new").write_text(both[0])
        devices.with_suffix(".new").rename(devices)
        wait_until(lambda: "is removed" in (self.jobs / "1/journal").read_text(), "nothing was noticed")
        text = (self.jobs / "1/journal").read_text()
        self.assertEqual(text.count("is removed"), 1, text)
        self.assertIn("device a1 of rank 1 is removed", text)
        self.ctl("cancel", 1, check=0)
        self.assert_nothing_left()  # a manager killed before it has ended its agents has them wait for another one

    def test_cancel_of_a_job_without_a_manager_leaves_nothing_of_it(self):
        escaped = self.folder / "escaped"
        text = f"[ $RANK = 0 ] && env -i setsid sh -c 'echo $$ > {escaped}; sleep 600' &\n"
        self.gated = text + GATED
        self.kill(self.run_gated(WAITS))
        wait_until(lambda: escaped.exists() and escaped.read_text(), "what the rank starts did not start")
        agents = self.named("agent")
        self.addCleanup(self.kill_marked)  # before others wait for what stopped processes have open
        os.kill(agents[0], signal.SIGSTOP)  # one that was stopped leaves, too
        self.ctl("cancel", 1, check=0)
        # All at once: not one poll later.
        self.assertEqual([pid for pid in (*agents, int(escaped.read_text())) if exists(pid)], [])
        wait_until(lambda: not any(exists(pid) for pid in self.pids()), "ranks of a cancelled job run")
        self.assert_nothing_left()
        self.ctl("leaks", check=0)
        self.assertIn("has ended", self.ctl("run", 1, "--resume", check=1).stderr)
        self.assertEqual((self.record(1)["outcome"], self.record(1)["code"]), ("cancelled", 143))
        self.assertEqual(sorted(path.name for path in (self.jobs / "1").iterdir()),
                         ["job.toml", "journal", "lock", "options", "rank-0.log", "rank-1.log"])

    def test_a_cancel_that_is_killed_at_any_moment_is_made_good_by_the_next_one(self):
        generator = random.Random(11)
        for number in range(1, 9):
            self.kill(self.start_gated(number))
            cancel = self.start("cancel", number)
            time.sleep(generator.uniform(0, 0.02))
            self.kill(cancel)
            again = self.ctl("cancel", number)
            with self.subTest(number=number):
                self.assertTrue(again.returncode == 0 or "has ended: cancelled" in again.stderr, again.stderr)
                self.assertEqual(self.record(number)["outcome"], "cancelled")
                self.assert_nothing_left()

    def test_an_agent_that_can_not_leave_is_killed_with_its_job(self):
        self.kill(self.run_gated(WAITS))
        agents = self.named("agent")
        self.addCleanup(self.kill_marked)
        tracer = os.fork()
        if tracer == 0:
            # A process that is traced and stopped hears no signal but SIGKILL.
            libc = ctypes.CDLL(None, use_errno=True)
            done = libc.ptrace(16, agents[0], 0, 0)  # PTRACE_ATTACH
            time.sleep(TIMEOUT if done == 0 else 0)
            os._exit(0)
        self.addCleanup(os.waitpid, tracer, 0)
        self.addCleanup(os.kill, tracer, signal.SIGKILL)
        traced = lambda: Path(f"/proc/{agents[0]}/stat").read_text().rpartition(")")[2].split()[0] == "t"  # noqa: E731
        gone = lambda: not exists(tracer)  # noqa: E731
        wait_until(lambda: traced() or gone(), "the agent was not stopped")
        if gone():
            self.skipTest("processes can't be traced here")
        self.ctl("cancel", 1, check=0)
        wait_until(lambda: not any(exists(pid) for pid in (*agents, *self.pids())), "an agent or a rank is left")

    def test_a_job_without_a_manager_is_lost_and_listed_so(self):
        first = self.run_gated('adopt_within = "100ms"')
        self.assertFalse(self.record(1)["lost"])
        self.addCleanup(self.kill_marked)  # before others wait for what stopped processes have open
        agents = self.named("agent")
        for agent in agents:  # else they would have ended before a slow machine has listed the job
            os.kill(agent, signal.SIGSTOP)
        self.kill(first)
        self.assertTrue(self.record(1)["lost"])
        for words in (("list",), ("show", 1), ("why", 1)):
            self.assertRegex(self.ctl(*words, check=0).stdout, r"lost.* ranks wait for another one .*run --resume 1\)")
        for agent in agents:
            os.kill(agent, signal.SIGCONT)
        self.assert_nothing_left()
        for words in (("list",), ("show", 1), ("why", 1)):
            self.assertRegex(self.ctl(*words, check=0).stdout, r"lost.* its ranks have ended .*cancel 1\)")
        self.ctl("cancel", "a", check=0)
        self.assertRegex(self.ctl("list", check=0).stdout, "ended cancelled")

    def test_a_manager_that_is_killed_while_its_job_ends_has_decided_the_end(self):
        ranks = "trap '' TERM\n[ $RANK = 0 ] && exit 3\necho $$ > pid-1\nwhile :; do sleep 0.02; done\n"
        job = self.job(self.script("until [ -s pid-1 ] || [ $RANK = 1 ]; do sleep 0.02; done\n" + ranks))
        job.write_text(job.read_text().replace('grace = "300ms"', 'grace = "60s"'))
        for number, words in ((1, ("run", "a", "--resume")), (2, ("cancel", 2))):
            (self.folder / "pid-1").unlink(missing_ok=True)
            process = self.start("run", job, HERE)
            wait_until(lambda: self.states(number)[-1:] == ["ending"], "the job does not end")
            self.kill(process)
            self.ctl(*words, check=3 if "run" in words else 0)
            record = self.record(number)
            self.assertEqual((record["state"], record["outcome"], record["code"]), ("ended", "failed", 3))
            self.assertRegex(record["reason"], r"rank 0 \(pid \d+\) exited with code 3")
            self.assert_nothing_left()

    def test_resume_takes_a_name_that_one_job_has_which_goes_on(self):
        self.ctl("run", self.job(self.script("")), HERE, check=0)
        self.kill(self.start_gated(2))
        second = self.start("run", "a", "--resume")
        wait_until(lambda: self.states(2).count("running") == 2, "it did not go on")
        self.kill(second)
        self.kill(self.start_gated(3))
        self.assertIn("several jobs are called a: 2, 3", self.ctl("run", "a", "--resume", check=1).stderr)
        self.assertIn("there is no job b", self.ctl("run", "b", "--resume", check=1).stderr)
        self.assertIn("takes a job's number or name", self.ctl("run", "--resume", check=1).stderr)
        for number in (2, 3):
            self.ctl("cancel", number, check=0)
        self.assert_nothing_left()

    def test_a_signal_to_the_second_manager_ends_all(self):
        self.kill(self.run_gated(WAITS))
        second = self.resume()
        second.send_signal(signal.SIGINT)
        self.assertEqual(second.wait(60), 130)
        self.assert_nothing_left()

    def test_the_queue_goes_on_with_a_job_whose_manager_was_killed(self):
        self.ctl("submit", self.job(self.script(GATED), WAITS, ranks=(1, 1)), HERE, check=0)
        self.start("serve")
        for round_ in range(2):
            wait_until(lambda: self.states(1).count("running") == 1 + round_, "the job does not run")
            os.kill(self.named("--queued")[0], signal.SIGKILL)
        wait_until(lambda: self.states(1).count("running") == 3, "the job does not run")
        self.end(0, 0)
        self.end(1, 0)
        wait_until(lambda: "ended" in self.states(1), "the job did not end")
        self.assertEqual(self.record(1)["outcome"], "ok")
        self.assertRegex((self.jobs / "1/rank-0.log").read_text(), r"^attempt 0 \d+\nover\n$")
        wait_until(lambda: len(self.marked()) == 1, "there is more than the service")

    def check_kill_before_all_agents_are_there(self, number, released):
        """Its manager is killed while the agents that are not `released` have not begun: another one begins it."""
        for rank in range(2):
            for name in (f"pid-{rank}", f"end-{rank}-0"):
                (self.folder / name).unlink(missing_ok=True)
        words = [FABRICCTL, "jobs", "run", str(self.job(self.script(GATED), WAITS, ranks=(1, 1))), HERE]
        held = HeldAgents(words, self.environment, self.folder, 2, TIMEOUT)
        for one in released:
            held.release(one)
            wait_until((self.jobs / f"{number}/agent-{one}.sock").exists, "an agent has no door")
        held.kill_manager()
        for one in {0, 1} - set(released):
            held.release(one)
        second = self.start("run", number, "--resume")
        wait_until(lambda: "running" in self.states(number) or second.poll() is not None, "it did not go on")
        for rank in range(2):
            self.end(rank, 0)
        self.assertEqual(second.wait(60), 0, self.edges(number))
        for rank in range(2):  # begun once, and as the first time
            self.assertRegex((self.jobs / f"{number}/rank-{rank}.log").read_text(), r"^attempt 0 \d+\nover\n$")
        self.assertNotIn("was killed; ", "".join(edge[1] for edge in self.edges(number)))
        self.assertEqual(self.record(number)["outcome"], "ok")
        self.assert_nothing_left()

    def test_a_manager_killed_before_its_agents_began_has_a_successor_that_begins(self):
        self.check_kill_before_all_agents_are_there(1, [])

    def test_agents_that_were_given_no_rank_before_the_kill_are_given_it_by_the_successor(self):
        self.check_kill_before_all_agents_are_there(1, [0])
        self.check_kill_before_all_agents_are_there(2, [1])

    def test_managers_killed_at_any_moment_lose_no_job(self):
        generator = random.Random(3)
        job = self.job(self.script("[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { sleep 0.05; exit 3; }\nsleep 0.2\n"),
                       WAITS, "max_restarts = 1", ranks=(1, 1))
        for round_ in range(6):
            number = round_ + 1
            process = self.start("run", job, HERE)
            wanted = generator.randrange(3, 10)
            wait_until(lambda: len(self.states(number)) >= wanted or process.poll() is not None, "it did not start")
            for _ in range(3):
                self.kill(process)
                if "ending" in self.states(number):
                    break
                process = self.start("run", number, "--resume")
                edges = len(self.states(number))
                wait_until(lambda: len(self.states(number)) > edges or process.poll() is not None, "it did not go on")
            process.wait(60)
            with self.subTest(round=round_, edges=self.edges(number)):
                self.assertNotIn("agent was killed", "".join(edge[1] for edge in self.edges(number)))
                # Killed while it was ending: its agents end by themselves, and the journal stops there.
                if self.states(number)[-1] != "ending":
                    self.assertEqual(self.record(number)["state"], "ended")
                    # A manager that was killed before it had a state to leave has no successor.
                    is_lost = self.record(number)["reason"] == "its task manager was killed"
                    self.assertTrue(is_lost or self.record(number)["outcome"] == "ok", self.record(number))
                self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
