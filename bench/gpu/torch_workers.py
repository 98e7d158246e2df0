"""What PyTorch does under the quota shim, one job a process, steered by torch_quota.py: lines on standard input, one
line of JSON for each answer."""

import json
import select
import statistics
import sys
import time

MIB = 1 << 20


def say(**fields):
    print(json.dumps(fields), flush=True)


def next_line():
    """The next order; ends the job with the input."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return line.split()


def has_line():
    """Whether a line has come."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def empty(torch, count):
    """So many bytes of the device, or None when there is no room."""
    try:
        return torch.empty(count, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return None


def context(torch):
    """A context with a first kernel; then allocations of as many bytes as each line says."""
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    say(total=torch.cuda.mem_get_info()[1])
    held = []
    while True:
        held.append(torch.empty(int(next_line()[0]), dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
        say(held=len(held))


def fill(torch):
    """Allocates until there is no room, in sizes that fall: PyTorch's allocator takes 2 MiB for one of 1 MiB, 20 MiB for
    those between 1 and 10 MiB, and of larger ones whole 2 MiB."""
    held, refused = [], ""
    for size in (256 * MIB, 64 * MIB, 32 * MIB, 12 * MIB, MIB):
        while True:
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError as error:
                refused = str(error)
                break
    torch.cuda.synchronize()
    say(allocated=sum(tensor.numel() for tensor in held), total=torch.cuda.mem_get_info()[1], refused=refused)
    next_line()


def graphs(torch):
    """Captures and replays until a line comes."""
    source = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    expected = (source * 2 + 1).sum().item()
    say(ready=True)
    captured, replayed = 0, 0
    while not has_line():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scratch = torch.empty(16 * MIB, device="cuda")
            scratch[: 1 << 20] = source * 2 + 1
            total = scratch[: 1 << 20].sum()
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        if total.item() != expected:
            raise ValueError(f"replayed {total.item()}, not {expected}")
        captured, replayed = captured + 1, replayed + 20
        del scratch, total, graph
        torch.cuda.empty_cache()
    say(captured=captured, replayed=replayed)


def ipc_reader(tensors, answers):
    """The other process of ipc(): keeps what it was sent."""
    import torch
    tensor = tensors.get(timeout=60)
    answers.put(float(tensor[:1000].sum()))
    torch.cuda.synchronize()
    answers.get()  # nothing comes: until it is killed


def ipc(torch):
    """Shares 256 MiB with a process that it starts."""
    from torch import multiprocessing
    spawn = multiprocessing.get_context("spawn")
    tensors, answers = spawn.Queue(), spawn.Queue()
    reader = spawn.Process(target=ipc_reader, args=(tensors, answers), daemon=True)
    reader.start()
    tensor = torch.full((64 * MIB,), 3.0, device="cuda")
    torch.cuda.synchronize()
    tensors.put(tensor)
    say(reader=reader.pid, sum=answers.get(timeout=90))
    next_line()


def matmul(torch):
    """Counts products for so many seconds, after others that don't count."""
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    out = torch.empty_like(left)
    torch.mm(left, left, out=out)
    torch.cuda.synchronize()
    say(ready=True)
    while True:
        warmup, seconds = (float(word) for word in next_line()[:2])
        counts = []
        for length in (warmup, seconds):
            begun, count = time.monotonic(), 0
            while time.monotonic() - begun < length:
                for _ in range(8):
                    torch.mm(left, left, out=out)
                torch.cuda.synchronize()
                count += 8
            counts.append(count / (time.monotonic() - begun))
        say(rate=counts[1])


def spin_cycles(torch, microseconds):
    """What torch.cuda._sleep() takes for a kernel of that length."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)  # pylint: disable=protected-access
    start.record()
    torch.cuda._sleep(20_000_000)  # pylint: disable=protected-access
    end.record()
    end.synchronize()
    return int(20_000_000 / (start.elapsed_time(end) * 1000) * microseconds)


def launches(torch, cycles, count=4000, queued=500):
    """Microseconds of one launch: of many to their end, and of the host alone while the queue has room."""
    spin = torch.cuda._sleep  # pylint: disable=protected-access
    torch.cuda.synchronize()
    begun = time.perf_counter_ns()
    for _ in range(queued):
        spin(cycles)
    host = time.perf_counter_ns() - begun
    torch.cuda.synchronize()
    begun = time.perf_counter_ns()
    for _ in range(count):
        spin(cycles)
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - begun) / count / 1000, host / queued / 1000


def cost(torch):
    """Times of launches and of training steps, for each line that asks for them."""
    from resnet50 import ResNet50
    cycles = spin_cycles(torch, 5)
    torch.manual_seed(1)
    model = ResNet50().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(32, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (32,), device="cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = torch.nn.CrossEntropyLoss()

    def step():
        optimiser.zero_grad()
        loss(model(images), labels).backward()
        optimiser.step()
        torch.cuda.synchronize()

    for _ in range(5):
        step()
    launches(torch, cycles)
    say(ready=True)
    while True:
        if next_line()[0] == "launches":
            whole, host = launches(torch, cycles)
            say(whole_us=whole, host_us=host)
            continue
        times = []
        for _ in range(5):
            begun = time.perf_counter_ns()
            step()
            times.append((time.perf_counter_ns() - begun) / 1000)
        say(step_us=statistics.median(times))


def grow(torch):
    """Holds as many bytes as each line says, and says how long each allocation took; `granted` is false when there was no room."""
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    say(ready=True)
    held = []
    while True:
        wanted = int(next_line()[0])
        begun = time.monotonic()
        tensor = empty(torch, wanted)
        held.append(tensor)
        say(granted=tensor is not None, seconds=time.monotonic() - begun)


JOBS = {job.__name__: job for job in (context, fill, graphs, ipc, matmul, cost, grow)}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in JOBS:
        sys.exit(f"usage: torch_workers.py {'|'.join(JOBS)}")
    try:
        import torch
        JOBS[sys.argv[1]](torch)
    except Exception as error:  # pylint: disable=broad-except
        # Whatever it is: the check has failed, and its row says why.
        say(error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        raise


if __name__ == "__main__":
    main()
