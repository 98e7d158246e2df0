"""fabricshm.launch() under a real launcher: launch_test.py openmpi|mpich|torchrun|fabricrun|none."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402

WORLD = 3
PROGRAM = """
import sys, fabricshm
here = fabricshm.launch()
# One write, so that lines of ranks do not mix.
sys.stdout.write("launch %s %s\\n" % (
    (here.rank, here.world, here.local_rank, here.local_world, here.node, here.nodes), here.launcher))
"""
# As root only, which these launchers refuse otherwise.
OPENMPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
KNOWN = ("RANK", "WORLD_SIZE", "OMPI_", "PMI", "MPI_", "SLURM_", "LOCAL_", "GROUP_", "TORCHELASTIC")

LAUNCHERS = {
    "openmpi": (["mpirun.openmpi", "--oversubscribe", "-np", str(WORLD), sys.executable], "openmpi"),
    "mpich": (["mpirun.mpich", "-np", str(WORLD), sys.executable], "mpich"),
    # PyTorch 1.13 under Python 3.11 fails without a value other than 0 for both.
    "torchrun": (["torchrun", "--standalone", "--nproc_per_node", str(WORLD), "--redirects", "1",
                  "--tee", "1"], "torchrun"),
    "fabricrun": ([sys.executable, "-m", "fabricshm.run", "--nproc-per-node", str(WORLD)],
                  "torchrun"),
}  # fmt: skip


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(KNOWN)}


class Launched(unittest.TestCase):
    launcher = "none"

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="fabric-launch-")
        self.addCleanup(self._folder.cleanup)

    def run_ranks(self, more=()):
        program = os.path.join(self._folder.name, "rank.py")
        with open(program, "w") as file:
            file.write(PROGRAM)
        command, _ = LAUNCHERS[self.launcher]
        environment = {**clean_environment(), **OPENMPI, "TMPDIR": self._folder.name, **dict(more)}
        return subprocess.run([*command, program], env=environment, capture_output=True, text=True,
                              timeout=fabric_test.DEADLINE, cwd=self._folder.name)

    def test_every_rank_has_its_rank_and_its_place(self):
        done = self.run_ranks()
        lines = [line[line.index("launch ("):] for line in done.stdout.splitlines()
                 if "launch (" in line]
        name = LAUNCHERS[self.launcher][1]
        wanted = [f"launch {(rank, WORLD, rank, WORLD, 0, 1)} {name}" for rank in range(WORLD)]
        self.assertEqual(sorted(lines), wanted, done.stdout + done.stderr)

    def test_a_rank_and_a_world_of_another_launcher_are_named(self):
        if self.launcher not in ("openmpi", "mpich"):
            self.skipTest("it sets RANK and WORLD_SIZE itself")
        done = self.run_ranks({"RANK": "0", "WORLD_SIZE": "1"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("InvalidArgumentError", done.stderr)
        self.assertIn("RANK and WORLD_SIZE are 0 of 1", done.stderr)


class Alone(unittest.TestCase):
    def setUp(self):
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        for name in set(os.environ) - set(clean_environment()):
            del os.environ[name]

    def test_a_process_without_a_launcher_hears_what_to_set(self):
        with self.assertRaisesRegex(fabricshm.NotFoundError, "set RANK and WORLD_SIZE"):
            fabricshm.launch()

    def test_what_is_no_number_is_named(self):
        os.environ.update(RANK="one", WORLD_SIZE="2")
        with self.assertRaisesRegex(fabricshm.InvalidArgumentError, 'RANK is "one"'):
            fabricshm.launch()

    def test_numbers_by_hand_are_taken_and_what_is_not_known_is_none(self):
        os.environ.update(RANK="1", WORLD_SIZE="2")
        here = fabricshm.launch()
        self.assertEqual((here.rank, here.world, here.local_rank, here.nodes), (1, 2, None, None))


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    if chosen == "none":
        del Launched
        fabric_test.main()
    del Alone
    Launched.launcher = chosen
    program = LAUNCHERS[chosen][0][0]
    if shutil.which(program) is None:
        fabric_test.skip(f"{program} is not installed")
    fabric_test.main()
