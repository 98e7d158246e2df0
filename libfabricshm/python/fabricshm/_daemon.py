"""A fabricd of one's own: started in a temporary folder, gone with its user."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """In a child, between fork and exec: the kernel kills it when the parent is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def answers(path):
    """Whether a daemon listens at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
            return True
        except OSError:
            return False


def usual_socket():
    """Where the library searches for a daemon when it is given nothing; None when none answers."""
    candidates = [os.environ.get("FABRIC_SOCKET")]
    if not candidates[0]:
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        candidates = [f"{runtime}/fabricd/attach.sock"] if runtime else []
        candidates.append("/run/fabricd/attach.sock")
    return next((path for path in candidates if answers(path)), None)


def find_program():
    """fabricd: $FABRICD, the build tree of this package, next to the running script, or PATH."""
    here = Path(__file__).resolve()
    package = Path(os.path.abspath(__file__)).parent
    candidates = [
        os.environ.get("FABRICD"),
        package.parent.parent / "fabricd" / "fabricd",
        here.parent.parent.parent / "fabricd" / "fabricd",
        Path(sys.argv[0]).resolve().parent / "fabricd",
        shutil.which("fabricd"),
    ]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return str(candidate)
    raise FileNotFoundError("fabricd is not in PATH; set FABRICD to its path")


class EmbeddedDaemon:
    """Started by the constructor, ready when it returns; use as a context manager, or stop() it.

    pool_bytes: capacity of its pool; 0: the daemon's default, half of the free memory.
    """

    def __init__(self, program=None, pool_bytes=0, default_arena_bytes=0, timeout=30.0, options=()):
        self.folder = tempfile.mkdtemp(prefix="fabricd-")
        self.socket = os.path.join(self.folder, "attach.sock")
        self._log_path = os.path.join(self.folder, "log")
        command = [program or find_program(), "--config", os.devnull]
        command += ["--server-runtime-dir", self.folder, *options]
        if pool_bytes:
            command += ["--pool-capacity", str(pool_bytes)]
        if default_arena_bytes:
            command += ["--arena-default-bytes", str(default_arena_bytes)]
        try:
            with open(self._log_path, "wb") as log:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, preexec_fn=die_with_parent)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._await_ready(timeout)

    def _await_ready(self, timeout):
        deadline = time.monotonic() + timeout
        while not answers(self.socket):
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                text = self.log().strip() or "no answer"
                self.stop()
                raise RuntimeError(f"fabricd did not start: {text}")
            time.sleep(0.01)

    def log(self):
        with open(self._log_path, errors="replace") as file:
            return file.read()

    def stop(self, grace=10.0):
        """Ends it and removes its folder. Its arenas go with it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
