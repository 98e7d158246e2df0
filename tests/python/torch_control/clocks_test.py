"""What Control measures of a step that a device computes: a device of tests, which is behind its host."""

import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    fabric_test.skip(error)

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import fabricshm.torch  # noqa: E402
from fabricshm.torch import Control, FabricSampler  # noqa: E402
from fabricshm.torch._clocks import DeviceClock, HostClock, Span, clock_for  # noqa: E402
from fabricshm.torch._session import GroupSession, NoSession, open_session, words_device  # noqa: E402

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


class Device:
    """In place of torch.cuda, with one stream: milliseconds of work that was handed over, and were done."""

    def __init__(self):
        self.handed = self.done = 0.0
        self.waits = 0
        self.streams_of = set()

    def work(self, ms):
        self.handed += ms

    def current_stream(self, device):
        self.streams_of.add(device)
        return self

    def Event(self, enable_timing):
        return Event(self, enable_timing)


class Event:
    def __init__(self, device, enable_timing):
        self.device, self.timed, self.at = device, enable_timing, None

    def record(self, stream):
        self.at = stream.handed

    def query(self):
        return self.device.done >= self.at

    def synchronize(self):
        if not self.query():
            self.device.waits += 1
            self.device.done = self.at

    def elapsed_time(self, end):
        if not (self.timed and end.timed and self.query() and end.query()):
            raise RuntimeError("device not ready")
        return end.at - self.at


class Told:
    """A session that keeps what is reported."""

    def __init__(self):
        self.compute_ms = []

    def read(self):
        return None

    def report(self, *, compute_ns, **_figures):
        self.compute_ms.append(compute_ns / 1e6)


def measured(rank, world, path, wrapped):
    """Steps of a rank whose device computes 15 ms (rank 0) or 35, and then waits for the other."""
    device, told, counts = Device(), Told(), []
    reduce = dist.all_reduce

    def slow_reduce(*arguments, **options):  # the directives' too, which are no computing either
        device.work(100 - 20 * rank)
        return reduce(*arguments, **options)

    with fabric_test.process_group("gloo", path, rank, world), \
            mock.patch("fabricshm.torch._control.clock_for", lambda _: DeviceClock(CUDA, device)), \
            mock.patch.object(dist, "all_reduce", slow_reduce):  # fmt: skip
        linear = torch.nn.Linear(4, 1)
        model = DistributedDataParallel(linear) if wrapped else linear
        sampler = FabricSampler(range(100), 10)
        control = Control(model, sampler, norm_every=0, session=told)
        for step, mine in enumerate(sampler):
            if step == 3:
                device.done = device.handed
            device.work(10 + 20 * rank)
            model(torch.ones(len(mine), 4)).sum().backward()
            if not wrapped:
                control.merge_gradients()
            device.work(5)  # the optimiser
            control.step(compute_s=0.001 if step == 6 else None)
            counts.append(len(told.compute_ms))
    return told.compute_ms, counts, device.waits, device.streams_of


class Steps(unittest.TestCase):
    def test_a_rank_reports_what_its_device_computed_and_not_what_it_waited(self):
        for wrapped in (True, False):
            with self.subTest(wrapped=wrapped):
                results = fabric_test.run_ranks(measured, 2, fabric_test.store_path(), wrapped)
                for rank, (told, _, _, devices) in enumerate(results):
                    own = 15.0 + 20 * rank
                    self.assertEqual(told, [own] * 6 + [1.0] + [own] * (len(told) - 7))
                    self.assertEqual(devices, {CUDA})

    def test_the_host_waits_for_its_device_only_when_it_is_two_steps_ahead(self):
        for _, counts, waits, _ in fabric_test.run_ranks(measured, 2, fabric_test.store_path(), False):
            self.assertEqual(counts[:3], [0, 0, 1])
            self.assertEqual(counts[3:], [3, 3, 4, 5, 7, 7, 8])  # step 6 was measured by its trainer
            self.assertGreater(waits, 0)


class Spans(unittest.TestCase):
    def test_a_step_without_a_merge_is_computing_to_its_end(self):
        clock = HostClock()
        self.assertEqual(Span(clock, 5, 25).compute_ns(), 20)
        self.assertEqual(Span(clock, 5, 25, 10).compute_ns(), 20)  # apart: asked, and not merged
        self.assertEqual(Span(clock, 5, 25, 10, 18).compute_ns(), 12)
        self.assertEqual(Span(clock, 5, 25, 18, 10).compute_ns(), 20)  # hidden behind backward()
        self.assertEqual(Span(clock, 25, 5).compute_ns(), 0)

    def test_only_a_model_on_one_cuda_device_is_measured_there(self):
        def on(*devices):
            return clock_for([types.SimpleNamespace(device=torch.device(*d)) for d in devices])

        self.assertTrue(on(("cuda", 1), ("cuda", 1)).on_device)
        for devices in ([("cpu",)], [("cuda", 0), ("cuda", 1)], [("cuda", 0), ("cpu",)], [("meta",)], []):
            self.assertFalse(on(*devices).on_device, devices)


class Groups(unittest.TestCase):
    def test_words_go_to_the_device_where_the_group_takes_none_of_the_host(self):
        for backend, expected in (("nccl", CUDA), ("cuda:nccl", CUDA), ("gloo", CPU),
                                  ("cpu:fabricshm,cuda:nccl", CPU)):  # fmt: skip
            with mock.patch.object(dist, "get_backend", lambda _, name=backend: name):
                self.assertEqual(words_device(object(), CUDA), expected)

    def test_the_session_of_a_group_with_two_backends_is_that_of_the_hosts(self):
        ours = object()
        group = types.SimpleNamespace(_get_backend=lambda device: ours if device == CPU else None)
        backend = types.SimpleNamespace(is_ours=lambda found: found is ours)
        for name, kind in (("cpu:fabricshm,cuda:nccl", GroupSession), ("nccl", NoSession)):
            with mock.patch.object(dist, "get_backend", lambda _, name=name: name), \
                    mock.patch.object(fabricshm.torch, "_backend", backend, create=True):  # fmt: skip
                self.assertIsInstance(open_session(group), kind)


if __name__ == "__main__":
    fabric_test.main()
