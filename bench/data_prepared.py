"""What does a training set gain that is prepared once for the host and read from the pool? Samples a second, of

  plain         files and Pillow in a DataLoader with two workers
  prep, first   the same function as data.Dataset(prep=...), in the epoch that makes the samples; two workers
  prep, later   ... in an epoch that finds them; two workers, and none
  step, cold    the `[[prep]]` of the data file, whose samples the service makes when they are read; batches
  step, warm    ... when they are there; batches (data.stack) and single views
  map           the same pictures as one array in a file that is mapped; batches

for JPEGs of 28x28, decoded, and of 500x375, decoded and cut to 224x224. In turn, medians, and ratios to
`plain` within each round, by the clock. Starts a fabricd and a `fabric-data serve` of its own. With --json
one line of JSON."""

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import data_views  # noqa: E402
import preparation  # noqa: E402  ends with 77 without NumPy and Pillow
from harness import fingerprint  # noqa: E402
from harness.daemon import Daemon  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BATCH = 64
SETS = {"28x28": (28, 28, ["decode"], preparation.decoded),
        "500x375": (375, 500, list(preparation.PIPELINE), preparation.cut_to_224)}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="build folder to measure")
    parser.add_argument("--folder", default="/tmp", help="where the files are made (default /tmp)")
    parser.add_argument("--small", type=int, default=4000, help="pictures of 28x28 (default 4000)")
    parser.add_argument("--large", type=int, default=300, help="pictures of 500x375 (default 300)")
    parser.add_argument("--rounds", type=int, default=3, help="all contenders in turn (default 3)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


class Plain:
    """A path for each sample, opened and prepared when it is asked for."""

    def __init__(self, folder, function):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        self.function = function

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return preparation.np.asarray(self.function(file.read()))


class Prepare:
    def __init__(self, function):
        self.function = function

    def __call__(self, view):
        import torch

        return torch.from_numpy(preparation.np.array(self.function(view)))


def rate(work):
    """Of a function that says how many samples it has seen."""
    begin = time.monotonic()
    seen = work()
    return seen / (time.monotonic() - begin)


def loaded(dataset, workers):
    from torch.utils.data import DataLoader

    seen = 0
    for batch in DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers):
        seen += len(batch)
    assert seen == len(dataset)
    return seen


def order_of(count):
    return preparation.np.random.default_rng(1).permutation(count)


def stacked(files, at_least=1):
    from fabricshm import data

    order, seen = order_of(len(files)), 0
    while seen < at_least:
        for first in range(0, len(order), BATCH):
            seen += len(data.stack(files, order[first : first + BATCH]))
    return seen


def viewed(files, at_least):
    seen = 0
    while seen < at_least:
        for index in order_of(len(files)):
            with files[index] as view:
                seen += len(view) > 0
    return seen


def mapped(path, at_least):
    import torch

    samples = preparation.np.asarray(preparation.np.load(path, mmap_mode="r"))
    order, seen = order_of(len(samples)), 0
    while seen < at_least:
        for first in range(0, len(order), BATCH):
            seen += len(torch.from_numpy(samples[order[first : first + BATCH]]))
    return seen


def measure_set(given, top, size):
    """{contender: rates}; of samples that are there each is looked at many times."""
    from fabricshm import data

    folder, function = os.path.join(top, size), SETS[size][3]
    sources, array = data.open("/" + size), os.path.join(top, size + ".npy")
    preparation.np.save(array, preparation.np.stack([Plain(folder, function)[index] for index in range(len(sources))]))
    plain, found, many = Plain(folder, function), {}, 20 * len(sources)
    for turn in range(given.rounds):
        made = data.Dataset(sources, prep=Prepare(function), prep_name=f"{size} {turn}")
        opened = functools.lru_cache(lambda turn=turn: data.open(f"/steps{size}-{turn}"))  # in the first epoch
        work = {"plain": lambda: loaded(plain, 2),
                "prep, first": lambda made=made: loaded(made, 2),
                "prep, later, 2 workers": lambda made=made: loaded(made, 2),
                "prep, later, no workers": lambda made=made: loaded(made, 0),
                "step, cold": lambda opened=opened: stacked(opened()),
                "step, warm, batches": lambda opened=opened: stacked(opened(), many),
                "step, warm, views": lambda opened=opened: viewed(opened(), many),
                "map, batches": lambda: mapped(array, many)}
        for name in work:
            found.setdefault(name, []).append(rate(work[name]))
        assert made.prepared.not_kept == 0
    return found


def configuration(top, rounds):
    text = '[[silo]]\nat = "/prepared"\nfrom = "memory"\n'
    for size, (_, _, steps, _) in SETS.items():
        text += f'[[silo]]\nat = "/{size}"\nfrom = "{os.path.join(top, size)}"\n'
        # One for each round: what the service prepared lately it keeps.
        for turn in range(rounds):
            text += f'[[prep]]\nat = "/steps{size}-{turn}"\nof = "/{size}"\nsteps = {json.dumps(steps)}\n'
    return text


def measure(given):
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="fabric-prepared-") as top:
        for size, count in (("28x28", given.small), ("500x375", given.large)):
            os.mkdir(os.path.join(top, size))
            preparation.write_pictures(os.path.join(top, size), *SETS[size][:2], count)
        # Each round prepares the sets once more.
        cache = 64 * 2**20 + (given.rounds + 2) * (given.small * 4096 + given.large * 160_000)
        daemon, service = Daemon(os.path.join(given.build, "fabricd", "fabricd"), top, cache + 64 * 2**20), None
        try:
            problem = daemon.wait_ready()
            if problem:
                sys.exit(f"data_prepared: fabricd: {problem}")
            service, path = data_views.start_service(given, top, daemon, None, cache,
                                                     configuration(top, given.rounds))
            os.environ.update(FABRIC_SOCKET=daemon.socket_path, FABRIC_DATA_SOCKET=path)
            return {size: measure_set(given, top, size) for size in SETS}
        finally:
            if service is not None:
                service.kill()
                service.wait()
            daemon.stop()


def main():
    given = options()
    given.build = os.path.abspath(given.build)
    sys.path.insert(0, os.path.join(given.build, "python"))
    try:
        import torch
    except ImportError:
        print("data_prepared: no PyTorch")
        sys.exit(77)
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    samples = measure(given)
    ratios = {size: {name: statistics.median(ours / plain for ours, plain in zip(rates, found["plain"]))
                     for name, rates in found.items()} for size, found in samples.items()}
    if given.json:
        print(json.dumps({"load": load, "samples": samples, "ratios": ratios,
                          "machine": fingerprint.fingerprint(ROOT, {})}))
        return
    print(f"load {load:.1f}")
    for size, found in samples.items():
        for name, rates in found.items():
            print(f"{size:8} {name:24} {statistics.median(rates):12,.0f} samples/s  {ratios[size][name]:8.2f} of plain")


if __name__ == "__main__":
    main()
