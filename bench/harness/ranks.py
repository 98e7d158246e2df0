"""Starts the processes of one contender and speaks to its ranks through named pipes."""

import os
import select
import subprocess
import time

from harness.endings import end_with_parent


class ContenderFailed(Exception):
    """A contender died, did not answer, or could not start; the run goes on without it."""


class Ranks:
    """The running ranks of one process set. Not thread-safe."""

    def __init__(self, process_set, world, control, log_folder):
        self.name = process_set.name
        self.world = world
        self._pipes = []  # (to rank, from rank)
        self._partial = [b""] * world
        self._log = open(os.path.join(log_folder, f"{self.name}.{world}.log"), "wb")
        for rank in range(world):
            pair = []
            for end in ("in", "out"):
                path = os.path.join(control, f"{self.name}.{rank}.{end}")
                os.mkfifo(path, 0o600)
                # Opened for both directions: never blocks here, and no end of file while a rank
                # is still starting.
                pair.append(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            self._pipes.append(pair)
        common = ["--control", control, "--name", self.name]
        environment = {**os.environ, **process_set.environment}
        commands = [process_set.command + common]
        if process_set.per_rank:
            commands = [process_set.command + common + ["--rank", str(rank)]
                        for rank in range(world)]
        # All in this program's session: where sessions get shares of the processor (autogroup), a
        # contender with one per rank would be scheduled unlike one with a common launcher.
        self._launched = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log,
                                           stderr=self._log, env=environment,
                                           preexec_fn=end_with_parent)
                          for command in commands]
        self.pids = []
        self.version = ""
        self.active_cpu = 0.0
        self._first_cpu = 0.0
        self._first_time = 0.0

    def wait_ready(self, timeout):
        """Waits for the ranks' greetings."""
        for words in self._collect(timeout):
            self.pids.append(int(words[1]))
            self.version = " ".join(words[2:])

    def start_idle_watch(self):
        """From here on, CPU used outside a turn counts as wasted."""
        self._first_cpu, self._first_time = self._cpu_seconds(), time.monotonic()
        self.active_cpu = 0.0

    def idle_share(self):
        """CPU seconds used outside turns per second since start_idle_watch()."""
        length = max(time.monotonic() - self._first_time, 1e-9)
        return max(0.0, self._cpu_seconds() - self._first_cpu - self.active_cpu) / length

    def order(self, line, timeout):
        """Gives all ranks one order; returns the words of each rank's answer."""
        before = self._cpu_seconds()
        for to_rank, _ in self._pipes:
            os.write(to_rank, line.encode() + b"\n")
        answers = self._collect(timeout)
        # What ranks use between their greeting and the order counts as idle: they should sleep.
        self.active_cpu += self._cpu_seconds() - before
        return answers

    def stop(self):
        """Asks the ranks to leave, then ends what is left of them. Once more does no harm."""
        pipes, self._pipes = self._pipes, []
        for to_rank, _ in pipes:
            try:
                os.write(to_rank, b"quit\n")
            except BlockingIOError:
                pass
        deadline = time.monotonic() + 15
        for process in self._launched:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._end(process)
        for pair in pipes:
            for descriptor in pair:
                os.close(descriptor)
        self._log.close()

    def _end(self, process):
        # By number: a launcher may have ended without its ranks.
        for pid in [process.pid] + self.pids:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        process.wait()

    def _collect(self, timeout):
        answers = [None] * self.world
        deadline = time.monotonic() + timeout
        while None in answers:
            waiting = {self._pipes[rank][1]: rank
                       for rank in range(self.world) if answers[rank] is None}
            # Woken five times a second without an answer, to see whether a rank died.
            ready, _, _ = select.select(list(waiting), [], [], 0.2)
            for descriptor in ready:
                rank = waiting[descriptor]
                self._partial[rank] += os.read(descriptor, 4096)
                if b"\n" in self._partial[rank]:
                    line, self._partial[rank] = self._partial[rank].split(b"\n", 1)
                    answers[rank] = line.decode().split()
            if ready:
                continue
            if any(process.poll() not in (None, 0) for process in self._launched):
                raise ContenderFailed(f"{self.name} died: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ContenderFailed(f"{self.name} did not answer within {timeout:.0f} s")
        return answers

    def _last_words(self):
        """The contender's last line, which is its reason more often than not."""
        with open(self._log.name, errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        return lines[-1] if lines else "no message"

    def _cpu_seconds(self):
        return sum(_cpu_seconds(pid) for pid in self.pids)


def _cpu_seconds(pid):
    """CPU time of all threads of a process, to the nanosecond where the kernel has it."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
    except (OSError, IndexError):
        return total / 1e9
    return total / 1e9
