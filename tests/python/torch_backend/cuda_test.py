"""Collectives of CUDA tensors over the fabric, on the device of the tests (mock_torch): streams with threads of
their own, below operators that run on the CPU. Nothing here ran on a GPU."""

import functools
import operator
import os
import signal
import sys
import unittest
from datetime import timedelta

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    fabric_test.skip(error)

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import mock_cuda  # noqa: E402

gpu = mock_cuda.load(sys.argv.pop(1))

INTEGERS = {torch.uint8: (8, False), torch.int8: (8, True), torch.int16: (16, True), torch.int32: (32, True),
            torch.int64: (64, True)}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (0,), (1,), (5, 7), (3, 0, 2), (4001,))
OPS = {"SUM": operator.add, "PRODUCT": operator.mul, "MIN": min, "MAX": max, "BAND": operator.and_,
       "BOR": operator.or_, "BXOR": operator.xor}


def values_of(rank, count, part=0):
    """Small whole numbers: each result is exact in every type."""
    return [(rank * 31 + part * 13 + i * 7) % 4 for i in range(count)]


def wrapped(number, dtype):
    """As the type keeps it."""
    if dtype not in INTEGERS:
        return number
    bits, signed = INTEGERS[dtype]
    number %= 1 << bits
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def reduced(op, lists, dtype):
    """Plain Python's: element by element over the ranks."""
    if op == "AVG":
        return [sum(column) / len(lists) for column in zip(*lists)]
    return [wrapped(functools.reduce(OPS[op], column), dtype) for column in zip(*lists)]


def made(values, dtype, shape=None):
    tensor = torch.tensor(values, dtype=torch.float64 if dtype in FLOATS else torch.int64).to(dtype)
    return tensor.reshape((-1,) if shape is None else shape).cuda()


def same(got, expected, what):
    assert got.device.type == "cuda", what
    found = got.cpu().to(torch.float64).flatten().tolist()
    if found != [float(number) for number in expected]:
        raise AssertionError(f"{what}: {found[:20]} instead of {expected[:20]}")


def count_of(shape):
    return functools.reduce(operator.mul, shape, 1)


def in_group(function, **options):
    def in_rank(rank, world, path, *arguments):
        torch.set_num_threads(1)
        with fabric_test.process_group("fabricshm", path, rank, world, **options):
            return function(rank, world, *arguments)

    return in_rank


@in_group
def all_reduces(rank, world):
    for dtype in (*INTEGERS, *FLOATS):
        names = [*OPS, "AVG"] if dtype in FLOATS and world != 3 else [*OPS]
        for name in names:
            if name.startswith("B") and dtype in FLOATS:
                continue
            for shape in SHAPES:
                count = count_of(shape)
                value = made(values_of(rank, count), dtype, shape)
                dist.all_reduce(value, getattr(dist.ReduceOp, name))
                same(value, reduced(name, [values_of(r, count) for r in range(world)], dtype),
                     f"{name} of {dtype} {shape}")


@in_group
def other_all_reduces(rank, world):
    flags = torch.tensor([False, rank == 0, True]).cuda()
    dist.all_reduce(flags)
    same(flags, [0, 1, 1], "any")
    flags = torch.tensor([False, rank == 0, True]).cuda()
    dist.all_reduce(flags, dist.ReduceOp.PRODUCT)
    same(flags, [0, world == 1, 1], "all")
    numbers = torch.tensor([1 + 2j, rank + 0j]).cuda()
    dist.all_reduce(numbers)
    assert numbers.cpu().tolist() == [world * (1 + 2j), sum(range(world)) + 0j]
    # A weight of 0 takes a rank out, whatever it has.
    weight = 0.5 ** (rank + 1) if rank < world - 1 else 0.0
    value = torch.full((100,), float("nan") if weight == 0 else 8.0 * (rank + 1)).cuda()
    dist.all_reduce(value, dist._make_nccl_premul_sum(weight))
    same(value, [sum(8.0 * (r + 1) * 0.5 ** (r + 1) for r in range(world - 1))] * 100, "weighted")
    several = [made(values_of(rank, 3), torch.float32), made(values_of(rank, 500), torch.float32)]
    dist.all_reduce_coalesced(several)
    for tensor in several:
        same(tensor, reduced("SUM", [values_of(r, tensor.numel()) for r in range(world)], torch.float32), "coalesced")


@in_group
def roots(rank, world):
    for dtype in (torch.float32, torch.int16, torch.bool, torch.bfloat16):
        for root in range(world):
            for shape in SHAPES:
                count = count_of(shape)
                lists = [[v % 2 for v in values_of(r, count)] for r in range(world)]
                value = made(lists[rank], dtype, shape)
                dist.broadcast(value, root)
                same(value, lists[root], f"broadcast of {dtype} {shape}")
                value = made(lists[rank], dtype, shape)
                outputs = [torch.empty_like(value) for _ in range(world)] if rank == root else None
                dist.gather(value, outputs, dst=root)
                for r, got in enumerate(outputs or []):
                    same(got, lists[r], f"gather of {dtype} {shape}")
                output = torch.empty_like(value)
                parts = [made(each, dtype, shape) for each in lists] if rank == root else None
                dist.scatter(output, parts, src=root)
                same(output, lists[rank], f"scatter of {dtype} {shape}")
                if dtype is torch.bool:
                    continue
                dist.reduce(value, root)
                expected = reduced("SUM", lists, dtype) if rank == root else lists[rank]
                same(value, expected, f"reduce of {dtype} {shape}")


@in_group
def gathers(rank, world):
    for dtype in (*INTEGERS, *FLOATS, torch.bool):
        for shape in ((), (0,), (6,), (5, 7), (4000,)):
            count = count_of(shape)
            lists = [[v % 2 for v in values_of(r, count)] for r in range(world)]
            value = made(lists[rank], dtype, shape)
            outputs = [torch.empty_like(value) for _ in range(world)]
            dist.all_gather(outputs, value)
            for r, got in enumerate(outputs):
                same(got, lists[r], f"all_gather of {dtype} {shape}")
            if not shape:
                continue
            whole = torch.empty(world * shape[0], *shape[1:], dtype=dtype, device="cuda")
            dist._all_gather_base(whole, value)
            same(whole, sum(lists, []), f"all_gather_base of {dtype} {shape}")
            rows = torch.empty(world, *shape, dtype=dtype, device="cuda")
            dist.all_gather(list(rows), value)  # in a row: no copy
            same(rows, sum(lists, []), f"rows of {dtype} {shape}")
    lists = [[torch.zeros(2).cuda(), torch.zeros(3).cuda()] for _ in range(world)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)).cuda(), torch.full((3,), 9.0).cuda()])
    for source, (first, second) in enumerate(lists):
        same(first, [source] * 2, "all_gather_coalesced")
        same(second, [9] * 3, "all_gather_coalesced")


@in_group
def reduce_scatters(rank, world):
    for dtype in (torch.int16, torch.int64, torch.float32, torch.bfloat16):
        for name in ("SUM", "MAX"):
            op = getattr(dist.ReduceOp, name)
            for shape in ((0,), (6,), (5, 7), (2001,)):
                count = count_of(shape)
                lists = [[values_of(r, count, part) for part in range(world)] for r in range(world)]
                expected = reduced(name, [each[rank] for each in lists], dtype)
                parts = [made(each, dtype, shape) for each in lists[rank]]
                output = torch.empty(shape, dtype=dtype, device="cuda")
                dist.reduce_scatter(output, parts, op)
                same(output, expected, f"reduce_scatter {name} of {dtype} {shape}")
                for part, each in zip(parts, lists[rank]):
                    same(part, each, "what was reduced")
                output = torch.empty(shape, dtype=dtype, device="cuda")
                dist._reduce_scatter_base(output, torch.cat(parts), op)
                same(output, expected, f"reduce_scatter_base {name} of {dtype} {shape}")
    # Parts of different sizes.
    inputs = [torch.full((r + 1,), float(rank + 1)).cuda() for r in range(world)]
    output = torch.empty(rank + 1).cuda()
    dist.reduce_scatter(output, inputs)
    same(output, [sum(range(1, world + 1))] * (rank + 1), "uneven reduce_scatter")


@in_group
def strides(rank, world):
    total = sum(range(1, world + 1))
    for value in (torch.ones(6, 8).cuda().t(), torch.ones(6, 8).cuda()[::2, 1::3],
                  torch.ones(2, 3, 4, 4).cuda().to(memory_format=torch.channels_last)):
        value.mul_(rank + 1)
        dist.all_reduce(value)
        same(value, [total] * value.numel(), "strided all_reduce")
    value = torch.zeros(4, 6).cuda().t()
    value += rank
    dist.broadcast(value, world - 1)
    same(value, [world - 1] * 24, "strided broadcast")
    outputs = [torch.zeros(3, 5).cuda().t() for _ in range(world)]
    dist.all_gather(outputs, torch.full((3, 5), float(rank)).cuda().t())
    for source, got in enumerate(outputs):
        same(got, [source] * 15, "strided all_gather")
    output = torch.zeros(6, 2).cuda().t()
    dist._reduce_scatter_base(output, torch.arange(12.0 * world).cuda())
    same(output, [world * (12 * rank + i) for i in range(12)], "strided reduce_scatter")


@in_group
def by_way_of_the_host(rank, world):
    lists = [[values_of(r, 12, part) for part in range(world)] for r in range(world)]
    inputs = [made(each, torch.int32, (4, 3)) for each in lists[rank]]
    whole = torch.empty(4 * world, 3, dtype=torch.int32, device="cuda")
    work = dist.all_to_all_single(whole, torch.cat(inputs), async_op=True)
    work.wait()
    same(whole, sum((each[rank] for each in lists), []), "all_to_all_single")
    same(work.get_future().wait()[0], sum((each[rank] for each in lists), []), "its future")
    outputs = [torch.empty(4, 3, dtype=torch.int32, device="cuda") for _ in range(world)]
    dist.all_to_all(outputs, inputs)
    for source, got in enumerate(outputs):
        same(got, lists[source][rank], "all_to_all")
    following, before = (rank + 1) % world, (rank - 1) % world
    for count in (1, 50_000):
        sent = torch.empty(count).cuda()
        gpu.close_gate()
        gpu.fill_later(sent, float(rank))  # still to be done when send() is called
        gpu.open_gate()
        received = torch.empty(2 * count).cuda()[::2]
        receiving = dist.irecv(received, before)
        sending = dist.isend(sent, following)
        receiving.wait()
        sending.wait()
        same(received, [before] * count, "a message")
    value = torch.zeros(3).cuda()
    if rank == 0:
        for _ in range(world - 1):
            source = dist.recv(value)
            same(value, [source] * 3, "from any")
    else:
        dist.send(torch.full((3,), float(rank)).cuda(), 0)


@in_group
def in_the_order_of_streams(rank, world):
    total = sum(range(1, world + 1))
    dist.barrier()
    dist.all_reduce(torch.ones(1).cuda())  # the ranks have joined
    for stream in ("default", "another"):
        if stream == "another":
            gpu.use_stream(0)
        # The operation waits for what the stream has still to do, and nothing here does.
        value = torch.zeros(5000).cuda()
        gpu.close_gate()
        gpu.fill_later(value, float(rank + 1))
        work = dist.all_reduce(value, async_op=True)
        assert not work.is_completed() and not gpu.is_done()
        assert work.wait()  # puts a wait on the stream
        assert gpu.peek(value) == 0, "the host has waited"
        gpu.open_gate()
        assert value[0].item() == total, "the stream has not waited"
        assert work.is_completed() and work.is_success()
        # What is put behind it sees its result; and the result of the future.
        future = dist.all_reduce(value, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        assert doubled.wait()[0].item() == 2 * total * world
        # Given a timeout, the host waits.
        gpu.close_gate()
        gpu.fill_later(value, 1.0)
        work = dist.all_reduce(value, async_op=True)
        try:
            work.wait(timedelta(milliseconds=20))
        except RuntimeError as error:
            assert "timed out" in str(error), error
        else:
            raise AssertionError("no timeout")
        gpu.open_gate()
        assert work.wait(timedelta(seconds=60)) and gpu.peek(value) == world
    gpu.use_default_stream()
    # A tensor whose last owner is the operation lives until the stream has passed it.
    works = []
    for step in range(20):
        works.append(dist.all_reduce(torch.full((3000,), float(step)).cuda(), async_op=True))
    for step, work in enumerate(works):
        work.wait()
        assert work.result()[0][17].item() == step * world
    dist.barrier()


@in_group
def captured(rank, world):
    """Nothing is done while it is captured, nor called that breaks the capture; all is done at each launch."""
    dist.all_reduce(torch.ones(1).cuda())  # the ranks have joined
    total = sum(range(1, world + 1))
    value = torch.full((5000,), float(rank + 1)).cuda()
    other = torch.full((30,), float(rank)).cuda()
    whole, part = torch.zeros(world * 30).cuda(), torch.zeros(2).cuda()
    parts = torch.arange(2.0 * world).cuda()
    before = dist.all_reduce(torch.ones(7).cuda(), async_op=True)  # on the stream still, for all that is known
    gpu.use_stream(0)
    gpu.begin_capture()
    works = [dist.all_reduce(value, async_op=True)]
    works.append(dist.all_reduce(other, dist.ReduceOp.MAX, async_op=True))
    for work in works:
        work.wait()
    works.append(dist._all_gather_base(whole, other, async_op=True))
    works[-1].wait()
    dist._reduce_scatter_base(part, parts)
    dist.broadcast(other, 0)
    dist.barrier()  # in the graph: the host does not wait
    works[0].wait(timedelta(seconds=60))
    text = raises("captured", works[0].is_completed)
    assert "launch" in text, text
    broken = gpu.end_capture()
    assert not broken, broken
    assert gpu.peek(value) == rank + 1 and gpu.peek(other) == rank, "it was done when it was captured"
    before.wait()
    for launch in range(3):
        gpu.launch_graph()
        gpu.synchronize()
        same(value, [total * world ** launch] * 5000, f"all_reduce, launch {launch}")
        same(other, [world - 1] * 30, "all_reduce MAX")
        same(whole, [world - 1] * (30 * world), "all_gather_base")
        same(part, [world * (2 * rank), world * (2 * rank + 1)], "reduce_scatter_base")
    gpu.use_default_stream()
    dist.all_reduce(value)
    same(value, [total * world ** 3] * 5000, "after the graph")


@in_group
def barriers(rank, world):
    """A barrier waits for what the ranks have put on their streams."""
    value = torch.zeros(10).cuda()
    dist.all_reduce(value)
    gpu.close_gate()
    gpu.fill_later(value, float(rank))
    work = dist.barrier(async_op=True)
    assert not work.is_completed()
    gpu.open_gate()
    work.wait()
    assert gpu.peek(value) == rank
    dist.monitored_barrier()
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})  # of the CPU, in the same group
    assert objects == [{"rank": r} for r in range(world)]


@in_group
def subgroups(rank, world):
    halves = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    whole = torch.ones(100).cuda()
    dist.all_reduce(whole)
    same(whole, [3] * 100, "all")
    for ranks, group in zip(([0, 1], [1, 2]), halves):
        if rank in ranks:
            part = torch.full((100,), float(rank + 1)).cuda()
            dist.all_reduce(part, group=group)
            same(part, [sum(r + 1 for r in ranks)] * 100, "a subgroup")


def raises(text, function):
    try:
        function()
    except RuntimeError as error:
        assert text in str(error), str(error)
        return str(error)
    raise AssertionError(f"no error with {text!r}")


@in_group
def refusals(rank, world):
    value = torch.ones(3).cuda()
    torch._C._cuda_isCurrentStreamCapturing = lambda: True
    raises("before the capture", lambda: dist.all_reduce(value))
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    dist.all_reduce(value)
    raises("this tensor is on cuda:1", lambda: dist.all_reduce(torch.ones(3, device="cuda:1")))
    raises("tensors on cpu and on cuda:0",
           lambda: dist.all_gather([torch.ones(3).cuda() for _ in range(world)], torch.ones(3)))
    raises("Cannot use ReduceOp.AVG", lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32).cuda(), dist.ReduceOp.AVG))
    raises("cannot reduce ComplexFloat", lambda: dist.reduce_scatter(
        torch.zeros(1, dtype=torch.complex64).cuda(), [torch.zeros(1, dtype=torch.complex64).cuda()] * world))
    # While another graph is captured nothing is asked whether it has passed.
    torch._C._cuda_isCurrentStreamCapturing = lambda: True
    dist.all_reduce(value)
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    same(value, [world * world] * 3, "after refusals")
    other = dist.new_group()
    raises("it is on cuda:0", lambda: dist.all_reduce(torch.ones(3, device="cuda:1"), group=other))
    dist.all_reduce(value, group=other)
    same(value, [world ** 3] * 3, "in another group")


@in_group
def mixed(rank, world):
    """The first CUDA tensor of a group meets a tensor of the CPU."""
    value = torch.ones(3).cuda() if rank == 0 else torch.ones(3)
    return raises("", lambda: dist.all_reduce(value))


@in_group
def different(rank, world):
    dist.all_reduce(torch.ones(3).cuda())
    work = dist.all_reduce(torch.ones(3 + rank).cuda(), async_op=True)
    return raises("", lambda: work.wait(timedelta(seconds=60)))


def killed(rank, world, path):
    """What is reported to the survivors, at each of the places where they can find out."""
    with fabric_test.process_group("fabricshm", path, rank, world):
        dist.all_reduce(torch.ones(3).cuda())
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["0", "2"], timedelta(seconds=60))
            os.kill(os.getpid(), signal.SIGKILL)
        value = torch.ones(3).cuda()
        work = dist.all_reduce(value, async_op=True)
        work.wait()
        store.set(str(rank), "")
        # By no means of this group: its watcher ends what the stream waits for.
        gpu.synchronize()
        texts = [raises("", work.wait)]
        texts.append(raises("", lambda: dist.all_reduce(value)))
        texts.append(raises("", lambda: dist.barrier()))
        assert not work.is_success() and work.is_completed()
        texts.append(raises("", lambda: work.wait(timedelta(seconds=60))))
        return texts


def late(rank, world, path):
    with fabric_test.process_group("fabricshm", path, rank, world, timeout=6.0):
        dist.all_reduce(torch.ones(3).cuda())
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["heard"], timedelta(seconds=60))
            return None
        text = raises("", lambda: dist.barrier())
        store.set("heard", "")
        return text


def aborted(rank, world, path):
    """A rank that waits in vain for the other one gives the group up."""
    import fabricshm.torch as fabric

    with fabric_test.process_group("fabricshm", path, rank, world):
        dist.all_reduce(torch.ones(3).cuda())
        store = dist.distributed_c10d._get_default_store()
        value = torch.ones(3).cuda()
        if rank == 1:
            store.wait(["aborted"], timedelta(seconds=60))
            return [raises("", lambda: [dist.all_reduce(value) for _ in range(2)] and dist.barrier())]
        work = dist.all_reduce(value, async_op=True)
        fabric.abort()
        store.set("aborted", "")
        gpu.synchronize()  # what waited on the stream has ended
        return [raises("", work.wait), raises("", lambda: dist.all_reduce(value)), raises("", dist.barrier)]


def shut_down(rank, world, path):
    import fabricshm.torch as fabric

    with fabric_test.process_group("fabricshm", path, rank, world):
        value = torch.full((4000,), float(rank)).cuda()
        dist.all_reduce(value)
        work = dist.all_reduce(value, async_op=True)
        fabric.shutdown()
        assert work.is_completed() and work.is_success() and work.wait()
        same(value, [world * sum(range(world))] * 4000, "after the shutdown")
        return raises("", lambda: dist.all_reduce(value))


def on_two_hosts(rank, world, path, sockets):
    os.environ["FABRIC_SOCKET"] = sockets[rank]
    os.environ["FABRIC_NET_TRUSTED"] = "127.0.0.0/8"
    with fabric_test.process_group("fabricshm", path, rank, world):
        text = raises("", lambda: dist.all_reduce(torch.ones(3).cuda()))
        value = torch.ones(3)
        dist.all_reduce(value)
        assert value.tolist() == [world] * 3
        return text


def outlived(rank, world, path):
    """Works and tensors that live longer than their group."""
    with fabric_test.process_group("fabricshm", path, rank, world):
        value = torch.full((4000,), float(rank)).cuda()
        work = dist.all_reduce(value, async_op=True)
    assert work.is_completed() and work.is_success() and work.wait()
    same(value, [sum(range(world))] * 4000, "after the group")
    with fabric_test.process_group("fabricshm", path + "-2", rank, world):
        dist.all_reduce(value)
    same(value, [world * sum(range(world))] * 4000, "in the next group")


def make_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 300),
        torch.nn.ReLU(), torch.nn.Linear(300, 10))


def trained(rank, model, group, steps=4, hook=None, **options):
    model = DistributedDataParallel(model, process_group=group, **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        inputs = torch.randn(16, 40, generator=generator).to(device)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return torch.cat([tensor.detach().flatten().cpu() for tensor in [*model.parameters(), *model.buffers()]])


@in_group
def ddp(rank, world, options):
    """A model on the device with the fabric, and on the CPU with gloo."""
    gloo = dist.new_group(backend="gloo")
    hook = None
    if options.pop("compressed", False):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = default_hooks.fp16_compress_hook
    ours = trained(rank, make_model().cuda(), None, hook=hook, **options)
    theirs = trained(rank, make_model(), gloo, hook=hook, **options)
    gathered = [torch.empty_like(ours) for _ in range(world)]
    dist.all_gather(gathered, ours, group=gloo)
    parameters = len(torch.nn.utils.parameters_to_vector(make_model().parameters()))
    identical = all(torch.equal(ours[:parameters], other[:parameters]) for other in gathered)
    return identical, torch.equal(ours, theirs), (ours - theirs).abs().max().item()


class Training(unittest.TestCase):
    def test_two_ranks_end_with_the_parameters_of_gloo_on_the_cpu_to_the_last_bit(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.2}, {"static_graph": True},
                        {"find_unused_parameters": True}, {"compressed": True}):
            with self.subTest(options):
                for identical, equal, difference in fabric_test.run_ranks(
                        ddp, 2, fabric_test.store_path(), dict(options)):
                    self.assertTrue(identical)
                    self.assertTrue(equal, f"differs by {difference}")

    def test_three_ranks_are_alike_and_near_gloo(self):
        for identical, _, difference in fabric_test.run_ranks(ddp, 3, fabric_test.store_path(), {}):
            self.assertTrue(identical)
            self.assertLess(difference, 1e-4)


class Collectives(unittest.TestCase):
    def run_in(self, worlds, function):
        for world in worlds:
            with self.subTest(world=world):
                fabric_test.run_ranks(function, world, fabric_test.store_path())

    def test_all_reduce_of_all_types_and_operations(self):
        self.run_in((1, 2, 3, 4), all_reduces)

    def test_operations_that_do_not_fit_into_a_stage(self):
        os.environ["FABRIC_TORCH_STAGE_BYTES"] = "8K"
        try:
            self.run_in((2,), all_reduces)
            self.run_in((3,), gathers)
            self.run_in((3,), reduce_scatters)
        finally:
            del os.environ["FABRIC_TORCH_STAGE_BYTES"]

    def test_truth_values_complex_numbers_weights_and_lists(self):
        self.run_in((2, 3), other_all_reduces)

    def test_operations_with_a_root(self):
        self.run_in((2, 3), roots)

    def test_all_gathers(self):
        self.run_in((1, 2, 3, 4), gathers)

    def test_reduce_scatters(self):
        self.run_in((1, 2, 3, 4), reduce_scatters)

    def test_any_strides(self):
        self.run_in((2, 3), strides)

    def test_messages_and_exchanges_go_by_way_of_the_host(self):
        self.run_in((2, 3), by_way_of_the_host)

    def test_subgroups_have_streams_of_their_own(self):
        self.run_in((3,), subgroups)


class Order(unittest.TestCase):
    def test_streams_wait_and_the_host_does_not(self):
        for world in (1, 2, 3):
            fabric_test.run_ranks(in_the_order_of_streams, world, fabric_test.store_path())

    def test_a_graph_is_captured_from_the_current_stream_and_launched(self):
        for world in (1, 2, 3):
            fabric_test.run_ranks(captured, world, fabric_test.store_path())

    def test_a_barrier_waits_for_streams(self):
        fabric_test.run_ranks(barriers, 2, fabric_test.store_path())

    def test_works_outlive_their_group(self):
        fabric_test.run_ranks(outlived, 2, fabric_test.store_path())


class Failures(unittest.TestCase):
    def test_an_abort_ends_what_is_on_the_stream_and_is_named(self):
        own, peer = fabric_test.run_ranks(aborted, 2, fabric_test.store_path())
        for text in own:
            self.assertIn("this rank has aborted the process group", text)
        self.assertIn("rank 0 died or left the process group", peer[0])

    def test_a_shutdown_waits_for_the_stream(self):
        for text in fabric_test.run_ranks(shut_down, 2, fabric_test.store_path()):
            self.assertIn("this rank has shut down the process group", text)

    def test_what_cannot_be_done_is_refused_in_a_line(self):
        fabric_test.run_ranks(refusals, 2, fabric_test.store_path())

    def test_a_tensor_of_the_cpu_among_those_of_devices_is_named(self):
        for text in fabric_test.run_ranks(mixed, 2, fabric_test.store_path()):
            self.assertIn("called another operation", text)
            self.assertIn("first operation of CUDA tensors", text)

    def test_ranks_on_several_hosts_are_refused_and_go_on_with_the_cpu(self):
        import fabricshm._daemon as daemon

        with daemon.EmbeddedDaemon(daemon.find_program(), pool_bytes=1 << 29) as other:
            sockets = [os.environ["FABRIC_SOCKET"], other.socket]
            for text in fabric_test.run_ranks(on_two_hosts, 2, fabric_test.store_path(), sockets):
                self.assertRegex(text, "fabricshm: cannot join on cuda:0.*not for groups of several hosts")

    def test_different_operations_are_an_error_of_all(self):
        for text in fabric_test.run_ranks(different, 2, fabric_test.store_path()):
            self.assertRegex(text, "EMISMATCH|EPEER")

    def test_a_killed_rank_is_named(self):
        ranks = fabric_test.Ranks(killed, 3, fabric_test.store_path())
        results = ranks.results(dead=(1,))
        for rank in (0, 2):
            for text in results[rank]:
                self.assertRegex(text, "fabricshm: cannot .*: rank 1 died .*EPEER")

    def test_a_rank_that_does_not_come_is_a_timeout(self):
        text = fabric_test.run_ranks(late, 2, fabric_test.store_path())[0]
        self.assertIn("timeout passed", text)
        self.assertIn("rank 1 did not come", text)


if __name__ == "__main__":
    with fabric_test.daemon_or_skip():
        mock_cuda.skip_without_kernels()
        fabric_test.main()
