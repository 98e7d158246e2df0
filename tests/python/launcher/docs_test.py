"""The examples of docs/python.md, pytorch.md, batch_shares.md and parameter_server.md run as they stand, on two ranks."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm._daemon as daemon  # noqa: E402

DOCS = Path(__file__).resolve().parents[3] / "docs"


def examples(page):
    """(first line in the file, text) of each Python example."""
    text = (DOCS / page).read_text()
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start()) + 2, match[1]


class Examples(unittest.TestCase):
    def run_page(self, page, least=3):
        found = list(examples(page))
        self.assertGreaterEqual(len(found), least)
        for line, text in found:
            with self.subTest(f"docs/{page}:{line}"), tempfile.TemporaryDirectory() as folder:
                script = Path(folder) / "example.py"
                script.write_text(text)
                done = subprocess.run(
                    [sys.executable, "-m", "fabricshm.run", "--nproc-per-node", "2",
                     "--arena-bytes", "256M", str(script)],
                    capture_output=True, text=True, timeout=280, cwd=folder)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_python(self):
        self.run_page("python.md")

    def test_pytorch(self):
        try:
            import torch.distributed  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        self.run_page("pytorch.md")
        self.run_page("batch_shares.md", 1)
        self.run_page("parameter_server.md", 1)


if __name__ == "__main__":
    try:
        daemon.find_program()
    except FileNotFoundError as error:
        fabric_test.skip(error)
    fabric_test.main()
