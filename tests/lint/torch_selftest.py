#!/usr/bin/python3
"""Asked for, the PyTorch backend is never left out in silence, and never built against the wrong PyTorch."""

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


class TwoOfThem(unittest.TestCase):
    def test_the_one_that_is_imported_comes_before_the_systems(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel, system = Path(folder, "torch"), Path(folder, "system")
            names = [f"lib/lib{name}.so" for name in ("c10", "torch", "torch_cpu", "torch_python")]
            names += ["include/torch/extension.h", "include/torch/csrc/api/include/torch/torch.h"]
            for path in [root / name for root in (wheel, system) for name in names]:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            includes = f"{wheel}/include|{wheel}/include/torch/csrc/api/include"
            script = Path(folder, "look.cmake")
            script.write_text(
                f'set(CMAKE_SYSTEM_PREFIX_PATH "{system}")\nset(CMAKE_FIND_LIBRARY_PREFIXES lib)\n'
                f'set(CMAKE_FIND_LIBRARY_SUFFIXES .so)\ninclude("{MODULE}")\n'
                f'set(FABRIC_TORCH_FACTS "2.9.0;1;{includes};{wheel}/lib")\nfabric_torch_parts()\n'
                'foreach(found ${FABRIC_TORCH_INCLUDE} ${FABRIC_TORCH_API_INCLUDE} ${torch_libraries})\n'
                'message(STATUS ${found})\nendforeach()\n')
            done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=False)
            found = [line.removeprefix("-- ") for line in done.stdout.splitlines()]
            self.assertEqual(found, [f"{wheel}/include", f"{wheel}/include/torch/csrc/api/include",
                                     *(f"{wheel}/{name}" for name in names[:4])], done.stderr)


if __name__ == "__main__":
    unittest.main()
