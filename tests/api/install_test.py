#!/usr/bin/python3
"""Installs into a temporary prefix and builds small programs against it, as a user would: with
find_package and with pkg-config. Also checks what libfabricshm.so exports and needs."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CONSUMER = Path(__file__).resolve().parent / "consumer"
VERSION = re.search(r"^project\(fabricd VERSION ([\d.]+)", (CONSUMER.parents[2] / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
BUILD = Path(os.environ.get("FABRIC_BUILD_DIR", "build/release")).resolve()

# What a trainer has loaded anyway; anything else could clash with PyTorch's or MPI's copy.
LIGHT = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|librt|libdl|ld-linux-x86-64)\.so")


def run(*command, **options) -> str:
    """Runs a command; a failure shows all it said."""
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False, **options)
    if result.returncode != 0:
        raise AssertionError(f"{command} gave {result.returncode}:\n{result.stdout}")
    return result.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="fabric-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Moved after installing: nothing in it may remember where it was put first.
        run("cmake", "--install", BUILD, "--prefix", cls.folder / "first", "--component", "development")
        cls.prefix = cls.folder / "second"
        (cls.folder / "first").rename(cls.prefix)
        cls.library = next(cls.prefix.rglob("libfabricshm.so.?.?"))

    def test_find_package_builds_c_and_cpp(self):
        build = self.folder / "consumer"
        run("cmake", "-S", CONSUMER, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        for program in ("consumer_c", "consumer_cpp"):
            self.assertIn("/nonexistent/attach.sock", run(build / program))
        self.assertTrue(run(build / "consumer_c").startswith(f"{VERSION}: "))

    def test_find_package_needs_no_cpp_compiler(self):
        (self.folder / "c_only").mkdir()
        (self.folder / "c_only/CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(x C)\nfind_package(fabricshm REQUIRED)\n"
            f"add_executable(x {CONSUMER}/main.c)\ntarget_link_libraries(x fabricshm::fabricshm)\n")
        run("cmake", "-S", self.folder / "c_only", "-B", self.folder / "c_only/build",
            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", self.folder / "c_only/build")

    def test_find_package_refuses_a_newer_version(self):
        (self.folder / "newer").mkdir()
        (self.folder / "newer/CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(x C)\nfind_package(fabricshm 0.9 REQUIRED)\n")
        with self.assertRaisesRegex(AssertionError, "compatible with requested"):
            run("cmake", "-S", self.folder / "newer", "-B", self.folder / "newer/build",
                f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def test_pkg_config_builds_c11_with_every_warning(self):
        pc_folder = next(self.prefix.rglob("fabricshm.pc")).parent
        environment = dict(os.environ, PKG_CONFIG_PATH=str(pc_folder))
        flags = run("pkg-config", "--cflags", "--libs", "fabricshm", env=environment).split()
        self.assertEqual(run("pkg-config", "--modversion", "fabricshm", env=environment), f"{VERSION}\n")
        program = self.folder / "pkg"
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", CONSUMER / "main.c", *flags,
            "-o", program)
        run(program, env=dict(os.environ, LD_LIBRARY_PATH=str(self.library.parent)))

    def test_pkg_config_asks_for_the_language_of_the_cpp_header(self):
        pc_folder = next(self.prefix.rglob("fabricshm.pc")).parent
        environment = dict(os.environ, PKG_CONFIG_PATH=str(pc_folder))
        flags = run("pkg-config", "--cflags", "--libs", "fabricshm++", env=environment).split()
        run("c++", "-Wall", "-Werror", CONSUMER / "main.cpp", *flags, "-o", self.folder / "pkg_cpp")

    def test_only_the_c_abi_is_exported(self):
        symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", self.library).splitlines()]
        self.assertTrue(symbols)
        self.assertEqual([name for name in symbols if not name.startswith("fabricshm_")], [])

    def test_every_function_of_the_header_is_exported(self):
        header = (self.prefix / "include/fabricshm/fabricshm.h").read_text()
        declared = set(re.findall(r"^FABRICSHM_API[^;(]*?\b(fabricshm_\w+)\(", header, re.MULTILINE))
        exported = set(re.findall(r"fabricshm_\w+", run("nm", "-D", "--defined-only", self.library)))
        self.assertEqual(declared - exported, set())

    def test_nothing_heavy_is_needed(self):
        dynamic = run("readelf", "-d", self.library)
        needed = re.findall(r"NEEDED.*\[(.*?)\]", dynamic)
        self.assertEqual([name for name in needed if not LIGHT.match(name)], [])
        self.assertIn(f"[libfabricshm.so.{VERSION.rpartition('.')[0]}]", dynamic)
        self.assertNotRegex(dynamic, "RPATH|RUNPATH")


class Everything(unittest.TestCase):
    """The whole installation, programs and Python packages included."""

    @classmethod
    def setUpClass(cls):
        if not (BUILD / "fabricd/fabricd").is_file():
            raise unittest.SkipTest("built without the daemon")
        cls.prefix = Path(tempfile.mkdtemp(prefix="fabric-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.prefix)
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)

    def test_the_programs_start(self):
        for program in ("fabricd", "fabricctl"):
            self.assertEqual(run(self.prefix / "bin" / program, "--version"), f"{program} {VERSION}\n")
        self.assertIn("backend", run(self.prefix / "bin/fabricctl", "discover"))

    def test_the_python_package_finds_the_library(self):
        packages = next(self.prefix.rglob("dist-packages"), None)
        if packages is None:
            self.skipTest("built without Python")
        environment = dict(os.environ, PYTHONPATH=str(packages), PYTHONDONTWRITEBYTECODE="1")
        output = run("/usr/bin/python3", "-c", "import fabricshm; print(fabricshm.__version__)",
                     env=environment)
        self.assertEqual(output, f"{VERSION}\n")

    def test_every_program_says_its_version(self):
        programs = sorted(path for path in (self.prefix / "bin").iterdir())
        self.assertGreaterEqual(len(programs), 3)
        for program in programs:
            with self.subTest(program.name):
                self.assertEqual(run(program, "--version"), f"{program.name} {VERSION}\n")

    def test_the_units_name_the_programs_where_they_are(self):
        for name, program in (("fabricd", "fabricd"), ("fabric-metrics-bridge", "fabric-metrics-bridge")):
            unit = (self.prefix / f"lib/systemd/system/{name}.service").read_text()
            self.assertIn(f"ExecStart={self.prefix}/bin/{program}\n", unit)
            self.assertNotIn("@", re.sub("SystemCallFilter=.*", "", unit))

    def test_the_plugin_for_slurm_brings_no_library_and_no_other_name_along(self):
        plugin = next(self.prefix.rglob("slurm/fabric.so"), None)
        if plugin is None:
            self.skipTest("built without slurm/spank.h")
        needed = re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", plugin))
        self.assertEqual([name for name in needed if not re.match(r"(libc|libm|ld-linux-x86-64)\.so", name)], [])
        symbols = {line.split()[-1] for line in run("nm", "-D", "--defined-only", plugin).splitlines()}
        self.assertIn("slurm_spank_task_init", symbols)
        self.assertEqual([name for name in symbols if not re.match("slurm_spank_|plugin_|spank_plugin_version", name)], [])
        self.assertTrue((self.prefix / "share/fabricd/slurm/job_submit.lua").is_file())

    def test_a_folder_for_a_package_gets_the_paths_of_the_prefix(self):
        stage = Path(tempfile.mkdtemp(prefix="fabric-stage-"))
        self.addCleanup(shutil.rmtree, stage)
        run("cmake", "--install", BUILD, "--prefix", "/opt/fabric", env=dict(os.environ, DESTDIR=str(stage)))
        unit = (stage / "opt/fabric/lib/systemd/system/fabricd.service").read_text()
        self.assertIn("ExecStart=/opt/fabric/bin/fabricd\n", unit)

    def test_manual_pages_and_completions_are_there(self):
        share = self.prefix / "share"
        for page in ("man1/fabricctl.1", "man1/fabricrun.1", "man1/fabric-metrics-bridge.1",
                     "man1/fabric-bench.1", "man5/fabricd.toml.5",
                     "man7/libfabricshm.7", "man8/fabricd.8"):
            self.assertTrue((share / "man" / page).is_file(), page)
        programs = ["fabricd", "fabricctl"]
        if (self.prefix / "bin/fabricrun").is_file():
            programs.append("fabricrun")
        if (self.prefix / "bin/fabric-bench").is_file():
            programs.append("fabric-bench")
        for program in programs:
            for file in (f"bash-completion/completions/{program}", f"zsh/site-functions/_{program}",
                         f"fish/vendor_completions.d/{program}.fish"):
                self.assertGreater(len((share / file).read_text()), 500, file)

    def test_nothing_points_into_the_build(self):
        for program in (self.prefix / "bin/fabricd", self.prefix / "bin/fabricctl"):
            self.assertNotIn(str(BUILD), run("readelf", "-d", program))


if __name__ == "__main__":
    if not (BUILD / "CMakeCache.txt").is_file():
        sys.exit(f"set FABRIC_BUILD_DIR: {BUILD} is no build folder")
    unittest.main()
