"""A fabricd of its own for one run: own folder, own socket, gone afterwards."""

import os
import socket
import subprocess
import time

from harness.endings import end_with_parent


def _answers(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
            return True
        except OSError:
            return False


class Daemon:
    """Starts `program` with everything under `folder`. `socket_path` is where ranks attach;
    `extra` is appended to its configuration."""

    def __init__(self, program, folder, pool_bytes, extra=""):
        self.socket_path = os.path.join(folder, "fabricd", "attach.sock")
        os.makedirs(os.path.dirname(self.socket_path), exist_ok=True)
        config = os.path.join(folder, "fabricd.toml")
        # emu, so that the run is the same on every machine.
        with open(config, "w") as file:
            file.write(f'[pool]\nbackend = "emu"\ncapacity = {pool_bytes}\n'
                       f'[log]\nlevel = "warning"\n{extra}')
        self._log_path = os.path.join(folder, "fabricd.log")
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                [program, "--config", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # A runtime folder of its own: a daemon that runs already is not disturbed.
                env={**os.environ, "XDG_RUNTIME_DIR": folder}, start_new_session=True,
                preexec_fn=end_with_parent)

    @property
    def pid(self):
        """Of the process, for measurements."""
        return self._process.pid

    def wait_ready(self, timeout=30):
        """Empty once it answers, else why it does not."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if _answers(self.socket_path):
                return ""
            if self._process.poll() is not None:
                with open(self._log_path, errors="replace") as log:
                    lines = log.read().strip().splitlines()
                return lines[-1] if lines else "it ended without a word"
            time.sleep(0.05)
        return f"no answer at {self.socket_path}"

    def stop(self):
        """Ends it; its arenas go with it."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
