"""A fabricd and a `fabric-data serve` over a folder of files, for tests of fabricshm.data."""

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import fabric_test

DEADLINE_S = 60


class DataService:
    """`folder` is what readers see as /files, `results` as /results, where they may write; /prepared is
    in the cache alone."""

    def __init__(self):
        self.program = Path(os.environ.get("FABRICD", "fabricd")).parent / "data/program/fabric-data"
        if not os.access(self.program, os.X_OK):
            fabric_test.skip(f"no fabric-data at {self.program}")
        self._top = Path(tempfile.mkdtemp(prefix="fabric-data-"))
        atexit.register(shutil.rmtree, self._top, ignore_errors=True)
        self.folder = self._top / "files"
        self.results = self._top / "results"
        self.folder.mkdir()
        self.results.mkdir()
        self.daemon = fabric_test.daemon_or_skip()
        self.socket = str(self._top / "data.sock")
        os.environ["FABRIC_DATA_SOCKET"] = self.socket
        (self._top / "data.toml").write_text(
            f'[cache]\nmemory = "48MiB"\n[[silo]]\nat = "/files"\nfrom = "{self.folder}"\n'
            f'[[silo]]\nat = "/results"\nfrom = "{self.results}"\nwrite = "through"\n'
            '[[silo]]\nat = "/prepared"\nfrom = "memory"\n')
        self._process = None
        self._owner = os.getpid()
        atexit.register(self.kill)
        self.start()

    def start(self):
        from fabricshm._daemon import answers, die_with_parent

        log = open(self._top / "serve.log", "ab")
        self._process = subprocess.Popen(
            [self.program, "serve", "--config", self._top / "data.toml", "--socket", self.socket,
             "--daemon", self.daemon.socket],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        log.close()
        limit = time.monotonic() + DEADLINE_S
        while not answers(self.socket):
            if self._process.poll() is not None or time.monotonic() > limit:
                raise AssertionError((self._top / "serve.log").read_text())
            time.sleep(0.01)

    def kill(self):
        """As SIGKILL does."""
        if self._process is None or os.getpid() != self._owner:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    @contextlib.contextmanager
    def stopped(self):
        """Meanwhile it answers nothing."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return content

    def settle(self):
        """Until what was made in the cache alone may leave it: 2 s after it was made."""
        time.sleep(2.1)

    def open_writes(self):
        """How many files are being written."""
        return json.loads(self.command("status", "--json"))["writes"]["open"]

    def wait_for_no_open_write(self):
        limit = time.monotonic() + DEADLINE_S
        while self.open_writes() != 0:
            assert time.monotonic() < limit
            time.sleep(0.01)

    def command(self, *words):
        """Standard output of `fabric-data WORDS`."""
        done = subprocess.run([self.program, *words, "--socket", self.socket], capture_output=True,
                              text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout
