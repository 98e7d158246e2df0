#!/usr/bin/python3
"""Asked for, the PyTorch backend is never left out in silence."""

import subprocess
import tempfile
import unittest
from pathlib import Path

MODULE = Path(__file__).resolve().parents[2] / "cmake" / "FabricTorch.cmake"


def configure(wanted, python):
    """The exit code and what CMake says when it searches for torch with this interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "look.cmake"
        script.write_text(f'set(FABRIC_BUILD_TORCH {wanted})\nset(Python3_EXECUTABLE "{python}")\n'
                          f'include("{MODULE}")\nfabric_torch_facts()\n')
        done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=False)
    return done.returncode, " ".join(done.stderr.split())


class WithoutTorch(unittest.TestCase):
    def test_on_is_an_error_that_names_the_option(self):
        code, text = configure("ON", "/bin/false")
        self.assertNotEqual(code, 0)
        self.assertIn("/bin/false does not import torch", text)
        self.assertIn("FABRIC_BUILD_TORCH=OFF", text)

    def test_auto_is_a_warning(self):
        code, text = configure("AUTO", "/bin/false")
        self.assertEqual(code, 0, text)
        self.assertIn("CMake Warning", text)
        self.assertIn("fabricshm.torch is not built", text)

    def test_one_that_is_there_is_found_without_a_word(self):
        self.assertEqual(configure("ON", "/bin/echo"), (0, ""))


if __name__ == "__main__":
    unittest.main()
