"""The programs that tests of pages and metrics are about."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fabricshm._daemon import answers, die_with_parent

BUILD = Path(os.environ["FABRIC_BUILD"])
WAIT = 60  # seconds, for what takes one on a quiet machine


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(1 if os.environ.get("FABRIC_TESTS_FAIL_ON_SKIP") == "1" else 77)


def wait_for(condition, what):
    """The first true value of condition(); raises when there is none in time."""
    end = time.monotonic() + WAIT
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {WAIT} s: {what}")
        time.sleep(0.05)


class Daemon:
    """A fabricd whose folders outlive it, so that it can be started again. "@" in an option is its folder."""

    def __init__(self, *options):
        self.folder = tempfile.mkdtemp(prefix="fabric-web-")
        self.options = [option.replace("@", self.folder) for option in options]
        self.process = None
        self.socket = f"{self.folder}/attach.sock"
        self.admin = f"{self.folder}/admin.sock"

    def start(self):
        command = [str(BUILD / "fabricd/fabricd"), "--config", os.devnull, "--server-runtime-dir",
                   self.folder, "--state-dir", f"{self.folder}/state", *self.options]
        with open(f"{self.folder}/log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=die_with_parent)
        wait_for(lambda: answers(self.socket), "fabricd answers")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *words):
        """The JSON of a command of fabricctl."""
        answer = subprocess.run([BUILD / "fabricd/ctl/fabricctl", *words, "--json", "--socket", self.admin],
                                check=True, capture_output=True, timeout=WAIT)
        return json.loads(answer.stdout)


class Dashboard:
    """fabricctl dashboard at a port of the kernel's choice; .address is what it printed."""

    def __init__(self, daemon, *options):
        self.process = subprocess.Popen(
            [BUILD / "fabricd/ctl/fabricctl", "dashboard", "--listen", "127.0.0.1:0", "--socket", daemon.admin,
             *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent)
        self.address = self.process.stdout.readline().decode().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT) == 0
        self.process.stdout.close()
