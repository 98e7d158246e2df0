"""fabricd under a real Slurm: srun --fabric=SIZE, GRES, licences, and what is left when something dies."""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python", "support"))
sys.path.insert(0, os.path.dirname(__file__))
import fabric_test  # noqa: E402
import slurm_cluster  # noqa: E402

BUILD = Path(os.environ["FABRIC_BUILD_DIR"])
FABRICCTL = BUILD / "fabricd/ctl/fabricctl"
PLUGIN = BUILD / "fabricd/slurm/fabric.so"
TRAINER = Path(__file__).resolve().parent / "trainer.py"
PYTHON = sys.executable
POOL = 1 << 30


class Slurm(unittest.TestCase):
    """One Slurm and one fabricd for all cases; each leaves both idle."""

    @classmethod
    def setUpClass(cls):
        from fabricshm._daemon import EmbeddedDaemon

        cls.daemon = EmbeddedDaemon(pool_bytes=POOL)
        cls.addClassCleanup(cls.daemon.stop)
        cls.cluster = slurm_cluster.Cluster(
            plugin_line=f"optional {PLUGIN} socket={cls.daemon.socket} fabricctl={FABRICCTL} timeout=3",
            licences="fabricpool:64")
        cls.addClassCleanup(cls.cluster.stop)

    def tearDown(self):
        self.cluster.wait_idle()
        self.assertEqual(self.ask("arenas")["arenas"], [])

    def ask(self, *words):
        """What fabricctl says, as JSON."""
        done = self.cluster.run(FABRICCTL, *words, "--json", "--socket", Path(self.daemon.socket).parent / "admin.sock")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def srun(self, *words, **more):
        return self.cluster.run("srun", *words, **more)

    def assert_good(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_ranks_of_a_step_add_up_in_the_arena_of_their_job(self):
        done = self.srun("-N1", "-n2", "--fabric=64M", PYTHON, TRAINER)
        self.assert_good(done)
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(len(lines), 2, done.stdout)
        for rank, line in enumerate(lines):
            self.assertRegex(line, rf"^sum 3 3 rank {rank} of 2 local {rank} of 2 node 0 of 1 launcher slurm arena slurm-\d+$")


def main():
    missing = slurm_cluster.missing()
    if missing:
        fabric_test.skip(f"no {', '.join(missing)} here (packages slurmctld, slurmd, slurm-client, munge)")
    if not PLUGIN.is_file():
        fabric_test.skip("built without the plugin (package libslurm-dev)")
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
