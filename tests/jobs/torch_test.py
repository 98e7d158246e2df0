"""Jobs of PyTorch: groups of unlike devices in one process group, and a rank that is killed."""

import importlib.util
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from job_bench import DaemonJobTest  # noqa: E402

TRAINER = """
import os, signal, sys
import torch, torch.distributed as dist
dist.init_process_group("fabricshm")
values = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(values)
print(values[0].item(), os.environ["FABRIC_DEVICE"], flush=True)
if sys.argv[1:] == ["die"] and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
"""
GPUS = '[[group]]\nkind = "gpu"\nranks = 2\npool = "16MiB"\n'
SUM = ["[0] 6.0 cpu0", "[1] 6.0 gpu0", "[2] 6.0 gpu0"]


class Torch(DaemonJobTest):
    def run_trainer(self, *lines):
        script = self.folder / "train.py"
        script.write_text(TRAINER)
        job = self.job(script, *lines, ranks=(1,), more=GPUS)
        job.write_text(job.read_text().replace('interpreter = ""', f'interpreter = "{sys.executable}"'))
        return self.ctl("run", job, "--socket", self.admin, check=0)

    def test_groups_of_two_kinds_are_one_process_group(self):
        self.assertEqual(sorted(self.run_trainer().stdout.splitlines()), SUM)
        self.assertEqual(self.ctl("leaks", "--socket", self.admin, check=0).stdout, "")

    def test_a_rank_that_is_killed_costs_one_restart(self):
        done = self.run_trainer("max_restarts = 1", 'arguments = ["die"]')
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(SUM * 2))
        self.assertIn("was killed by SIGKILL", done.stderr)
        self.assertEqual(self.states(1).count("repairing"), 1)
        self.assertEqual(self.ctl("leaks", "--socket", self.admin, check=0).stdout, "")


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("no PyTorch (python3-torch)")
        sys.exit(77)
    unittest.main()
