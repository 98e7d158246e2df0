"""fabricctl jobs remove: which jobs go, what stays, and kills in between. docs/jobs.md."""

import json
import os
import random
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
from job_bench import FABRICCTL, JobTest, wait_until  # noqa: E402

HERE = "--without-daemon"


class Remove(JobTest):
    def ended(self, number, state="ended ok 0", age=0, name="a"):
        """The folder of a job that ended so many seconds ago."""
        folder = self.jobs / str(number)
        folder.mkdir(parents=True)
        (folder / "job.toml").write_text(f'[job]\nname = "{name}"\nscript = "x"\n[[group]]\nkind = "cpu"\nranks = 1\n')
        (folder / "lock").touch()
        (folder / "rank-0.log").write_bytes(b"x" * 40000)
        (folder / "journal").write_text(f"{int((time.time() - age) * 1000)} {state} for the test\n")

    def numbers(self):
        return sorted(int(path.name) for path in self.jobs.iterdir() if path.name.isdigit())

    def allocated(self):
        """As du(1) has it, of what jobs have."""
        return sum(path.lstat().st_blocks * 512 for folder in self.jobs.iterdir() for path in folder.rglob("*"))

    def test_a_job_that_has_ended_goes_with_its_bytes_and_its_number_does_not_come_back(self):
        job = self.job(self.script("echo $RANK\n"), ranks=(1,))
        self.ctl("run", job, HERE, check=0)
        self.ctl("run", job, HERE, check=0)
        used = self.allocated()
        done = json.loads(self.ctl("remove", 2, 1, "--json", check=0).stdout)
        self.assertEqual(done["removed"], [2, 1])
        # With the two folders themselves, which have 4 KiB each on many file systems.
        self.assertIn(done["bytes_freed"] - used, range(0, 2 * 8192 + 1))
        self.assertEqual(self.ctl("list", "--json", check=0).stdout, "[]\n")
        self.assertIn("there is no job 2", self.ctl("show", 2, check=1).stderr)
        self.ctl("run", job, HERE, check=0)
        self.assertEqual(self.numbers(), [3])
        self.assertRegex(self.ctl("remove", "a", check=0).stdout, r"^1 job removed, [\d.]+ KiB freed\n$")

    def test_jobs_that_have_not_ended_stay_and_each_has_its_line(self):
        job = self.job(self.script("until [ -e go ]; do sleep 0.02; done\n"), ranks=(1,))
        process = self.start("run", job, HERE)
        wait_until(lambda: "running" in self.states(1), "the job did not run")
        self.ctl("submit", job, HERE, check=0)
        self.ended(3, name="c")
        done = self.ctl("remove", 1, 2, 7, "c", check=1)
        self.assertEqual(done.stdout.split(",")[0], "1 job removed")
        self.assertEqual(done.stderr.splitlines(), [
            "fabricctl: there is no job 7 (fabricctl jobs)",
            "fabricctl: job 1 (a) is running (fabricctl jobs cancel 1)",
            "fabricctl: job 2 (a) is queued (fabricctl jobs cancel 2)"])
        self.assertEqual(self.numbers(), [1, 2])
        process.kill()
        process.wait(60)
        # It is lost, and has not ended: its ranks wait for another manager.
        self.assertIn("cancel 1", self.ctl("remove", 1, check=1).stderr)
        self.ctl("cancel", 1, check=0)
        self.ctl("remove", 1, check=0)
        self.assertEqual(self.numbers(), [2])
        self.assert_nothing_left()

    def test_by_age_and_end(self):
        for number, state in enumerate(("ended ok 0", "ended failed 1", "ended cancelled 143", "running"), 1):
            self.ended(number, state, age=7200)
            self.ended(number + 4, state, age=1800)
        gone = lambda *words: json.loads(self.ctl("remove", *words, "--json", check=0).stdout)["removed"]  # noqa: E731
        self.assertEqual(gone("--older-than", "3h"), [])
        self.assertEqual(gone("--older-than", "1h", "--state", "failed,cancelled"), [2, 3])
        self.assertEqual(gone("--older-than", "1h"), [1])
        self.assertEqual(gone("--older-than", "0s", "--state", "ok"), [5])
        self.assertEqual(gone("--older-than", "20min"), [6, 7])
        self.assertEqual(self.numbers(), [4, 8])

    def test_one_that_a_queued_job_waits_for_stays(self):
        self.ended(1, name="etl")
        self.ended(2, name="etl")
        self.ctl("submit", self.job(self.script(""), 'after = ["etl"]', name="b"), HERE, check=0)
        self.assertIn("job 2 (etl) is one that job 3 (b) waits for", self.ctl("remove", 2, check=1).stderr)
        self.ctl("remove", "--older-than", "0s", check=0)
        self.assertEqual(self.numbers(), [2, 3])

    def test_what_is_wrong_with_the_words_is_one_line(self):
        self.ended(1, name="twin")
        self.ended(4, name="twin")
        for words, said, code in (((), "takes jobs, or --older-than TIME", 2),
                                  ((1, "--older-than", "1h"), "takes jobs, or --older-than TIME", 2),
                                  (("--older-than", "soon"), "--older-than takes a time as 90s, 12h or 7d", 2),
                                  (("--older-than", "-1h"), "--older-than takes a time as 90s, 12h or 7d", 2),
                                  (("--older-than", "1h", "--state", "faild"), "(did you mean failed?)", 2),
                                  ((1, "--state", "ok"), "--state needs --older-than", 2),
                                  (("twin",), "several jobs are called twin: 1, 4", 1),
                                  (("../1",), "there is no job ../1", 1),
                                  (("4294967297",), "there is no job 4294967297", 1)):
            with self.subTest(words=words):
                done = self.ctl("remove", *words, check=code)
                self.assertIn(said, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("one word too many", self.ctl("show", 1, 4, check=2).stderr)
        self.assertEqual(self.numbers(), [1, 4])

    def test_a_folder_that_can_not_be_written_keeps_its_jobs(self):
        if os.geteuid() == 0:
            self.skipTest("root may write it")
        self.ended(1)
        self.jobs.chmod(0o500)
        self.addCleanup(self.jobs.chmod, 0o700)
        self.assertIn("job 1 (a) stays:", self.ctl("remove", 1, check=1).stderr)
        self.ctl("show", 1, check=0)

    def test_a_removal_that_is_killed_leaves_each_job_whole_or_gone(self):
        generator = random.Random(5)
        names = {"job.toml", "lock", "rank-0.log", "journal"}
        last = 0
        for round_ in range(15):
            for number in range(last + 1, last + 5):
                self.ended(number)
            last += 4
            words = [FABRICCTL, "jobs", "remove", *map(str, range(last - 3, last + 1))]
            with subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL) as process:
                time.sleep(generator.uniform(0, 0.03))
                process.kill()
            with self.subTest(round=round_):
                for number in self.numbers():
                    self.assertEqual({path.name for path in (self.jobs / str(number)).iterdir()}, names)
                # The next one finishes what was begun, and knows the last number.
                self.ctl("remove", "--older-than", "0s", check=0)
                self.assertEqual([path.name for path in self.jobs.iterdir()], [f"gone-{last}"])
                self.assertEqual(list((self.jobs / f"gone-{last}").iterdir()), [])

    def test_jobs_come_and_go_at_once_and_no_number_is_given_twice(self):
        job = self.job(self.script(""), ranks=(1,))
        makers = [subprocess.Popen(f"for i in 1 2 3 4 5 6 7 8; do {FABRICCTL} jobs submit {job} {HERE} --json; done",
                                   shell=True, env=self.environment, cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(3)]
        while any(maker.poll() is None for maker in makers):
            for number in self.numbers() if self.jobs.exists() else ():
                self.ctl("cancel", number)
            self.ctl("remove", "--older-than", "0s")
        numbers = [json.loads(line)["job"] for maker in makers for line in maker.communicate()[0].splitlines()]
        self.assertEqual(sorted(numbers), list(range(1, 25)))


if __name__ == "__main__":
    unittest.main()
