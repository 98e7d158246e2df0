"""The phases of scripts/test: builds, tests, lints, what is left behind, and a summary."""

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import one_case
import shm_leftovers

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
FEW_FILES = 2500           # in ccache: fewer than a whole release build leaves there, an object and its headers' names each
COLD_OPTIONS = ["-DFABRIC_TEST_PRECOMPILED=ON", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=8"]
CONFIGURE_OPTIONS = []     # the same for all phases, decided at the start
CTEST_LINE = re.compile(r"Test +#\d+: (\S+) \.*\s*(Passed|\*\*\*\w+)")


@dataclass
class Phase:
    """One preset to build and the ctest labels to run with it. An empty `targets` builds all."""

    name: str
    what: str
    preset: str
    labels: tuple = ()     # of ctest; empty: every test
    folders: tuple = ()    # of unit tests, which are labels, too; empty: all of them
    without: tuple = ()    # labels to leave out
    targets: tuple = ()
    jobs: int = 0          # tests at a time; 0: as many as --jobs says
    minutes: float = 0     # needed at least, cold, on two cores; 0: never left out for lack of time
    ahead: str = ""        # a later phase that is built during these tests, which leave processors idle


# Whole machines, emulated; a phase of their own.
MACHINES = ("vm",)
# Several hosts: what these tests wait for are leases, timeouts and programs that start. Each makes its own folders, ports
# and network namespaces, so that two at a time do not disturb each other.
HOSTS = ("net",)
# Kinds of tests that measure or crowd the cores themselves run one at a time.
ALONE = ("multiproc", "crash", "oracle", "emu", "python", "web", "slurm", "slow", "bench-smoke", "training")

# libfabricshm, in the order of its layers.
LIBRARY = ("base", "os", "shm", "proto", "collective", "optim", "client")
LIBRARY_TESTS = tuple(f"tests_unit_{folder}" for folder in LIBRARY)

PHASES = [
    Phase("lint", "layers, sizes, paths, format, documents, words", "release", labels=("lint",), targets=("help",)),
    Phase("unit", "release build; unit and API tests", "release", without=ALONE + HOSTS + MACHINES + ("lint",)),
    Phase("system", "release build; processes, crashes, Python, training, benchmarks once", "release",
          labels=ALONE, without=HOSTS, jobs=1),
    Phase("net", "release build; groups, pools and clusters of several hosts", "release", labels=HOSTS, jobs=2),
    Phase("vm", "virtual machines: Debian's kernel with CXL memory and DAX devices", "release",
          labels=MACHINES, targets=("tests_vm",), jobs=1, ahead="asan"),
    # What all processes map and run first: a build of everything takes longer than a small machine has.
    Phase("asan", "address and undefined behaviour sanitizers: unit tests of the library", "asan", labels=("unit",),
          folders=LIBRARY, targets=LIBRARY_TESTS, without=("slow",), minutes=6),
    Phase("tsan", "thread sanitizer: unit tests of the library", "tsan", labels=("unit",), folders=LIBRARY,
          targets=LIBRARY_TESTS, without=("slow", "grpc"), jobs=1, minutes=6),
    Phase("asan-all", "address and undefined behaviour sanitizers: everything", "asan",
          labels=("unit", "multiproc", "crash", "oracle"), without=("slow", "training", "bench-smoke"),
          targets=("tests_unit", "tests_multiproc", "tests_crash", "tests_oracle"), jobs=1, minutes=12),
    Phase("tsan-all", "thread sanitizer: all unit tests", "tsan", labels=("unit",),
          without=("slow", "grpc"), targets=("tests_unit",), jobs=1, minutes=8),
]
QUICK = ("lint", "unit")


@dataclass
class Outcome:
    phase: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0
    note: str = ""
    names: list = field(default_factory=list)  # of what failed or was skipped


class OutOfTime(Exception):
    """A phase that may be left out did not end within the budget."""


def run_bounded(command: list, stream, seconds: float | None) -> int:
    """The exit code. Out of time, or interrupted, it ends all that the command has started: ended alone, `cmake
    --build` leaves its ninja behind, which goes on for as long as the build takes."""
    with subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream, process_group=0) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise OutOfTime("stopped while building") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)


def run_logged(command: list, log: Path, seconds: float | None) -> int:
    """Runs a build step; its output goes to `log`, and its end to the screen when it fails."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stream:
        stream.write("$ " + " ".join(command) + "\n")
        stream.flush()
        code = run_bounded(command, stream, seconds)
    if code != 0:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error:" in line or "Error" in line][:20]
        print("\n".join(errors + ["..."] + lines[-40:]))
        print(f"failed: {' '.join(command)} (all of it in {log.relative_to(ROOT)})")
    return code


def is_cache_empty() -> bool:
    """Whether ccache has little to give. Then COLD_OPTIONS shorten the build (docs/perf/2026-11-23-build-time.md), of
    which ccache keeps no objects for other folders."""
    try:
        stats = subprocess.run(["ccache", "--print-stats"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return True
    files = re.search(r"^files_in_cache\s+(\d+)", stats, re.MULTILINE)
    return files is not None and int(files.group(1)) < FEW_FILES


def configure(preset: str) -> list:
    """The command that configures."""
    return ["cmake", "--preset", preset, *CONFIGURE_OPTIONS]


def build(phase: Phase, jobs: int, seconds: float | None) -> bool:
    """Configures each time, since a preset may have changed. The target help builds nothing."""
    log = LOGS / f"build-{phase.preset}.log"
    print(f"building {phase.preset} ...", flush=True)
    if run_logged(configure(phase.preset), log, seconds) != 0:
        return False
    if phase.targets == ("help",):
        return True
    command = ["cmake", "--build", str(ROOT / "build" / phase.preset), "-j", str(jobs)]
    command += ["--target", *phase.targets] if phase.targets else []
    return run_logged(command, log, seconds) == 0


class Ahead:
    """A build during the tests of an earlier phase, at a lower priority than they. What it says is in its log only: its
    phase builds once more, which does nothing, or fails again and shows why."""

    process: subprocess.Popen | None = None

    def start(self, phase: Phase, jobs: int) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        build_command = ["cmake", "--build", f"build/{phase.preset}", "-j", str(jobs), "--target", *phase.targets]
        script = f"{' '.join(configure(phase.preset))} && exec {' '.join(build_command)}"
        with (LOGS / f"ahead-{phase.preset}.log").open("w") as log:
            self.process = subprocess.Popen(["nice", "-n", "10", "sh", "-c", script], cwd=ROOT, stdout=log, stderr=log,
                                            process_group=0)

    def stop(self) -> None:
        """Its phase goes on with all processors, and not behind anything."""
        if self.process is not None:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()
            self.process = None


def count_junit(path: Path, outcome: Outcome) -> None:
    """Adds what ctest wrote about its tests."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, status = case.get("name", "?"), case.get("status", "")
        if case.find("skipped") is not None or status in ("notrun", "disabled"):
            # A test that could not even be started is no skip: its program is missing.
            skipped = case.find("skipped")
            asked = skipped is not None and "SKIP" in (skipped.get("message") or "")
            outcome.skipped += asked
            outcome.failed += not asked
            outcome.names.append(f"{'skipped' if asked else 'not run'}: {name}")
        elif case.find("failure") is not None or status == "fail":
            outcome.failed += 1
            outcome.names.append(f"failed: {name}")
        else:
            outcome.passed += 1


def any_of(labels: tuple) -> str:
    """The regular expression of ctest for these labels and no longer ones."""
    return "^(" + "|".join(labels) + ")$"


def count_line(line: str, outcome: Outcome) -> None:
    """Adds one line of ctest's output; for a run that was stopped before it wrote its report."""
    match = CTEST_LINE.search(line)
    if match is None:
        return
    name, result = match.groups()
    outcome.passed += result == "Passed"
    outcome.skipped += result == "***Skipped"
    if result not in ("Passed", "***Skipped"):
        outcome.failed += 1
        outcome.names.append(f"failed: {name}")


def stream_ctest(command: list, seconds: float | None) -> tuple[list, bool]:
    """Runs ctest, showing its output as it comes. Gives the lines, and whether it had to be stopped."""
    # Or ctest would take its number of jobs from outside, and not from -j.
    environment = dict(os.environ, CTEST_PARALLEL_LEVEL="", PYTHONDONTWRITEBYTECODE="1")
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    stopped = threading.Event()

    def stop():
        stopped.set()
        process.send_signal(signal.SIGINT)  # ctest ends its tests with it

    timer = threading.Timer(seconds, stop) if seconds is not None else None
    if timer is not None:
        timer.start()
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    process.wait()
    if timer is not None:
        timer.cancel()
    return lines, stopped.is_set()


def run_ctest(phase: Phase, jobs: int, outcome: Outcome, seconds: float | None) -> None:
    """A run without a single test has failed: a label was renamed, or its tests are not built."""
    junit = LOGS / f"ctest-{phase.name}.xml"
    junit.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", str(ROOT / "build" / phase.preset), "--output-on-failure",
               "-j", str(phase.jobs or jobs), "--output-junit", str(junit)]
    command += ["-L", any_of(phase.labels)] if phase.labels else []
    command += ["-L", any_of(phase.folders)] if phase.folders else []
    command += ["-LE", any_of(phase.without)] if phase.without else []
    lines, stopped = stream_ctest(command, seconds)
    if stopped:
        outcome.note = "stopped for lack of time; only what ended is counted"
        for line in lines:
            count_line(line, outcome)
    elif junit.is_file():
        count_junit(junit, outcome)
    if outcome.passed + outcome.failed + outcome.skipped == 0 and not stopped:
        outcome.failed += 1
        outcome.names.append(f"failed: {phase.name}: ctest ran nothing")


def run_phase(phase: Phase, jobs: int, minutes_left: float, later: Phase | None = None) -> Outcome:
    """Builds, tests, and finds what was left behind; running out of time is no failure. Builds `later` meanwhile."""
    print(f"\n=== {phase.name}: {phase.what} ===", flush=True)
    outcome = Outcome(phase.name)
    start = time.monotonic()
    ahead = Ahead()
    # What was there before is not this phase's.
    before = shm_leftovers.names()
    end = start + 60 * minutes_left if phase.minutes and minutes_left != math.inf else None

    def seconds_left() -> float | None:
        return None if end is None else max(end - time.monotonic(), 1)

    try:
        if build(phase, jobs, seconds_left()):
            if later is not None:
                ahead.start(later, jobs)
            run_ctest(phase, jobs, outcome, seconds_left())
        else:
            outcome.failed, outcome.note = 1, "does not build"
            outcome.names.append(f"failed: {phase.name}: does not build")
    except OutOfTime as reason:
        outcome.note = f"not run: {reason}"
    finally:
        ahead.stop()
    left = shm_leftovers.wait_until_clean(before)
    outcome.failed += bool(left)
    outcome.names += [f"failed: {phase.name}: left behind: {name}" for name in left]
    outcome.seconds = time.monotonic() - start
    return outcome


def print_summary(outcomes: list, start: float) -> int:
    """Gives the exit code, too: where nothing passed, something is wrong."""
    print("\n=== summary ===")
    for outcome in outcomes:
        for name in outcome.names:
            print(f"{outcome.phase}: {name}")
    print(f"{'phase':10} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}  note")
    for outcome in outcomes:
        print(f"{outcome.phase:10} {outcome.passed:7} {outcome.failed:7} {outcome.skipped:8} "
              f"{outcome.seconds:8.0f}  {outcome.note}")
    passed, failed, skipped = (sum(getattr(outcome, part) for outcome in outcomes)
                               for part in ("passed", "failed", "skipped"))
    print(f"{(time.monotonic() - start) / 60:.1f} minutes in all")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/test", description="Builds and tests everything.")
    names = [phase.name for phase in PHASES]
    parser.add_argument("--quick", action="store_true", help="lints, release build, unit and API tests")
    parser.add_argument("--only", action="append", choices=names, metavar="PHASE",
                        help="run this phase (may be given again): " + ", ".join(names))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, metavar="N",
                        help="jobs of the build, and unit tests at a time (default: one per core)")
    parser.add_argument("--budget", type=float, default=52, metavar="MINUTES",
                        help="leave out or stop sanitizer phases that go beyond it (default: 52)")
    parser.add_argument("--case", metavar="NAME", help="run one test of ctest, or one case of a program, by the beginning of its name")
    parser.add_argument("--preset", default="release", help="of --case (default: release)")
    parser.add_argument("--list", action="store_true", help="list the phases and exit")
    return parser.parse_args()


def main() -> int:
    """The phases in their order. What may be left out gives way to the budget."""
    options = parse_arguments()
    if options.list:
        print("\n".join(f"{phase.name:8} {phase.what}" for phase in PHASES))
        return 0
    if options.case:
        return one_case.run_case(ROOT, options.preset, options.case, options.jobs)
    # ccache hashes what the compiler read, and runs no preprocessor before it.
    os.environ.setdefault("CCACHE_DEPEND", "1")
    if is_cache_empty():
        CONFIGURE_OPTIONS.extend(COLD_OPTIONS)
    wanted = options.only or (QUICK if options.quick else [phase.name for phase in PHASES])
    start = time.monotonic()
    outcomes = []
    for phase in (phase for phase in PHASES if phase.name in wanted):
        left = options.budget - (time.monotonic() - start) / 60
        if phase.minutes > left and not options.only:
            note = f"not run: needs {phase.minutes:.0f} minutes, {max(left, 0):.0f} left"
            outcomes.append(Outcome(phase.name, note=note))
            continue
        later = next((one for one in PHASES if one.name == phase.ahead and one.name in wanted), None)
        outcomes.append(run_phase(phase, options.jobs, math.inf if options.only else left, later))
    return print_summary(outcomes, start)


if __name__ == "__main__":
    # As Ctrl-C: what was started is ended with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
