"""fabricctl jobs submit, serve and what shows jobs: order, dependencies, cancels, kills."""

import json
import os
import random
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from job_bench import JobTest, wait_until  # noqa: E402

HERE = "--without-daemon"
# Says when it ran, and runs until its gate is opened.
GATED = "echo $FABRIC_JOB_NAME >> order\nuntil [ -e open-$FABRIC_JOB_NAME ] || [ -e open ]; do sleep 0.01; done\n"


class Queue(JobTest):
    def submit(self, name, script, *lines):
        done = self.ctl("submit", self.job(script, *lines, name=name, ranks=(1,)), HERE, "--json", check=0)
        return json.loads(done.stdout)["job"]

    def serve(self, *words):
        process = self.start("serve", *words)
        return process

    def order(self):
        path = self.folder / "order"
        return path.read_text().split() if path.exists() else []

    def wait_for(self, job, state="ended"):
        wait_until(lambda: state in self.states(job), f"job {job} was never {state}: {self.states(job)}")

    def test_a_submitted_job_goes_through_every_state_with_its_reason(self):
        job = self.submit("a", self.script("echo from $PWD\n"))
        self.assertIn("is queued: submitted", self.ctl("why", job, check=0).stdout)
        self.serve()
        self.wait_for(job)
        self.assertEqual(self.states(job), ["queued", "admitted", "placed", "starting", "running", "ending", "ended"])
        self.assertIn("ended ok: all ranks ended well", self.ctl("why", "a", check=0).stdout)
        self.assertEqual(self.ctl("logs", job, check=0).stdout, f"[0] from {self.folder}\n")
        self.assertRegex(self.ctl("list", check=0).stdout, r" 1 +a +0 +ended ok +\S+ \S+ +all ranks ended well")
        self.assertRegex(self.ctl("show", job, check=0).stdout, r"admitted +its turn in the queue")

    def test_without_a_service_a_job_waits_and_submit_says_so(self):
        done = self.ctl("submit", self.job(self.script("")), HERE, check=0)
        self.assertIn("waits until fabricctl jobs serve runs", done.stderr)
        self.ctl("cancel", 1, check=0)
        self.assertEqual(self.states(1), ["queued", "ended"])
        self.assertIn("has ended", self.ctl("cancel", 1, check=1).stderr)

    def test_the_larger_priority_goes_first_then_the_lower_number(self):
        script = self.script("echo $FABRIC_JOB_NAME >> order\n")
        jobs = [self.submit(name, script, f"priority = {priority}")
                for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5))]
        self.serve()
        for job in jobs:
            self.wait_for(job)
        self.assertEqual(self.order(), ["b", "d", "a", "c"])

    def test_twenty_jobs_with_priorities_and_dependencies_run_as_the_model_says(self):
        generator = random.Random(4)
        script = self.script("echo $FABRIC_JOB_NAME >> order\n")
        model = []
        for number in range(20):
            after = generator.sample(range(number), min(number, generator.randrange(3)))
            priority = generator.randrange(4)
            model.append((f"j{number}", priority, {f"j{one}" for one in after}))
            names = ", ".join(f'"j{one}"' for one in after)
            self.submit(f"j{number}", script, f"priority = {priority}", f"after = [{names}]")
        self.serve()
        wait_until(lambda: len(self.order()) == 20, "jobs did not run")
        # One at a time: each time the largest priority whose dependencies are over, then the first.
        done, left = [], list(model)
        while left:
            ready = [job for job in left if job[2] <= set(done)]
            best = max(ready, key=lambda job: job[1])
            done.append(best[0])
            left.remove(best)
        self.assertEqual(self.order(), done)

    def test_a_job_after_one_that_failed_is_cancelled_with_the_reason(self):
        first = self.submit("a", self.script("exit 3\n", "fail.sh"))
        second = self.submit("b", self.script(""), 'after = ["a"]')
        third = self.submit("c", self.script(""), f'after = ["{second}"]')
        self.serve()
        self.wait_for(third)
        self.assertEqual(self.record(first)["code"], 3)
        self.assertEqual(self.record(second)["reason"], "after: job 1 (a) failed")
        self.assertEqual(self.record(third)["reason"], "after: job 2 (b) cancelled")
        self.assertEqual(self.record(third)["outcome"], "cancelled")
        unknown = self.job(self.script(""), 'after = ["x"]')
        self.assertIn("there is no job x", self.ctl("submit", unknown, HERE, check=2).stderr)

    def test_as_many_run_at_a_time_as_the_service_is_started_with(self):
        script = self.script(GATED)
        jobs = [self.submit(name, script) for name in "abc"]
        self.serve("--at-once", "2")
        wait_until(lambda: len(self.order()) == 2, "two jobs did not run")
        wait_until(lambda: "2 at once run already" in self.ctl("why", "c").stdout, "c does not say why it waits")
        (self.folder / "open-a").touch()
        self.wait_for(jobs[2], "running")
        self.assertNotIn("ended", self.states(jobs[1]))
        (self.folder / "open").touch()
        for job in jobs:
            self.wait_for(job)

    def test_a_job_that_does_not_fit_waits_with_the_reason_and_those_behind_it_too(self):
        gpus = self.folder / "d.toml"
        gpu = '[[device]]\nname = "{0}0"\nkind = "{0}"\ngflops = 1\nmemory = "1GiB"\nlink_gbytes_per_s = 1\n'
        gpus.write_text(gpu.format("cpu") + gpu.format("gpu"))
        path = self.job(self.script("echo $FABRIC_JOB_NAME >> order\n"), name="big", ranks=(),
                        more='[[group]]\nkind = "gpu"\nranks = 1\n')
        self.ctl("submit", path, HERE, "--devices", gpus, check=0)
        gpus.write_text(gpu.format("cpu"))
        second = self.submit("small", self.script("echo $FABRIC_JOB_NAME >> order\n"))
        self.serve()
        wait_until(lambda: "no device of that kind" in self.ctl("why", "big").stdout, "big does not say why it waits")
        wait_until(lambda: "behind job 1 (big)" in self.ctl("why", "small").stdout, "small does not say why it waits")
        gpus.write_text(gpu.format("cpu") + gpu.format("gpu"))
        self.wait_for(second)
        self.assertEqual(self.order(), ["big", "small"])

    def test_a_running_job_is_cancelled_and_its_logs_are_followed_to_the_end(self):
        job = self.submit("a", self.script("echo up\nsleep 600\n"))
        self.serve()
        self.wait_for(job, "running")
        logs = self.start("logs", job, "--follow")
        self.ctl("cancel", job, check=0)
        self.wait_for(job)
        self.assertEqual(self.record(job)["outcome"], "cancelled")
        self.assertEqual(logs.communicate(timeout=60)[0], "[0] up\n")

    def test_a_service_that_is_killed_leaves_its_jobs_and_the_next_one_goes_on(self):
        jobs = [self.submit(name, self.script(GATED)) for name in "ab"]
        service = self.serve()
        self.wait_for(jobs[0], "running")
        service.kill()
        service.wait(60)
        (self.folder / "open-a").touch()
        self.wait_for(jobs[0])
        self.assertEqual(self.states(jobs[0])[-1], "ended")
        self.assertEqual(self.record(jobs[0])["outcome"], "ok")
        self.serve()
        (self.folder / "open").touch()
        self.wait_for(jobs[1])
        self.assertEqual(self.order(), ["a", "b"])

    def test_a_job_whose_manager_and_agent_are_killed_ends_and_the_next_one_runs(self):
        jobs = [self.submit("a", self.script("sleep 600\n", "long.sh")), self.submit("b", self.script(""))]
        self.serve()
        self.wait_for(jobs[0], "running")
        for pid in self.named("--queued") + self.named("agent"):
            os.kill(pid, signal.SIGKILL)
        self.wait_for(jobs[1])
        record = self.record(jobs[0])
        self.assertEqual((record["outcome"], record["code"]), ("failed", 137))
        self.assertEqual(record["reason"], "rank 0: its agent was killed")
        wait_until(lambda: self.ctl("leaks").returncode == 0, "something is left of the killed job")

    def test_one_service_at_a_time(self):
        self.serve()
        job = self.submit("a", self.script(""))
        self.wait_for(job)
        self.assertIn("another fabricctl jobs serve", self.ctl("serve", check=1).stderr)

    def test_what_is_no_job_is_one_line(self):
        for action in ("show", "why", "logs", "cancel"):
            self.assertIn("there is no job 7", self.ctl(action, 7, check=1).stderr)
        self.assertEqual(self.ctl("list", check=0).stdout, "none\n")
        self.assertEqual(self.ctl("leaks", check=0).stdout, "")


if __name__ == "__main__":
    unittest.main()
