"""fabric_gpu_quota and the programs under the quota shim that it serves, as torch_quota.py has them."""

import json
import os
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness.endings import end_with_parent  # noqa: E402  pylint: disable=wrong-import-position

MIB = 1 << 20


class Failed(Exception):
    """A program did not do what was asked of it; the check that needed it has failed."""


class Child:
    """A program that answers lines with lines."""

    def __init__(self, command, log, environment=None):
        self._log_path = log
        self._log = open(log, "wb")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
                                         env=environment, preexec_fn=end_with_parent)
        self._partial = b""
        self.pid = self._process.pid

    def tell(self, line):
        """One line to its input."""
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"ended: {self.last_words()}") from None

    def read(self, timeout):
        """Its next line."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._partial:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Failed(f"no answer within {timeout:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 4096)
            if not piece:
                raise Failed(f"ended: {self.last_words()}")
            self._partial += piece
        line, self._partial = self._partial.split(b"\n", 1)
        return line.decode()

    def last_words(self):
        """The last line of its standard error."""
        with open(self._log_path, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else "no message"

    def kill(self):
        """By SIGKILL; once more does no harm."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            try:
                stream.close()
            except BrokenPipeError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class QuotaProgram(Child):
    """Serves vGPUs of one GPU; `vgpus` is a dictionary of quotas in bytes by name."""

    def __init__(self, program, folder, gpu, memory, vgpus, options=()):
        self._socket = os.path.join(folder, "vgpu.sock")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        command = [program, "--socket", self._socket, "--state", os.path.join(folder, "state"), "--gpu", gpu,
                   "--memory", str(memory), *options]
        for name, quota in vgpus.items():
            command += ["--vgpu", f"{name}={quota}"]
        super().__init__(command, os.path.join(folder, "quota.log"))
        try:
            ready = self.read(20)
        except BaseException:
            self.kill()
            raise
        if ready != "ready":
            raise Failed(f"fabric_gpu_quota says {ready}")

    def ask(self, line):
        """The numbers of an answer."""
        self.tell(line)
        words = self.read(20).split()
        if words[0] != "ok":
            raise Failed(f"{line}: {' '.join(words[1:])}")
        return [int(word) for word in words[1:]]

    def used(self, name):
        """Bytes that count against the quota."""
        return self.ask(f"used {name}")[0]

    def processes(self, name):
        """Bytes by process."""
        numbers = self.ask(f"processes {name}")
        return dict(zip(numbers[::2], numbers[1::2]))

    def seconds_until(self, done, within):
        """How long it takes until `done()`, or None. The answers to its questions set the pace."""
        begun = time.monotonic()
        while time.monotonic() - begun < within:
            if done():
                return time.monotonic() - begun
        return None

    def environment(self, shim, name, **more):
        """Of a program on the vGPU; without the limits it does not start."""
        return {**os.environ, "LD_PRELOAD": shim, "FABRIC_VGPU": name, "FABRIC_VGPU_SOCKET": self._socket,
                "FABRIC_VGPU_REQUIRE": "1", **more}


class Worker(Child):
    """One job of torch_workers.py. What it says is a dictionary a line."""

    def __init__(self, job, folder, environment=None, python=sys.executable):
        self.job = job
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_workers.py")
        number = len(os.listdir(folder))
        super().__init__([python, script, job], os.path.join(folder, f"{job}-{number}.log"),
                         {**(environment or os.environ), "PYTHONDONTWRITEBYTECODE": "1"})

    def hear(self, timeout=60):
        """What it says next; an exception of its own is one here."""
        try:
            said = json.loads(self.read(timeout))
        except Failed as failure:
            raise Failed(f"{self.job}: {failure}") from None
        if "error" in said:
            raise Failed(f"{self.job}: {said['error']}")
        return said
