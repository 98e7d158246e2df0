"""One virtual machine: QEMU without hardware help (TCG), its console, and what it reports there."""

import ctypes
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from image import kernel_of, program

# Twenty times what a quiet machine needs, for this runs where others build.
TIMEOUT_S = 800.0
BOOT_TIMEOUT_S = 120.0

COMMON = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", "tcg,thread=multi",
          "-cpu", "max", "-serial", "stdio"]
END = re.compile(r"^vm: end (\d+) (\d+)\s*$")


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In the child: a test that is killed takes its machines with it."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Report:
    """What a guest said: the names of its cases, and whether it came to the end."""

    passed: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    is_up: bool = False
    end: tuple | None = None  # cases and failures as the guest counted them
    at: str = ""  # where it waits for the other machines
    killed_at: str = ""  # where its power was cut, if the scenario says so

    def is_good(self) -> bool:
        if self.killed_at:
            return bool(self.passed) and not self.failed and self.end is None
        return self.end == (len(self.passed), 0) and self.end[0] > 0 and not self.failed

    def read(self, line: str) -> None:
        line = line.rstrip("\r\n")
        if line.startswith("vm: up"):
            self.is_up = True
        elif line.startswith("vm: ok "):
            self.passed.append(line.removeprefix("vm: ok "))
        elif line.startswith("vm: FAIL "):
            self.failed.append(line.removeprefix("vm: FAIL "))
        elif line.startswith("vm: at "):
            self.at = line.removeprefix("vm: at ")
        elif match := END.match(line):
            self.end = (int(match[1]), int(match[2]))


class Machine:
    """Boots at once. Its console goes to a file, and line by line into the report."""

    def __init__(self, name: str, arguments: list, image: Path, kernels: Path, flavour: str,
                 words: dict, work: Path):
        self.name = name
        self.report = Report()
        self.console = work / f"{name}.console"
        kernel, _ = kernel_of(kernels, flavour)
        line = {"console": "ttyS0", "panic": "-1", **words}
        append = " ".join(["quiet"] + [f"{key}={value}" for key, value in line.items()])
        self.command = [str(program("qemu-system-x86_64")), *COMMON, *arguments, "-kernel",
                        str(kernel), "-initrd", str(image), "-append", append]
        self.start = time.monotonic()
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace", preexec_fn=die_with_parent)
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        with self.console.open("w") as out:
            for line in self.process.stdout:
                out.write(f"{time.monotonic() - self.start:7.2f} {line}")
                out.flush()
                with self.changed:
                    self.report.read(line)
                    self.changed.notify_all()

    def is_up(self) -> bool:
        """Waits until its first process runs; false when that does not happen."""
        deadline = self.start + BOOT_TIMEOUT_S
        with self.changed:
            while not self.report.is_up and self.process.poll() is None:
                if not self.changed.wait(min(1.0, max(deadline - time.monotonic(), 0.0))):
                    if time.monotonic() > deadline:
                        break
            return self.report.is_up

    def wait(self) -> Report:
        """Until it has ended, or TIMEOUT_S has passed; then it is killed."""
        try:
            self.process.wait(max(self.start + TIMEOUT_S - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            print(f"{self.name}: did not end within {TIMEOUT_S:.0f} s", flush=True)
        self.stop()
        return self.report

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(10)

    def go(self) -> None:
        """Answers a machine that waits for the others."""
        # Forgotten before it is answered: the machine may be at its next place before the write returns here.
        place, self.report.at = self.report.at, ""
        try:
            self.process.stdin.write(f"go {place}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and its report says how

    def show(self) -> None:
        print(f"--- console of {self.name} ---")
        print(" ".join(self.command))
        print(self.console.read_text(errors="replace"), flush=True)


def introduce(machines: list, ends: dict) -> None:
    """Lets machines go on when all of them wait at the same place; returns when one has ended by itself. `ends`
    says, by the names of machines, at which place one loses its power: it is gone before the others go on."""
    while all(machine.process.poll() is None for machine in machines):
        places = {machine.report.at for machine in machines}
        if len(places) == 1 and "" not in places:
            place = places.pop()
            for machine in [machine for machine in machines if ends.get(machine.name) == place]:
                machine.stop()
                machine.report.killed_at = place
                machines = [other for other in machines if other is not machine]
            for machine in machines:
                machine.go()
        if time.monotonic() - machines[0].start > TIMEOUT_S:
            return
        time.sleep(0.05)


def booted(make, tries: int = 3) -> Machine:
    """Calls `make()` until the guest's first process runs. Only a kernel that did not come up is
    tried again: what happens after that is the test's."""
    for attempt in range(1, tries + 1):
        machine = make()
        if machine.is_up():
            return machine
        machine.stop()
        print(f"{machine.name}: the kernel did not come up (attempt {attempt} of {tries})")
        machine.show()
    raise RuntimeError("the guest's kernel does not come up")
