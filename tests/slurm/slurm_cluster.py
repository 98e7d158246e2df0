"""A Slurm of one's own: munged, slurmctld and two slurmd on this machine, in a folder of their own and on ports of
their own. Nothing of the machine's Slurm is read or changed, and no service has to run."""

import contextlib
import ctypes
import getpass
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from fabricshm._daemon import die_with_parent

PLUGIN_FOLDERS = "/usr/lib/*/slurm*", "/usr/lib/slurm*", "/usr/lib64/slurm*"
PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "squeue", "scontrol", "scancel")
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
STARTED = 30   # seconds for what takes three on a quiet machine
ENDED = 60     # of one command
_PR_SET_CHILD_SUBREAPER = 36


def missing():
    """The programs that are not there."""
    path = os.environ["PATH"] + os.pathsep + SYSTEM_PATH
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def has_plugin(name):
    """Whether Slurm has it. Its packages leave out what needs other libraries."""
    return any(found for folder in PLUGIN_FOLDERS for found in glob.glob(f"{folder}/{name}.so"))


def free_ports(count):
    """Free at this moment; of different numbers."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until(condition, what, seconds=STARTED):
    """Polls until `condition()` gives something true, and returns it. Raises with `what()`, or `what`, after that time."""
    limit = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > limit:
            raise TimeoutError(what() if callable(what) else what)
        time.sleep(0.02)


def adopt_orphans():
    """What daemons leave behind when they end becomes this process's child, and can be ended by its number."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children():
    """The numbers of this process's children."""
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    return [int(word) for word in Path(path).read_text().split()]


class Cluster:
    """Two nodes, host1 (feature a) and host2 (feature b), of this machine. Ready when the constructor returns."""

    def __init__(self, plugin_line="", slurm_lines="", gres_units=64, job_submit=None, npus=0):
        adopt_orphans()
        self._before = set(children())
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        # Steps of other users have to get through it.
        self.folder.chmod(0o755)
        self.name = socket.gethostname().split(".")[0]
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("SLURM", "FABRIC_", "SBATCH", "RANK", "WORLD_SIZE"))}
        self.environment["PATH"] += os.pathsep + SYSTEM_PATH
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self._daemons = {}
        try:
            self._write_files(plugin_line, slurm_lines, gres_units, job_submit, npus)
            self._start_munge()
            self.start_controller()
            for node in ("host1", "host2"):
                self._start(node, "slurmd", "-D", "-N", node)
            wait_until(self._is_ready, lambda: f"Slurm did not start:\n{self.logs()}")
        except BaseException:
            self.stop()
            raise

    def _write_files(self, plugin_line, slurm_lines, gres_units, job_submit, npus):
        folder = self.folder
        control_port, *node_ports = free_ports(3)
        for name in ("state", "spool"):
            (folder / name).mkdir(0o755)
        (folder / "munge").mkdir(0o711)
        key = folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "plugstack.conf").write_text(plugin_line + "\n")
        counts = {"fabric": gres_units, **({"npu": npus} if npus else {})}
        (folder / "gres.conf").write_text("".join(f"Name={name} Count={count} Flags=CountOnly\n" for name, count in counts.items()))
        gres = ",".join(f"{name}:{count}" for name, count in counts.items())
        if job_submit:
            shutil.copy(job_submit, folder / "job_submit.lua")
            slurm_lines += "JobSubmitPlugins=lua\n"
        user = getpass.getuser()
        # More processors than there are, so that a node takes any job of these tests. linuxproc and task/none need no
        # control groups and no rights.
        text = f"""
ClusterName=fabric
SlurmctldHost={self.name}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1,bf_min_age_reserve=0
ReturnToService=2
KillWait=2
{slurm_lines}
"""
        for number, (node, port) in enumerate(zip(("host1", "host2"), node_ports)):
            text += (f"NodeName={node} NodeHostname={self.name} NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres={gres} "
                     f"Feature={'ab'[number]}\n")
        text += "PartitionName=all Nodes=host1,host2 Default=YES MaxTime=10 State=UP\n"
        (folder / "slurm.conf").write_text(text)

    def _start(self, key, program, *words):
        with (self.folder / f"{key}.out").open("ab") as log:
            self._daemons[key] = subprocess.Popen(
                [shutil.which(program, path=self.environment["PATH"]), *words], env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)

    def _start_munge(self):
        folder = self.folder / "munge"
        # --force: its folder is below one that others may write to, which is no matter to this key.
        self._start("munged", "munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/socket",
                    f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed",
                    "--num-threads=2")
        wait_until((folder / "socket").exists, lambda: f"munged did not start:\n{self.logs()}")

    def start_controller(self):
        self._start("slurmctld", "slurmctld", "-D")

    def stop_controller(self):
        self._end("slurmctld")

    def _end(self, key):
        process = self._daemons.pop(key)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _is_ready(self):
        dead = [key for key, process in self._daemons.items() if process.poll() is not None]
        if dead:
            raise RuntimeError(f"{dead} ended:\n{self.logs()}")
        found = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], env=self.environment, capture_output=True, text=True,
                               check=False, timeout=ENDED)
        return found.stdout.split() == ["idle", "idle"]

    def run(self, *words, seconds=ENDED, **more):
        """A command of Slurm to its end; never raises for its exit code."""
        environment = {**self.environment, **more}
        return subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=seconds, cwd=self.folder)

    def start(self, *words, **more):
        """The same in the background."""
        return subprocess.Popen([str(word) for word in words], env={**self.environment, **more}, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                cwd=self.folder)

    def jobs(self):
        """Of all states but the ended ones: [(id, state, reason)]."""
        out = self.run("squeue", "-h", "-a", "-o", "%i|%T|%r").stdout
        return [tuple(line.split("|")) for line in out.splitlines()]

    def wait_idle(self):
        """Until no job is left and both nodes have run what follows a job."""
        wait_until(lambda: not self.jobs() and self._is_ready(), lambda: f"jobs are left: {self.jobs()}\n{self.logs()}")

    def logs(self, last=40):
        """The ends of all logs."""
        texts = []
        for path in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")):
            lines = path.read_text(errors="replace").splitlines()[-last:]
            texts.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(texts)

    def stop(self):
        """Ends the daemons, and by their numbers all processes that came from them."""
        for key in [key for key in ("host1", "host2", "slurmctld", "munged") if key in self._daemons]:
            self._end(key)
        # Steps that a slurmd leaves behind, tasks that their step leaves behind, and so on.
        wait_until(self._no_orphans, lambda: f"still there: {children()}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _no_orphans(self):
        left = set(children()) - self._before
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return not left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
