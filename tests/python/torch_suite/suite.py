"""PyTorch's own DistributedTest, loaded so that any backend can be put under it.

The suite ships with Debian's python3-torch. Its decorators read BACKEND while the module is
imported ("only gloo supports timeouts"), its bodies read it while a test runs. `load_suite`
imports it with the decorators of one backend (gloo) and then runs the bodies with another, so that
a test is never skipped for fabricshm that runs for gloo.
"""

import importlib
import os
import sys
import time
import types
import unittest

MODULE = "torch.testing._internal.distributed.distributed_test"
BARRIER_SECONDS = 120  # the suite's own 10 s are too few on a busy machine
BARRIER_POLL = 0.004


def provide_expecttest():
    """The suite imports expecttest, which Debian does not have; it uses these two names only."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stand_in = types.ModuleType("expecttest")
        stand_in.ACCEPT = False
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in


def load_suite(backend, decorators, world, timeout):
    """Imports the suite for `world` ranks and returns its test class.

    To be called once per process: what a decorator decided at import stays decided.
    """
    provide_expecttest()
    sys.argv = sys.argv[:1]  # the suite parses the command line of the program that imports it
    os.environ.update(
        BACKEND=decorators,
        WORLD_SIZE=str(world),
        INIT_METHOD="file://",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(timeout),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    common = importlib.import_module("torch.testing._internal.common_distributed")
    common.logger.setLevel("WARNING")
    common.TIMEOUT_OVERRIDE.clear()
    add_features(common.DistTestCases, backend)
    suite = importlib.import_module(MODULE)
    os.environ["BACKEND"] = backend
    suite.BACKEND = AlsoGloo(backend)
    for supported in (
        suite.PROFILING_SUPPORTED_BACKENDS,
        suite.CUDA_PROFILING_SUPPORTED_BACKENDS,
        suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        if backend not in supported:
            supported.append(backend)
    suite.Barrier.sync = classmethod(sync_barrier)
    common.time = PromptClock(common)
    keep_plain_ddp()
    return forking_class(suite)


class AlsoGloo(str):
    """A backend's name that is gloo's too where the suite asks `BACKEND == "gloo"`: bodies of tests
    choose CPU tensors, or more to check, by that."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def keep_plain_ddp():
    """Leaves DDP as users have it. The suite switches on an experiment of torch 1.13 (parameters as
    ReplicatedTensor) whose module cannot be imported with Python 3.11, which would fail every test
    of DDP before it has begun."""
    switches = importlib.import_module("torch.nn.parallel._replicated_tensor_ddp_utils")
    switches._set_ddp_with_replicated_tensor = lambda enabled: None


def add_features(cases, backend):
    """Declares for `backend` what the suite declares for gloo."""
    for names in cases.backend_feature.values():
        if "gloo" in names:
            names.add(backend)


def sync_barrier(cls, wait_for=None, timeout=10):
    """The suite's barrier of the ranks through files, without its lock and its 0.1 s naps."""
    import torch.distributed as dist

    wanted = wait_for if wait_for is not None else dist.get_world_size()
    cls.barrier_id += 1
    folder = os.path.join(os.environ["TEMP_DIR"], "barrier")
    mine = os.path.join(folder, str(os.getpid()))
    with open(mine + ".new", "w") as file:
        file.write(str(cls.barrier_id))
    os.rename(mine + ".new", mine)  # whole or absent, never half written
    deadline = time.time() + max(timeout, BARRIER_SECONDS)
    while count_arrived(folder, cls.barrier_id) < wanted:
        if time.time() > deadline:
            raise RuntimeError("barrier timeout")
        time.sleep(BARRIER_POLL)


def count_arrived(folder, barrier_id):
    arrived = 0
    for name in os.listdir(folder):
        if not name.endswith(".new"):
            with open(os.path.join(folder, name)) as file:
                arrived += int(file.read()) >= barrier_id
    return arrived


class PromptClock:
    """Stands in for `time` in the harness: its sleep ends as soon as a rank does."""

    def __init__(self, common):
        self._wait = common.multiprocessing.connection.wait
        self._children = common.torch.multiprocessing.active_children

    time = staticmethod(time.time)

    def sleep(self, seconds):
        children = self._children()
        if children:
            self._wait([child.sentinel for child in children], timeout=seconds)
            time.sleep(0.002)  # the others usually end within moments of the first


def forking_class(suite):
    """The test case: ranks are forked from this process, which has torch imported already."""
    import torch

    class DistributedSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # With spawn every rank would import the module again, after this variable was set.
            suite.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self):
            stubborn = list(self.processes)
            super().tearDown()
            for process in stubborn:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()
            if os.path.exists(self.file_name):
                os.unlink(self.file_name)

    return DistributedSuite


def test_names():
    """All tests of the suite, in order. Imports it, so ask in a process of its own."""
    load_suite("gloo", "gloo", 4, 100)
    base = sys.modules[MODULE].DistributedTest._DistTestBase
    return sorted(name for name in dir(base) if name.startswith("test_"))
