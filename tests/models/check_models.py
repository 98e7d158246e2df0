#!/usr/bin/python3
"""Runs the models of tests/models through spin: what they claim has to hold, and every fault that can
be switched on has to be found. The first comment of a model says what it stands for and what to run:

   code   FILE: FUNCTION ...           what the model stands for; must still be there
   holds  what it is about: -DX ...    every reachable state is checked, and none is wrong
   leads  what it is about: -DX ...    the formula of the model holds in every fair, endless run
   finds  the first error: -DFAULT_X   spin stops at an error of this kind
"""

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).resolve().parent
ROOT = MODELS.parents[1]
LINE = re.compile(r"^ \* (code|holds|leads|finds)\s+(.*?):\s+(.*)$", re.MULTILINE)
SKIPPED = 77
DEPTH = 20_000          # steps of the longest run; the search says when it was too little
MEMORY_MB = 4000


@dataclass
class Line:
    kind: str
    about: str
    words: list[str]


def lines_of(text: str) -> list[Line]:
    """What the first comment of a model asks for."""
    return [Line(kind, about, words.split()) for kind, about, words in LINE.findall(text.split("*/")[0])]


def missing_code(line: Line, root: Path) -> list[str]:
    """A function is there when its name, with its class where one is given, stands before a `(`."""
    path = root / line.about
    if not path.is_file():
        return [f"{line.about} is not there"]
    text = path.read_text()
    return [f"{line.about}: no {name}() any more" for name in line.words
            if not re.search(rf"\b{re.escape(name)}(<[^()]*>)?\(", text)]


def error_messages(name: str, text: str, root: Path) -> list[str]:
    """What is wrong with the model's own text."""
    lines = lines_of(text)
    found = [error_message for line in lines if line.kind == "code" for error_message in missing_code(line, root)]
    for kind, least in (("code", 1), ("holds", 1), ("finds", 4)):
        if sum(line.kind == kind for line in lines) < least:
            found.append(f"fewer than {least} `{kind}` lines")
    body = set(re.findall(r"FAULT_\w+", text.split("*/", 1)[1]))
    asked = {word[2:] for line in lines if line.kind == "finds" for word in line.words if "FAULT_" in word}
    found += [f"nothing looks for {fault}" for fault in sorted(body - asked)]
    found += [f"{fault} changes nothing" for fault in sorted(asked - body)]
    return [f"tests/models/{name}.pml: {error_message}" for error_message in found]


def run(command: list[str], folder: Path) -> str:
    """The output; a step that fails by itself ends everything (a search that finds errors does not)."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def search(model: Path, line: Line, folder: Path) -> str:
    """Translates, compiles and runs. Without optimisation: most searches are shorter than gcc -O2."""
    run(["spin", *line.words, "-a", str(model)], folder)
    fair = line.kind == "leads"
    kind = ["-DNFAIR=6"] if fair else ["-DSAFETY"]
    run(["gcc", "-O0", "-w", *kind, "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c"], folder)
    return run(["./pan", "-n", "-w22", f"-m{DEPTH}", *(["-a", "-f"] if fair else [])], folder)


def verdict(line: Line, output: str) -> str:
    """Empty when the search says what the line says."""
    errors = re.search(r"errors: (\d+)", output)
    complete = errors is not None and "max search depth too small" not in output and \
        "Interrupted" not in output and "out of memory" not in output
    if not complete and line.kind != "finds":
        return "the search was not complete"
    if line.kind == "finds":
        first = re.search(r"pan:1: (.*)", output)
        return "" if first and first.group(1).startswith(line.about) else f"expected: {line.about}"
    return "" if errors.group(1) == "0" else "found an error"


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check_model(name: str) -> int:
    """Runs every line of one model; returns how many were wrong."""
    model = MODELS / f"{name}.pml"
    wrong = 0
    for line in (line for line in lines_of(model.read_text()) if line.kind != "code"):
        before = cpu_seconds()
        with tempfile.TemporaryDirectory(prefix="fabric-model-") as folder:
            output = search(model, line, Path(folder))
        problem = verdict(line, output)
        states = re.search(r"(\d+) states, stored", output)
        print(f"{name}: {line.kind} {line.about}: {' '.join(line.words)}: {states.group(1) if states else '?'} "
              f"states, {cpu_seconds() - before:.1f} s", flush=True)
        if problem:
            wrong += 1
            print(f"{problem}\n{output}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the models of tests/models with spin.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of models (default: all)")
    parser.add_argument("--text", action="store_true", help="check only what the models say of the code")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree whose functions are looked for")
    options = parser.parse_args()
    names = options.models or sorted(path.stem for path in MODELS.glob("*.pml"))
    found = [error_message for name in names
             for error_message in error_messages(name, (MODELS / f"{name}.pml").read_text(), options.root)]
    print("\n".join(found))
    if options.text:
        return 1 if found or not names else 0
    if shutil.which("spin") is None:
        print("spin is not installed: scripts/setup")
        return SKIPPED
    wrong = len(found) + sum(check_model(name) for name in names)
    print(f"{cpu_seconds():.1f} s of processor time")
    return 1 if wrong or not names else 0


if __name__ == "__main__":
    sys.exit(main())
