"""The isatty() that fabricrun preloads: a regular file is no terminal, and no ioctl is needed to say so."""

import os
import platform
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest

from fabricshm import run

FOLDER = os.path.dirname(os.path.abspath(run.__file__))
LIBRARY = os.path.join(FOLDER, "libfabricshm-isatty.so")

# Ends the process at its next ioctl(), system call 16 of x86-64.
FORBID_IOCTL = """
    import ctypes, struct
    code = struct.pack("HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 16, 0x06, 0, 0, 0x80000000, 0x06, 0, 0, 0x7fff0000)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0
"""


def python(text, preload=LIBRARY, **more):
    environment = {**os.environ, "LD_PRELOAD": preload}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60,
                          env=environment, check=False, **more)


class Preload(unittest.TestCase):
    def test_it_was_built(self):
        self.assertTrue(os.path.exists(LIBRARY))

    def test_files_are_no_terminals_and_terminals_are(self):
        done = python("""
            import ctypes, errno, os, pty, tempfile
            libc = ctypes.CDLL(None, use_errno=True)
            one, other = pty.openpty()
            reader, writer = os.pipe()
            with tempfile.TemporaryFile() as file:
                answers = []
                for descriptor in (one, other, file.fileno(), reader, 999):
                    ctypes.set_errno(0)
                    answers.append((libc.isatty(descriptor), errno.errorcode.get(ctypes.get_errno())))
            print(answers)
        """)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout.strip(),
                         "[(1, None), (1, None), (0, 'ENOTTY'), (0, 'ENOTTY'), (0, 'EBADF')]")

    @unittest.skipUnless(platform.machine() == "x86_64", "the filter is written for one processor")
    def test_python_opens_a_file_without_an_ioctl(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"here")
            file.flush()
            text = textwrap.dedent(FORBID_IOCTL) + f"print(open({file.name!r}).read())"
            with_it, without = python(text), python(text, preload="")
        self.assertEqual((with_it.returncode, with_it.stdout.strip()), (0, "here"), with_it.stderr)
        # Python 3.14 asks no more; before it does, or this test would show nothing.
        self.assertEqual(without.returncode == 0, sys.version_info >= (3, 14))

    def test_fabricrun_adds_it_behind_what_is_there(self):
        given = types.SimpleNamespace(no_preload=False)
        self.assertEqual(run.preload_of(given, FOLDER, None), LIBRARY)
        self.assertEqual(run.preload_of(given, FOLDER, "/lib/mine.so"), f"/lib/mine.so:{LIBRARY}")
        self.assertIsNone(run.preload_of(given, "/nowhere", "/lib/mine.so"))
        given.no_preload = True
        self.assertIsNone(run.preload_of(given, FOLDER, "/lib/mine.so"))

    def test_a_rank_has_it_unless_it_is_told_not_to(self):
        show = "import os; print(os.environ.get('LD_PRELOAD'))"
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "show.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(show)
            environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
            environment.pop("FABRIC_SOCKET", None)
            for words, expected in (([], LIBRARY), (["--no-preload"], "None")):
                done = subprocess.run([sys.executable, "-m", "fabricshm.run", *words, script], capture_output=True,
                                      text=True, timeout=100, env=environment, check=False)
                self.assertEqual(done.stdout.strip(), expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
