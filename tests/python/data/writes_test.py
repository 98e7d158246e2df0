"""fabricshm.data.create() by threads of one process, next to readers, and by processes."""

import multiprocessing
import os
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402
from data_service import DataService  # noqa: E402

import fabricshm.data as data  # noqa: E402
from fabricshm import FabricError, FileChangedError  # noqa: E402

WRITERS = 6
READERS = 6
FILES = 15  # of each writer: more in all than may be open at once, 64


def content_of(writer, pieces=3):
    return [bytes([65 + writer]) * 20_000] * pieces


def put(path, writer):
    """What went wrong, or "": the file is there."""
    try:
        with data.create(path) as file:
            for piece in content_of(writer):
                file.write(piece)
    except FabricError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_threads(count, function):
    results = [None] * count
    barrier = threading.Barrier(count)

    def run(number):
        barrier.wait()
        results[number] = function(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def put_in_process(path, writer, barrier, results):
    barrier.wait()
    results.put((writer, put(path, writer)))


class Writes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = DataService()
        for number in range(8):
            cls.service.write(f"{number}.bin", bytes([number]) * 50_000)

    def assert_one_winner(self, path, results):
        """Of (writer, what went wrong); and the file is the winner's alone."""
        winners = [writer for writer, error in results if not error]
        self.assertEqual(len(winners), 1, results)
        folder, name = path.rsplit("/", 1)
        read = data.open(folder).read(name)
        self.assertEqual(read, b"".join(content_of(winners[0])))

    def assert_none_open(self):
        self.assertEqual(self.service.open_writes(), 0)

    def test_threads_that_write_and_read_lose_no_file(self):
        for silo in ("/results", "/prepared"):
            is_over = threading.Event()

            def read():
                while not is_over.is_set():
                    files = data.open("/files")
                    for index in range(len(files)):
                        files.read(index)

            readers = [threading.Thread(target=read) for _ in range(READERS)]
            for reader in readers:
                reader.start()
            try:
                errors = in_threads(WRITERS, lambda writer: [
                    put(f"{silo}/threads/{writer}-{number}", writer) for number in range(FILES)])
            finally:
                is_over.set()
                for reader in readers:
                    reader.join()
            self.assertEqual(errors, [[""] * FILES] * WRITERS)
            files = data.open(f"{silo}/threads")
            self.assertEqual(len(files), WRITERS * FILES)
            for name in files.names:
                self.assertEqual(files.read(name), b"".join(content_of(int(name.split("-")[0]))))
            self.assert_none_open()

    def test_one_thread_writes_several_files_at_once(self):
        files = [data.create(f"/results/at-once/{number}") for number in range(40)]
        for _ in range(2):
            for number, file in enumerate(files):
                file.write(b"%02d" % number)
            data.open("/files")
        for file in files[1::2]:
            file.abort()
        for file in files[::2]:
            file.commit()
        written = data.open("/results/at-once")
        self.assertEqual({name: written.read(name) for name in written.names},
                         {str(number): b"%02d" % number * 2 for number in range(0, 40, 2)})
        self.assert_none_open()

    def test_of_threads_or_processes_that_want_one_name_one_gets_it(self):
        context = multiprocessing.get_context("fork")
        for silo in ("/results", "/prepared"):
            for turn in range(6):
                path = f"{silo}/race/threads-{turn}"
                errors = in_threads(8, lambda writer, path=path: (writer, put(path, writer)))
                self.assert_one_winner(path, errors)
            for turn in range(3):
                path = f"{silo}/race/processes-{turn}"
                barrier, results = context.Barrier(4), context.SimpleQueue()
                processes = [context.Process(target=put_in_process, args=(path, writer, barrier, results))
                             for writer in range(4)]
                for process in processes:
                    process.start()
                errors = [results.get() for _ in processes]
                for process in processes:
                    process.join()
                self.assert_one_winner(path, errors)
        self.assert_none_open()

    def test_a_write_that_failed_has_its_name_no_more_and_one_that_was_killed_neither(self):
        path = "/results/free"
        file = data.create(path)
        file._timeout = 0.1  # which the create itself might pass on a slow machine
        with self.assertRaises(FabricError):
            data.create(path)
        with self.service.stopped(), self.assertRaises(FabricError):
            file.write(b"x")  # a timeout
        self.assertEqual(put(path, 1), "", "although the first one was not aborted")
        with self.assertRaises(FabricError):
            file.commit()
        path = "/results/killed"
        ends = os.pipe()
        child = os.fork()
        if child == 0:
            mine = data.create(path)
            mine.write(b"x")
            os.write(ends[1], b".")
            threading.Event().wait()
        os.read(ends[0], 1)
        with self.assertRaises(FabricError):
            data.create(path)
        os.kill(child, 9)
        os.waitpid(child, 0)
        self.service.wait_for_no_open_write()
        self.assertEqual(put(path, 1), "")

    def test_what_has_left_the_cache_and_was_nowhere_else_is_said_to_be_gone(self):
        size, count = 3_000_000, 30  # more than the cache has
        for number in range(count):
            with data.create(f"/prepared/left/{number}") as file:
                file.write(bytes([number]) * size)
        files = data.open("/prepared/left")
        left = 0
        for name in files.names:
            try:
                self.assertEqual(files.read(name), bytes([int(name)]) * size)
            except FileChangedError as error:
                self.assertIn("it has left the cache, and nothing else had it", str(error))
                left += 1
        self.assertGreater(left, 0)
        self.assertLess(left, count)
        self.assertEqual(len(data.open("/prepared/left")), count - left)

    def test_the_first_file_after_a_restart_of_the_service_is_written(self):
        self.assertEqual(put("/results/restart/before", 0), "")
        lost = data.create("/results/restart/lost")
        lost.write(b"x")
        self.service.kill()
        self.service.start()
        self.assertEqual(put("/results/restart/after", 0), "")
        with self.assertRaises(FabricError):
            lost.write(b"x")
        self.assertEqual(put("/results/restart/lost", 0), "")


if __name__ == "__main__":
    fabric_test.main()
