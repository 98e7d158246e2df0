"""scripts/test --case: finds one test by the beginning of its name, builds what it needs and runs it alone.

A name is one of ctest ("unit.telemetry.round_trip") or of a case within a program ("a step without a daemon"). As much of
it as no other has is enough; else those that fit are named and nothing runs.
"""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

CASE = re.compile(r'^\s*TEST_CASE\(\s*((?:"(?:\\.|[^"\\])*"\s*)+)\)', re.MULTILINE)
LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"')
ADD_TEST = re.compile(r'^add_test\((?:\[=\[)?([^\]"\s]+)(?:\]=\])? "([^"]*)"', re.MULTILINE)
SHOWN = 20  # candidates


@dataclass(frozen=True)
class Found:
    """A test of ctest, and the case in it, if one alone is meant."""

    test: str
    case: str = ""

    def __str__(self) -> str:
        return f"{self.test}: {self.case}" if self.case else self.test


def programs_of(build: Path) -> dict[str, str]:
    """The program of each test of ctest, which need not be built yet."""
    programs = {}
    for file in build.rglob("CTestTestfile.cmake"):
        programs.update(ADD_TEST.findall(file.read_text()))
    return programs


def cases_of(text: str) -> list[str]:
    """The names of the cases in a source file."""
    return ["".join(LITERAL.findall(match)).replace('\\"', '"') for match in CASE.findall(text)]


def test_of(path: Path) -> str:
    """tests/unit/shm/ring_test.cpp is unit.shm.ring."""
    return ".".join(path.with_suffix("").parts[1:]).removesuffix("_test")


def all_cases(root: Path, tests: set[str]) -> list[Found]:
    """Every case of every source of a test that ctest knows."""
    return [Found(test_of(path.relative_to(root)), case) for path in sorted((root / "tests").rglob("*_test.cpp"))
            if test_of(path.relative_to(root)) in tests for case in cases_of(path.read_text(errors="replace"))]


def candidates(wanted: str, tests: list[str], cases: list[Found]) -> list[Found]:
    """What `wanted` may mean. Whole names go before beginnings of tests, these before beginnings of cases, and these
    before names that have it somewhere."""
    low = wanted.lower()
    named = [Found(test) for test in sorted(tests)]
    for fits in (lambda found, name: name == low and not found.case, lambda found, name: name == low,
                 lambda found, name: not found.case and name.startswith(low), lambda _, name: name.startswith(low),
                 lambda _, name: low in name):
        if found := [one for one in named + cases if fits(one, (one.case or one.test).lower())]:
            return found
    return []


def case_filter(case: str) -> str:
    """The argument of a doctest program for this case alone: a comma would end the filter, and ? fits any letter."""
    return "--test-case=" + re.sub(r"[,*\\]", "?", case)


def ctest_entry(build: Path, name: str) -> dict:
    """What ctest knows of a test that is built: its command, its environment, its folder."""
    command = ["ctest", "--test-dir", str(build), "--show-only=json-v1", "-R", f"^{re.escape(name)}$"]
    tests = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["tests"]
    return {"command": tests[0].get("command", []),
            **{one["name"]: one["value"] for one in tests[0].get("properties", [])}}


def run_found(build: Path, found: Found) -> int:
    """The exit code; 77 is a skip, as in ctest."""
    if not found.case:
        return subprocess.run(["ctest", "--test-dir", str(build), "-V", "-R", f"^{re.escape(found.test)}$"],
                              check=False).returncode
    entry = ctest_entry(build, found.test)
    environment = dict(os.environ, **dict(pair.split("=", 1) for pair in entry.get("ENVIRONMENT", [])))
    command = entry["command"] + [case_filter(found.case)]
    print("$ " + " ".join(command[:-1]) + f" '{command[-1]}'", flush=True)
    return subprocess.run(command, env=environment, cwd=entry.get("WORKING_DIRECTORY", build), check=False).returncode


def run_case(root: Path, preset: str, wanted: str, jobs: int) -> int:
    """Configures, finds, builds the one program, runs."""
    build = root / "build" / preset
    if not (build / "CMakeCache.txt").is_file() and subprocess.run(["cmake", "--preset", preset], cwd=root, check=False).returncode:
        return 1
    programs = programs_of(build)
    fits = candidates(wanted, list(programs), all_cases(root, set(programs)))
    if len(fits) != 1:
        print(f"{len(fits) or 'no'} tests fit \"{wanted}\"" + (":" if fits else "; ctest -N lists them"))
        print("\n".join(f"  {one}" for one in fits[:SHOWN]) + (f"\n  and {len(fits) - SHOWN} more" if len(fits) > SHOWN else ""))
        return 2
    target = Path(programs[fits[0].test]).name
    print(f"{preset}: {fits[0]}", flush=True)
    # What a script starts is as it was built last: which programs that are only the script knows.
    if target.startswith("test_"):
        built = subprocess.run(["cmake", "--build", str(build), "-j", str(jobs), "--target", target], check=False)
        if built.returncode:
            return built.returncode
    return run_found(build, fits[0])
