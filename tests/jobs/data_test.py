"""Jobs whose file has [data]: wrapped scripts that read from a mount of the data cache. The oracle is the script itself, as
one process on the plain folder, and counts written by hand."""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
from job_bench import FABRICD, DaemonJobTest, wait_until  # noqa: E402

PROGRAMS = Path(FABRICD).parent / "data"
SERVICE = PROGRAMS / "program/fabric-data"
MOUNT = PROGRAMS / "mount/fabric-mount"
FILES, BATCH, EPOCHS = 64, 10, 2
FILE_BYTES = 5000

# Which files it reads is in a log of each process, a line for each batch.
TRAINER = """
import json, os, subprocess, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

folder, log, status = sys.argv[1:4]

class Files(Dataset):
    def __init__(self):
        self.names = sorted(os.listdir(folder))
    def __len__(self):
        return len(self.names)
    def __getitem__(self, index):
        with open(os.path.join(folder, self.names[index]), "rb") as file:
            content = file.read()
        number = int(content[:8])
        read.append(number)
        return torch.tensor([number / 64, len(content) / 5000])

read, plan = [], []
torch.manual_seed(7)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
limit = time.monotonic() + 60
while status:  # until all of it is in memory, though nothing was read
    found = json.loads(subprocess.check_output(status.split()))["silos"][0]
    if found["bytes_in_memory"] == 64 * 5000:
        break
    assert time.monotonic() < limit, found
    time.sleep(0.02)
with open(f"{log}.{os.environ.get('RANK', 'alone')}", "w") as lines:
    for epoch in range(2):
        for x in DataLoader(Files(), batch_size=10, shuffle=True):
            print(epoch, *read, file=lines)
            read.clear()
            optimizer.zero_grad()
            (model(x).squeeze(1) - x[:, 0].square()).square().mean().backward()
            if status and not plan:  # all ranks have begun the loop: backward() compares them
                plan.append(json.loads(subprocess.check_output(status.split()))["plans"])
                print("plans", json.dumps(plan[0]), flush=True)
            optimizer.step()
torch.save(model.state_dict(), log + ".pt")
"""


class Data(DaemonJobTest):
    def setUp(self):
        super().setUp()
        self.files = self.folder / "files"
        self.files.mkdir()
        for number in range(FILES):
            (self.files / f"{number:03}.bin").write_bytes(b"%08d" % number + bytes(FILE_BYTES - 8))
        self.socket = str(self.folder / "data.sock")
        self.environment["FABRIC_DATA_SOCKET"] = self.socket
        (self.folder / "data.toml").write_text(
            f'[cache]\nmemory = "48MiB"\n[[silo]]\nat = "/images"\nfrom = "{self.files}"\n')
        attach = str(self.admin.parent / "attach.sock")
        self.run_service(SERVICE, "serve", "--config", self.folder / "data.toml", "--socket", self.socket, "--daemon", attach)
        self.wait_for(Path(self.socket).exists)
        self.mount = self.folder / "mount"
        self.mount.mkdir()
        self.environment["FABRIC_SOCKET"] = attach
        self.run_service(MOUNT, self.mount, "--path", "/images", "--socket", self.socket, "--foreground")
        self.addCleanup(subprocess.run, ["umount", "-l", self.mount], check=False)
        self.wait_for(lambda: os.path.ismount(self.mount))
        self.trainer = self.folder / "train.py"
        self.trainer.write_text(TRAINER)

    def run_service(self, *words):
        with open(self.folder / "services.log", "ab") as log:
            process = subprocess.Popen([str(word) for word in words], env=self.environment, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log)
        self.addCleanup(self._reap, process)

    def wait_for(self, condition):
        try:
            wait_until(condition, "")
        except AssertionError:
            self.fail((self.folder / "services.log").read_text())

    @staticmethod
    def _reap(process):
        process.terminate()
        process.communicate()

    def job_file(self, name, *lines, wrap=True):
        data = "\n".join(("[data]", f'path = "{self.mount}"', 'cache = "/images"', *lines, ""))
        status = f"{SERVICE} status --json --socket {self.socket}"
        path = self.job(self.trainer, f'arguments = ["{self.mount}", "{self.folder}/{name}", "{status}"]', name=name, ranks=(1,),
                        more='[[group]]\nkind = "gpu"\nranks = 2\n' + data)
        wrapped = "\nwrap = true" if wrap else ""
        path.write_text(path.read_text().replace('interpreter = ""', f'interpreter = "{sys.executable}"{wrapped}'))
        return path

    def read_by(self, log):
        """By epoch and batch: the numbers that one process read, in its order."""
        epochs = [[] for _ in range(EPOCHS)]
        for line in Path(f"{self.folder}/{log}").read_text().splitlines():
            epoch, *numbers = map(int, line.split())
            epochs[epoch].append(numbers)
        return epochs

    def silo(self):
        done = subprocess.run([SERVICE, "status", "--json", "--socket", self.socket], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["silos"][0]

    def test_each_sample_is_read_once_in_an_epoch_by_the_split_and_fetched_before(self):
        import torch
        # The oracle, without the cache and without fabricrun. A child of this process, which has torch already.
        torch.set_num_threads(1)
        child = os.fork()
        if child == 0:
            try:
                sys.argv = ["train.py", str(self.files), str(self.folder / "one"), ""]
                runpy.run_path(str(self.trainer))
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        expected, model = self.read_by("one.alone"), torch.load(self.folder / "one.pt")
        self.assertEqual(self.silo()["fetched_bytes"], 0)
        # Equal shares by the schedule, but those of what devices compute by the split: 10, 15 and 15 of 40 GFLOPS.
        done = self.ctl("run", self.job_file("job", 'split = "weighted"', "pass_on = 0.5"), "--socket", self.admin)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        plans = [json.loads(line.split("plans ", 1)[1]) for line in done.stdout.splitlines() if "plans " in line]
        # One plan of all ranks, and its order is that of the script's first epoch.
        self.assertEqual([[(plan["at"], plan["samples"], plan["ranks"]) for plan in each] for each in plans], [[("/images", FILES, 3)]] * 3)
        order = torch.randperm(FILES, generator=torch.Generator().manual_seed(plans[0][0]["seed"] % (1 << 32)))
        self.assertEqual(order.tolist(), sum(expected[0], []))
        ranks = [self.read_by(f"job.{rank}") for rank in range(3)]
        for epoch in range(EPOCHS):
            self.assertEqual(sorted(sum(sum((rank[epoch] for rank in ranks), []), [])), list(range(FILES)))
            as_cut = []
            for batch, whole in enumerate(expected[epoch]):
                pieces = [rank[epoch][batch] for rank in ranks]
                self.assertEqual([len(piece) for piece in pieces], [2, 4, 4] if len(whole) == BATCH else [1, 2, 1])
                self.assertEqual(sorted(sum(pieces, [])), sorted(whole))
                as_cut.append(sum(pieces, []) == whole)
            # Ranks swap after the first batch of a loop.
            self.assertTrue(as_cut[0])
            self.assertIn(False, as_cut[1:])
        found = torch.load(self.folder / "job.pt")
        for key, value in model.items():
            self.assertLess((found[key] - value).abs().max().item(), 2e-6, key)
        # Two epochs on three ranks: each file left its silo once.
        self.assertEqual(self.silo()["fetched_bytes"], FILES * FILE_BYTES)

    def test_data_that_are_not_in_the_cache_are_refused_before_and_by_each_rank(self):
        path = self.job_file("plain")
        path.write_text(path.read_text().replace(f'path = "{self.mount}"', f'path = "{self.files}"'))
        done = self.ctl("check", path, "--socket", self.admin, check=2)
        self.assertIn(f"{self.files} is not below a mount of the data cache", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        path = self.job_file("other")
        path.write_text(path.read_text().replace('cache = "/images"', 'cache = "/none"'))
        done = self.ctl("run", path, "--socket", self.admin)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("fabricrun: the job's data, /none of the data cache: ", done.stdout + done.stderr)
        self.assertIn("[data] cache is for wrap = true",
                      self.ctl("check", self.job_file("bare", wrap=False), "--socket", self.admin, check=2).stderr)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("no PyTorch (python3-torch)")
        sys.exit(77)
    if not os.access(MOUNT, os.X_OK) or not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        print("no mount here: fabric-mount (libfuse3-dev), /dev/fuse and root")
        sys.exit(77)
    unittest.main()
