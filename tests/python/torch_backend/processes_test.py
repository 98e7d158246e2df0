"""Whole programs: which imports register the backend, and how a program may end."""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch  # noqa: F401
except ImportError as error:
    fabric_test.skip(error)

INIT = """
dist.init_process_group("fabricshm")
value = torch.ones(3)
dist.all_reduce(value)
assert value[0] == dist.get_world_size()
dist.destroy_process_group()
"""

# DDP has the gradients before the last callbacks have returned, and the program is over.
ENDS_WITH_A_HOOK = """
import torch, torch.distributed as dist
import fabricshm
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
torch.set_num_threads(1)
dist.init_process_group("fabricshm")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
for _ in range(3):
    model(torch.ones(2, 40)).sum().backward()
"""

# Callbacks are still to be run.
ENDS_WITH_CALLBACKS = """
import torch, torch.distributed as dist
import fabricshm
dist.init_process_group("fabricshm")
futures = [dist.all_reduce(torch.ones(100_000), async_op=True).get_future().then(
               lambda done: [done.value()[0] * sum(range(1000))]) for _ in range(50)]
futures[3].wait()
"""


# A message that does not come, and a sum that is not waited for.
ENDS_WITH_WORK = """
import torch, torch.distributed as dist
import fabricshm
dist.init_process_group("fabricshm")
waiting = dist.irecv(torch.ones(3), 1 - dist.get_rank())
summing = dist.all_reduce(torch.ones(100_000), async_op=True)
"""
DESTROY = "dist.destroy_process_group()\n"
ABORT = "import fabricshm.torch\ndist.barrier()\nfabricshm.torch.abort()\n"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_program(text, world=1):
    """[(exit code, output)] of the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "program.py")
        with open(script, "w") as file:
            file.write(text)
        port = str(free_port())
        ranks = [subprocess.Popen(
            [sys.executable, script], cwd=folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=port, OMP_NUM_THREADS="1"))
            for rank in range(world)]
        outputs = [rank.communicate(timeout=fabric_test.DEADLINE)[0] for rank in ranks]
        return [(rank.returncode, output) for rank, output in zip(ranks, outputs)]


class Registration(unittest.TestCase):
    def test_importing_the_package_registers_in_any_order(self):
        for imports in ("import fabricshm\nimport torch\nimport torch.distributed as dist\n",
                        "import torch\nimport torch.distributed as dist\nimport fabricshm\n"):
            with self.subTest(imports):
                self.assertEqual(run_program(imports + INIT), [(0, "")])

    def test_the_package_alone_neither_imports_nor_needs_torch(self):
        text = "import sys, fabricshm\nassert 'torch' not in sys.modules\nfabricshm.Session\n"
        self.assertEqual(run_program(text), [(0, "")])
        self.assertEqual(run_program("import sys\nsys.modules['torch'] = None\n" + text.replace(
            "'torch' not in sys.modules", "True")), [(0, "")])


class Endings(unittest.TestCase):
    def test_a_program_may_end_without_destroying_its_process_group(self):
        for text in (ENDS_WITH_A_HOOK, ENDS_WITH_CALLBACKS):
            with self.subTest(text):
                self.assertEqual(run_program(text, world=2), [(0, "")] * 2)

    def test_a_program_may_end_with_work_outstanding(self):
        for end in ("", DESTROY):
            with self.subTest(end):
                self.assertEqual(run_program(ENDS_WITH_WORK + end, world=2), [(0, "")] * 2)
        # The other rank's last barrier may be what the abort ends.
        for _, output in run_program(ENDS_WITH_WORK + ABORT + DESTROY, world=2):
            if output:
                self.assertIn("died or left the process group", output)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        fabric_test.main()
