"""How long from a command to the first rank's main: fabricctl jobs, and sbatch and srun as they are. No test; prints medians.

    job_latency.py [REPEATS]    with the environment of job_test.py

Of that, how long the job waited for a round of Slurm's scheduler, by the controller's log. Rounds begin at full seconds of
a clock of their own, so each command begins at a random time: one that follows another at a fixed distance would
always wait equally long.
"""

import datetime
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
import slurm_cluster  # noqa: E402
from slurm_test import FABRICCTL, PLUGIN, Fabricd  # noqa: E402

LOGGED = re.compile(r"\[(\S+)\] (.*)")


def waited_ms(lines):
    """From the controller's answer to sbatch to the start of the job's last component; 0 without both."""
    submitted = started = None
    for line in lines:
        found = LOGGED.match(line)
        if found and "_slurm_rpc_submit_batch" in found[2]:
            submitted = datetime.datetime.fromisoformat(found[1])
        if found and submitted and ("_start_job: Started" in found[2] or "sched: Allocate" in found[2]):
            started = datetime.datetime.fromisoformat(found[1])
    return (started - submitted).total_seconds() * 1e3 if started else 0.0


GROUP = '[[group]]\nkind = "cpu"\nranks = 1\n{}'


def main():
    repeats = int(sys.argv[1]) if sys.argv[1:] else 12
    with tempfile.TemporaryDirectory(prefix="fabric-latency-") as name:
        folder = Path(name)
        began = folder / "began"
        script = folder / "script.sh"
        script.write_text(f"#!/bin/sh\ndate +%s%N >> {began}\n")
        script.chmod(0o755)
        daemon = Fabricd()
        daemon.start()
        line = f"optional {PLUGIN} socket={daemon.socket} fabricctl={FABRICCTL} spool={daemon.spool}"
        cluster = slurm_cluster.Cluster(line, slurm_lines="LogTimeFormat=iso8601_ms\n")
        log = cluster.folder / "slurmctld.log"
        moments = random.Random(1)
        environment = {**cluster.environment, "FABRIC_JOBS_DIR": str(folder / "jobs"),
                       "FABRIC_ADMIN_SOCKET": str(daemon.runtime / "admin.sock")}
        serve = subprocess.Popen([FABRICCTL, "jobs", "serve"], env=environment)

        def job(label, *groups):
            path = folder / f"{label}.toml"
            path.write_text(f'[job]\nname = "{label}"\nscript = "{script}"\ninterpreter = ""\n' + "".join(map(GROUP.format, groups)))
            return path

        pool = 'pool = "64MiB"\n'
        batch = folder / "batch.sh"
        batch.write_text(f"#!/bin/sh\nsrun {shlex.quote(str(script))}\n")
        both = folder / "both.sh"
        both.write_text(f"#!/bin/sh\nsrun --het-group=0-1 {shlex.quote(str(script))}\n")
        one, two, fabric = job("one", ""), job("two", "", ""), job("fabric", pool)
        quiet = ("-o", "/dev/null")
        cases = {
            "jobs run": [FABRICCTL, "jobs", "run", one],
            "jobs submit, with jobs serve": [FABRICCTL, "jobs", "submit", one],
            "srun": ["srun", "-n1", script],
            "sbatch + srun": ["sbatch", *quiet, "-n1", batch],
            "sbatch + srun --fabric": ["sbatch", *quiet, "-n1", "--fabric=64M", batch],
            "jobs submit --slurm": [FABRICCTL, "jobs", "submit", "--slurm", one],
            "jobs submit --slurm, with a pool": [FABRICCTL, "jobs", "submit", "--slurm", fabric],
            "sbatch + srun, two components": ["sbatch", *quiet, "-n1", ":", "-n1", both],
            "jobs submit --slurm, two groups": [FABRICCTL, "jobs", "submit", "--slurm", two],
        }
        times = {label: [] for label in cases}
        waits = {label: [] for label in cases}
        try:
            for _ in range(repeats):
                for label, words in cases.items():
                    began.unlink(missing_ok=True)
                    time.sleep(moments.random())
                    known = len(log.read_text().splitlines())
                    start = time.time_ns()
                    process = subprocess.Popen(list(map(str, words)), env=environment, cwd=folder, stdout=subprocess.DEVNULL,
                                               stderr=subprocess.DEVNULL)
                    slurm_cluster.wait_until(lambda: began.exists() and began.read_text().endswith("\n"), label)
                    times[label].append((int(began.read_text().split()[0]) - start) / 1e6)
                    waits[label].append(waited_ms(log.read_text().splitlines()[known:]))
                    process.wait()
                    cluster.wait_idle()
        finally:
            serve.terminate()
            serve.wait()
            cluster.stop()
            daemon.remove()
        for label, found in times.items():
            rest = statistics.median(total - wait for total, wait in zip(found, waits[label]))
            print(f"{label:36} {statistics.median(found):7.0f} ms   ({min(found):.0f} to {max(found):.0f}), waited "
                  f"{statistics.median(waits[label]):.0f} ms, without that {rest:.0f} ms")


if __name__ == "__main__":
    main()
