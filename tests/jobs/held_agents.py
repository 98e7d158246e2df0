"""A task manager whose agents are held at their first instruction, by ptrace: for tests of what a kill at that moment
costs. All calls are for one thread, as ptrace has it."""

import ctypes
import os
import signal
import time
import unittest
from pathlib import Path

TRACEME, CONT, DETACH, SETOPTIONS, GETEVENTMSG = 0, 7, 17, 0x4200, 0x4201
FORKS = {1: 0x2, 2: 0x4}  # events and their options: fork, vfork
EXEC, EXEC_OPTION = 4, 0x10
POLL = {"x86_64": "7", "aarch64": "73"}.get(os.uname().machine)  # numbers of system calls
ALL = 0x40000000  # __WALL: threads, too
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, pid, data=None):
    return LIBC.ptrace(request, pid, None, data)


class HeldAgents:
    """`words` become a process; `count` of its agents are held once this returns, and it waits for them."""

    def __init__(self, words, environment, folder, count, timeout):
        self.deadline = time.monotonic() + timeout
        self.agents = []
        self.manager = os.fork()
        if self.manager == 0:
            try:
                os.chdir(folder)
                null = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(null, number)
                if ptrace(TRACEME, 0) == 0:
                    os.execve(words[0], words, environment)
            finally:
                os._exit(127)
        traced = {self.manager}
        self.first_stop()
        ptrace(SETOPTIONS, self.manager, sum(FORKS.values()) | EXEC_OPTION)
        ptrace(CONT, self.manager)
        while len(self.agents) < count or not self.waits():
            self.check()
            for pid in list(traced):
                found, status = os.waitpid(pid, os.WNOHANG | ALL)
                if found == 0:
                    continue
                if not os.WIFSTOPPED(status):
                    traced.remove(pid)
                    continue
                event = status >> 16
                if event in FORKS:
                    child = ctypes.c_ulong()
                    ptrace(GETEVENTMSG, pid, ctypes.addressof(child))
                    traced.add(child.value)
                if event == EXEC and b"agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    self.agents.append(pid)
                    traced.remove(pid)
                    continue
                # The stops of ptrace's own are no signals; all others the process gets.
                number = os.WSTOPSIG(status)
                ptrace(CONT, pid, None if event or number in (signal.SIGSTOP, signal.SIGTRAP) else number)
            time.sleep(0.001)

    def check(self):
        if time.monotonic() > self.deadline:
            raise AssertionError(f"{len(self.agents)} agents are held")

    def first_stop(self):
        while True:
            found, status = os.waitpid(self.manager, os.WNOHANG | ALL)
            if found and not os.WIFSTOPPED(status):
                raise unittest.SkipTest("processes can't be traced here")
            if found:
                return
            self.check()
            time.sleep(0.001)

    def waits(self):
        """Whether the manager's first thread is in poll(): it has started all agents."""
        return Path(f"/proc/{self.manager}/syscall").read_text().split()[0] == POLL

    def release(self, number):
        ptrace(DETACH, self.agents[number])

    def kill_manager(self):
        """The held ones hear of it when they are released."""
        os.kill(self.manager, signal.SIGKILL)
        os.waitpid(self.manager, ALL)
