#!/usr/bin/python3
"""The test runner distinguishes passed, failed and skipped, and sees what is left in /dev/shm."""

import contextlib
import io
import os
import select
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import one_case  # noqa: E402
import run_tests  # noqa: E402  the path has to be set first
import shm_leftovers  # noqa: E402

JUNIT = """<testsuite name="x" tests="5">
<testcase name="good" status="run"/>
<testcase name="bad" status="fail"><failure message=""/></testcase>
<testcase name="no hardware" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
<testcase name="no program" status="notrun"><skipped message="Unable to find executable: x"/></testcase>
<testcase name="also good" status="run"/>
</testsuite>"""


def summary_of(*outcomes) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = run_tests.print_summary(list(outcomes), 0)
    return code, output.getvalue()


class Counting(unittest.TestCase):
    def test_each_kind_of_result_is_counted_once(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(JUNIT)
            file.flush()
            outcome = run_tests.Outcome("x")
            run_tests.count_junit(Path(file.name), outcome)
        self.assertEqual((outcome.passed, outcome.failed, outcome.skipped), (2, 2, 1))
        self.assertIn("not run: no program", outcome.names)

    def test_the_last_line_has_the_totals(self):
        code, text = summary_of(run_tests.Outcome("a", passed=2, skipped=1), run_tests.Outcome("b", passed=3))
        self.assertEqual(code, 0)
        self.assertEqual(text.splitlines()[-1], "5 passed, 0 failed, 1 skipped")

    def test_a_failure_fails_the_run(self):
        code, _ = summary_of(run_tests.Outcome("a", passed=2, failed=1))
        self.assertEqual(code, 1)

    def test_a_run_without_tests_fails(self):
        code, _ = summary_of(run_tests.Outcome("a", skipped=3))
        self.assertEqual(code, 1)

    def test_lines_of_a_stopped_run_are_counted(self):
        outcome = run_tests.Outcome("x")
        for line in (" 1/9 Test #3: unit.a ....   Passed    0.01 sec",
                     " 2/9 Test #4: unit.b ....***Failed    0.01 sec",
                     " 3/9 Test #5: unit.c ....***Skipped   0.01 sec",
                     "    Start 6: unit.d"):
            run_tests.count_line(line, outcome)
        self.assertEqual((outcome.passed, outcome.failed, outcome.skipped), (1, 1, 1))

    def test_a_command_that_takes_too_long_is_stopped_and_said(self):
        start = time.monotonic()
        _, stopped = run_tests.stream_ctest(["sleep", "60"], 0.1)
        self.assertTrue(stopped)
        self.assertLess(time.monotonic() - start, 30)

    def test_what_a_stopped_command_has_started_is_ended_with_it(self):
        reading, writing = os.pipe()
        real_wait = subprocess.Popen.wait

        def out_of_time_once_started(process, timeout=None):
            if timeout is None:
                return real_wait(process)
            self.assertEqual(os.read(reading, 8), b"started\n")
            raise subprocess.TimeoutExpired(process.args, timeout)

        # What `sleep` was given to write to is at its end when it is gone.
        command = ["sh", "-c", "sleep 1000 & echo started; wait"]
        with mock.patch.object(subprocess.Popen, "wait", out_of_time_once_started), \
                self.assertRaises(run_tests.OutOfTime):
            run_tests.run_bounded(command, writing, 1)
        os.close(writing)
        ended, _, _ = select.select([reading], [], [], 60)
        self.assertTrue(ended)
        self.assertEqual(os.read(reading, 1), b"")
        os.close(reading)

    def test_a_build_beside_tests_ends_with_them(self):
        reading, writing = os.pipe()
        ahead = run_tests.Ahead()
        ahead.process = subprocess.Popen(["sh", "-c", "sleep 1000 & echo started; wait"], stdout=writing,
                                         process_group=0)
        os.close(writing)
        self.assertEqual(os.read(reading, 8), b"started\n")
        ahead.stop()
        self.assertEqual(os.read(reading, 1), b"")
        self.assertIsNone(ahead.process)
        ahead.stop()  # and where there is none
        os.close(reading)

    def test_what_is_built_ahead_is_a_phase_behind(self):
        names = [phase.name for phase in run_tests.PHASES]
        for phase in run_tests.PHASES:
            if phase.ahead:
                self.assertGreater(names.index(phase.ahead), names.index(phase.name))

    def test_labels_match_whole_words(self):
        self.assertEqual(run_tests.any_of(("net", "emu")), "^(net|emu)$")


class Leftovers(unittest.TestCase):
    def setUp(self):
        self.before = shm_leftovers.names()
        # The prefix separates parallel runs: only this test's file is checked.
        self.file = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="fabric-selftest-", delete=False)
        self.path = Path(self.file.name)
        self.addCleanup(self.path.unlink, missing_ok=True)

    def test_a_file_that_nobody_uses_is_found(self):
        self.file.close()
        self.assertIn(self.path.name, shm_leftovers.wait_until_clean(self.before, seconds=0))

    def test_a_file_in_use_is_left_alone(self):
        self.assertNotIn(self.path.name, shm_leftovers.orphans(self.before))
        self.file.close()

    def test_a_file_that_was_there_before_is_left_alone(self):
        self.file.close()
        self.assertNotIn(self.path.name, shm_leftovers.orphans(shm_leftovers.names()))


class Options(unittest.TestCase):
    def test_an_unknown_phase_is_refused(self):
        result = subprocess.run(["/usr/bin/python3", str(SCRIPTS / "run_tests.py"), "--only", "nothing"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("invalid choice", result.stderr)


class OneCase(unittest.TestCase):
    """scripts/test --case, on a tree of one program that is a script and one that is a binary of doctest's kind."""

    TESTS = ["unit.shm.ring", "unit.shm.ring_buffer", "lint.docs"]
    CASES = [one_case.Found("unit.shm.ring", "a full ring refuses the push"), one_case.Found("unit.shm.ring", "a full ring, Read"),
             one_case.Found("unit.shm.ring_buffer", "a seqlock")]

    def names(self, wanted):
        return [str(one) for one in one_case.candidates(wanted, self.TESTS, self.CASES)]

    def test_a_whole_name_is_not_the_beginning_of_another(self):
        self.assertEqual(self.names("unit.shm.ring"), ["unit.shm.ring"])

    def test_as_much_as_no_other_has_is_enough(self):
        self.assertEqual(self.names("lint"), ["lint.docs"])
        self.assertEqual(self.names("a full ring,"), ["unit.shm.ring: a full ring, Read"])
        self.assertEqual(self.names("A SEQ"), ["unit.shm.ring_buffer: a seqlock"])
        self.assertEqual(self.names("refuses"), ["unit.shm.ring: a full ring refuses the push"])

    def test_all_that_fit_are_named(self):
        self.assertEqual(self.names("unit.shm"), ["unit.shm.ring", "unit.shm.ring_buffer"])
        self.assertEqual(len(self.names("a full ring")), 2)
        self.assertEqual(self.names("nothing like it"), [])

    def test_cases_are_found_in_sources_also_over_two_lines(self):
        text = 'TEST_SUITE("x") {\n    TEST_CASE("one") {\n    TEST_CASE(\n        "two and "\n        "a \\"half\\"") {\n// TEST_CASE\n'
        self.assertEqual(one_case.cases_of(text), ["one", 'two and a "half"'])

    def test_a_comma_does_not_end_the_filter(self):
        self.assertEqual(one_case.case_filter("a, b*"), "--test-case=a? b?")

    def test_the_case_runs_alone_with_the_environment_of_its_test(self):
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        program = root / "build" / "x" / "report"
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\necho "$KIND $*" > "$OUT"\n')
        program.chmod(0o755)
        (program.parent / "CMakeCache.txt").touch()
        (program.parent / "CTestTestfile.cmake").write_text(
            f'add_test([=[unit.shm.ring]=] "{program}")\n'
            f'set_tests_properties([=[unit.shm.ring]=] PROPERTIES ENVIRONMENT "KIND=a;OUT={root}/out")\n')
        source = root / "tests" / "unit" / "shm" / "ring_test.cpp"
        source.parent.mkdir(parents=True)
        source.write_text('TEST_CASE("a full ring, read") {}\nTEST_CASE("an empty one") {}\n')
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.assertEqual(one_case.run_case(root, "x", "a full", 1), 0)
            self.assertEqual((root / "out").read_text(), "a --test-case=a full ring? read\n")
            self.assertEqual(one_case.run_case(root, "x", "a", 1), 2)
        self.assertIn("2 tests fit", output.getvalue())
        self.assertIn("unit.shm.ring: an empty one", output.getvalue())


if __name__ == "__main__":
    unittest.main()
