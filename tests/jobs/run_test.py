"""fabricctl jobs check and run: what runs where, codes, logs, and what is left after each kind of end."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
from job_bench import DEVICES, FABRICCTL, DaemonJobTest, JobTest, exists, wait_until  # noqa: E402

HERE = "--without-daemon"
# Each rank leaves its pid, and a process that is in no session of its.
SLEEPERS = "echo $$ > rank-$RANK.pid\nsetsid sleep 600 &\nsleep 600 &\necho up\nwait\n"


class Check(JobTest):
    def test_shows_which_rank_would_go_where_before_anything_is_started(self):
        (self.folder / "d.toml").write_text(DEVICES)
        job = self.job(self.script("exit 9\n"), 'schedule = "by-resource"', more='[[group]]\nkind = "gpu"\nranks = 1\n')
        text = self.ctl("check", job, HERE, "--devices", "d.toml", check=0).stdout
        self.assertIn("3 ranks in 2 groups, allreduce, by-resource", text)
        self.assertRegex(text, r"2 +1 +gpu +\S+ +gpu0 +75\.0 % +compute")
        self.assertFalse(self.jobs.exists())

    def test_what_is_wrong_is_one_line_and_a_code(self):
        job = self.job(self.script(""))
        self.assertIn("no fabricd answers", self.ctl("check", job, check=3).stderr)
        self.assertIn("there is no program ./gone", self.ctl("check", self.job("./gone"), HERE, check=2).stderr)
        unknown = self.job(self.script(""), "prioriti = 1")
        self.assertIn("a.toml:6: unknown key \"prioriti\" (did you mean priority?)",
                      self.ctl("check", unknown, HERE, check=2).stderr)
        gpu = self.job(self.script(""), more='[[group]]\nkind = "gpu"\nranks = 1\n')
        self.assertIn("there is no device of that kind; there are: cpu", self.ctl("check", gpu, HERE, check=1).stderr)
        script = self.script("")
        script.chmod(0o644)
        self.assertIn("script.sh is not executable (chmod +x, or an interpreter)",
                      self.ctl("check", self.job(script), HERE, check=2).stderr)
        script.write_text("#! /nope/sh -e\n")
        script.chmod(0o755)
        self.assertRegex(self.ctl("check", self.job(script), HERE, check=2).stderr,
                         r"a.toml:3: there is no program /nope/sh, which the first line of \S+script.sh names\n$")
        other = self.job(script)
        other.write_text(other.read_text().replace('interpreter = ""', 'interpreter = "nope"'))
        self.assertIn("a.toml: there is no program nope (interpreter)", self.ctl("check", other, HERE, check=2).stderr)
        data = self.job(self.script(""), more='[data]\npath = "/nonexistent"\n')
        self.assertIn("a.toml:11: there is no /nonexistent", self.ctl("check", data, HERE, check=2).stderr)


class Run(JobTest):
    def test_ranks_have_the_launchers_environment_and_their_lines_the_rank(self):
        job = self.job(self.script("echo $RANK $WORLD_SIZE $LOCAL_RANK $FABRIC_JOB_GROUP $FABRIC_JOB_SHARES $1\n"
                                   "echo bad >&2\ntest -n \"$MASTER_PORT\"\n"), 'arguments = ["x y"]', ranks=(2, 1))
        done = self.ctl("run", job, HERE, check=0)
        lines = sorted(done.stdout.splitlines())
        shares = "0.333333,0.333333,0.333333"
        self.assertEqual(lines, [f"[0] 0 3 0 0 {shares} x y", f"[1] 1 3 1 0 {shares} x y", f"[2] 2 3 2 1 {shares} x y"])
        self.assertIn("[1] bad", done.stderr)
        self.assertEqual((self.jobs / "1/rank-2.log").read_text().splitlines()[0], f"2 3 2 1 {shares} x y")
        self.assertEqual(self.states(1), ["admitted", "placed", "starting", "running", "ending", "ended"])
        self.assert_nothing_left()

    def test_the_code_is_that_of_the_rank_that_failed_and_its_last_lines_are_shown(self):
        job = self.job(self.script("if [ $RANK = 1 ]; then seq 1 50; exit 7; fi\nsleep 600\n"),
                       more='[alarm]\ncommand = "echo $FABRIC_ALARM > alarm"\n')
        done = self.ctl("run", job, HERE, check=7)
        self.assertRegex(done.stderr, r"rank 1 \(pid \d+\) exited with code 7")
        shown = [line.strip() for line in done.stderr.splitlines() if line.startswith("    ")]
        self.assertEqual(shown, [str(number) for number in range(31, 51)])
        self.assertRegex((self.folder / "alarm").read_text(), r"job 1 \(a\): rank 1 .* exited with code 7")
        self.assert_nothing_left()

    def test_a_rank_that_is_killed_is_128_and_the_signal(self):
        done = self.ctl("run", self.job(self.script("[ $RANK = 0 ] || sleep 600\nkill -SEGV $$\n")), HERE, check=139)
        self.assertIn("was killed by SIGSEGV", done.stderr)
        self.assert_nothing_left()

    def test_a_program_that_can_not_be_executed_ends_the_job(self):
        script = self.folder / "script.sh"
        script.write_text("\x7fno program\n")
        script.chmod(0o755)
        done = self.ctl("run", self.job(script), HERE, check=127)
        self.assertIn("did not start", done.stderr)

    def test_the_time_limit_ends_it(self):
        done = self.ctl("run", self.job(self.script(SLEEPERS), 'time_limit = "300ms"'), HERE, check=124)
        self.assertIn("the time limit of 300 ms is over", done.stderr)
        record = self.record(1)
        self.assertEqual((record["outcome"], record["code"]), ("failed", 124))
        self.assertEqual(record["reason"], "the time limit of 300 ms is over")
        self.assert_nothing_left()

    def test_all_ranks_are_started_again_until_the_restarts_are_used_up(self):
        text = "echo attempt $TORCHELASTIC_RESTART_COUNT\n[ $RANK = 0 ] || exec sleep 600\nexit 4\n"
        done = self.ctl("run", self.job(self.script(text), "max_restarts = 2"), HERE, check=4)
        for attempt in range(3):
            self.assertIn(f"[0] attempt {attempt}", done.stdout)
        self.assertEqual(self.states(1).count("repairing"), 2)
        self.assert_nothing_left()

    def test_one_rank_is_started_again_in_place(self):
        text = "[ $RANK = 1 ] && [ ! -e once ] && { touch once; exit 5; }\n" \
               "until [ -e once ]; do sleep 0.01; done\necho $RANK done\n"
        done = self.ctl("run", self.job(self.script(text), "max_restarts = 1", 'restart = "rank"'), HERE, check=0)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] 0 done", "[1] 1 done"])
        self.assertIn("starting rank 1 again (1 of 1)", done.stderr)

    def test_a_log_that_may_not_grow_is_an_alarm_with_its_reason(self):
        job = self.job(self.script("head -c 300000 /dev/zero | tr '\\0' x\n"), ranks=(1,))
        words = ["prlimit", "--fsize=100000", FABRICCTL, "jobs", "run", job, HERE]
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment, cwd=self.folder,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a log can't be written: File too large", done.stderr)
        self.assertEqual((self.jobs / "1/rank-0.log").stat().st_size, 100000)

    def test_what_ranks_start_in_sessions_and_environments_of_its_own_ends_with_them(self):
        text = "env -i setsid sh -c 'echo $$ > escaped; sleep 600' &\nuntil [ -s escaped ]; do sleep 0.02; done\n"
        process = self.start("run", self.job(self.script(text + "kill -STOP $$\n"), ranks=(1,)), HERE)
        escaped = self.folder / "escaped"
        wait_until(lambda: escaped.exists() and escaped.read_text().strip(), "the rank did not start it")
        self.ctl("cancel", 1, check=0)
        self.assertEqual(process.wait(60), 143)
        self.assertFalse(exists(int(escaped.read_text())))
        escaped.unlink()
        self.ctl("run", self.job(self.script(text + "kill -9 $$\n"), ranks=(1,)), HERE, check=137)
        self.assertFalse(exists(int(escaped.read_text())))
        self.assert_nothing_left()

    def pids(self):
        files = [self.folder / f"rank-{rank}.pid" for rank in range(2)]
        wait_until(lambda: all(file.exists() and file.read_text().strip() for file in files), "ranks did not start")
        return [int(file.read_text()) for file in files]

    def run_sleepers(self, *lines):
        process = self.start("run", self.job(self.script(SLEEPERS), *lines, ranks=(1, 1)), HERE)
        pids = self.pids()
        wait_until(lambda: "running" in self.states(1), "the job did not run")
        return process, pids

    def agents(self):
        return [pid for pid in self.marked() if Path(f"/proc/{pid}/comm").read_text().strip() == "fabric-agent"]

    def test_a_signal_ends_everything_and_is_the_code(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number=number):
                process = self.start("run", self.job(self.script(SLEEPERS), ranks=(1, 1)), HERE)
                wait_until(lambda: len(self.marked()) >= 9, "ranks did not start")
                process.send_signal(number)
                self.assertEqual(process.wait(60), 128 + number)
                self.assert_nothing_left()

    def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_period(self):
        process = self.start("run", self.job(self.script("trap '' TERM\n" + SLEEPERS)), HERE)
        self.pids()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 143)
        self.assert_nothing_left()

    def test_no_rank_outlives_a_manager_that_is_killed(self):
        process, pids = self.run_sleepers()
        process.kill()
        process.wait(60)
        self.assert_nothing_left()
        self.assertFalse(any(exists(pid) for pid in pids))
        self.assertIn("its task manager was killed", self.ctl("leaks", check=1).stdout)
        self.ctl("cancel", 1, check=0)
        self.assertEqual(self.ctl("leaks", check=0).stdout, "")

    def test_an_agent_that_is_killed_counts_as_its_rank_and_leaves_nothing(self):
        process, _ = self.run_sleepers()
        os.kill(self.agents()[0], signal.SIGKILL)
        self.assertEqual(process.wait(60), 137)
        self.assertRegex(self.edges(1)[-1][1], r"its agent \(pid \d+\) was killed by SIGKILL")
        self.assert_nothing_left()

    def test_an_agent_that_is_killed_is_replaced_for_the_next_attempt(self):
        process, pids = self.run_sleepers("max_restarts = 1")
        os.kill(self.agents()[0], signal.SIGKILL)
        wait_until(lambda: self.states(1).count("running") == 2, "the job did not run again")
        self.assertFalse(any(exists(pid) for pid in pids))
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        self.assert_nothing_left()

    def test_an_agent_that_is_stopped_keeps_the_manager_from_nothing(self):
        process, _ = self.run_sleepers()
        stopped = self.agents()[0]
        os.kill(stopped, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "ending" in self.states(1), "the first signal was not heard")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        self.assert_nothing_left()

    def test_manager_and_agents_killed_together_leave_no_rank(self):
        process, pids = self.run_sleepers()
        for pid in [process.pid, *self.agents()]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(exists(pid) for pid in pids), "a rank outlived its agent")

    def test_a_kill_of_any_process_at_any_moment_leaves_nothing(self):
        generator = random.Random(7)
        job = self.job(self.script(SLEEPERS), "max_restarts = 1", ranks=(2, 1))
        for round_ in range(12):
            process = self.start("run", job, HERE)
            # By number of processes rather than by time: a loaded machine goes through the same moments.
            wanted = generator.randrange(1, 13)
            wait_until(lambda: len(self.marked()) >= wanted or process.poll() is not None, "it did not start")
            victim = generator.choice([process.pid, *self.marked()])
            is_agent = victim in self.named("agent")
            with self.subTest(round=round_, wanted=wanted, manager=victim == process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                if generator.randrange(2):
                    process.send_signal(signal.SIGTERM)
                    process.wait(60)
                else:
                    process.kill()
                    process.wait(60)
                    # Both at once: what ranks had started has no parent of the job then; cancel ends it.
                    if is_agent:
                        self.ctl("cancel", max(int(path.name) for path in self.jobs.iterdir() if path.name.isdigit()))
                self.assert_nothing_left()

    def test_a_reader_that_went_away_or_stopped_ends_nothing_and_blocks_no_signal(self):
        text = "yes | head -c 1000000\nsleep 600\n"
        process = self.start("run", self.job(self.script(text)), HERE)
        wait_until(lambda: "running" in self.states(1), "the job did not run")
        process.send_signal(signal.SIGINT)  # its output's pipe is full, and not read
        self.assertEqual(process.wait(60), 130)
        self.assert_nothing_left()


class WithDaemon(DaemonJobTest):
    def test_ranks_find_socket_arena_and_device(self):
        job = self.job(self.script("echo $FABRIC_SOCKET $FABRIC_ARENA $FABRIC_ARENA_BYTES $FABRIC_DEVICE\n"), ranks=(1,),
                       more='pool = "8MiB"\n[[group]]\nkind = "gpu"\nranks = 1\npool = "16MiB"\n')
        done = self.ctl("run", job, "--socket", self.admin, check=0)
        common = f"{self.admin.parent}/attach.sock job-{os.getuid()}-1 {24 << 20}"
        self.assertEqual(sorted(done.stdout.splitlines()), [f"[0] {common} cpu0", f"[1] {common} gpu0"])

    def test_where_no_attach_socket_is_next_to_the_admin_socket_the_environment_names_it(self):
        job = self.job(self.script("echo $FABRIC_SOCKET\n"), ranks=(1,))
        elsewhere = self.folder / "elsewhere.sock"
        elsewhere.symlink_to(self.admin)
        attach = self.admin.parent / "attach.sock"
        self.environment["FABRIC_SOCKET"] = str(attach)
        self.assertEqual(self.ctl("run", job, "--socket", elsewhere, check=0).stdout, f"[0] {attach}\n")
        # One that is next to it is the daemon's that was asked.
        self.environment["FABRIC_SOCKET"] = str(self.folder / "other.sock")
        self.assertEqual(self.ctl("run", job, "--socket", self.admin, check=0).stdout, f"[0] {attach}\n")

    def test_a_job_that_needs_more_than_is_free_is_refused_before_it_starts(self):
        job = self.job(self.script(""), ranks=(2,), more='pool = "1GiB"\n')
        done = self.ctl("check", job, "--socket", self.admin, check=1)
        self.assertRegex(done.stderr, r"0 of 2 ranks fit: each takes 512 MiB of the pool, and at most 2\d\d(\.\d)? MiB")


if __name__ == "__main__":
    unittest.main()
