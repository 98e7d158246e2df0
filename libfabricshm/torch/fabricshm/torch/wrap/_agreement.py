"""What keeps the ranks of a wrapped script together: before each operation of all ranks they compare where they are.

An *event* is one small all_gather: what this rank is about to do, and the numbers that go with it. Events are of one
size, so ranks that are at different places of the script find out at once, and by name, instead of waiting for each
other. Rank 0 decides: when it has left its training loop, ranks that have not are ended.
"""

import os
import sys

import torch
import torch.distributed as dist

START, EPOCH, BACKWARD, PULL, LOAD, EVALUATE, SAVE, SAVED, JOIN, END = range(10)
_NAMES = ("make an optimiser", "begin a loop over its training data", "compute gradients (backward)",
          "end a loop over its training data", "load parameters", "evaluate the model", "save a checkpoint", "go on after a checkpoint", "add parameters to an optimiser", "end the script")  # fmt: skip
_AFTER_TRAINING = (EVALUATE, SAVE, SAVED, END)
_WIDTH = 8


class Diverged(RuntimeError):
    """The ranks are at different places of the script."""


def say(text):
    """One line to the user; by the rank that has something to say."""
    print(f"fabricrun: {text}", file=sys.stderr, flush=True)


class Ranks:
    """The ranks of the job. Used by the thread that trains."""

    def __init__(self):
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.started = False  # there is a process group
        self.before = None  # what all ranks do before they compare: of a parameter server with staleness
        self.ended = []  # ranks that were ended since rank 0 went on without them
        self._process = os.getpid()

    @property
    def in_use(self):
        """Not in children of fork(), as the workers of a DataLoader are."""
        return self.started and os.getpid() == self._process

    def start(self):
        if not self.started:
            dist.init_process_group("fabricshm")
            self.started = True

    def agree(self, kind, *numbers):
        """The event of all ranks: by rank, the numbers of each. At most seven."""
        if self.ended:
            return self._go_on_alone(kind, numbers)
        if self.before is not None:
            self.before()
        mine = torch.zeros(_WIDTH, dtype=torch.float64)
        mine[0] = kind
        mine[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine)
        rows = [row.tolist() for row in found]
        kinds = [int(row[0]) for row in rows]
        if any(each != kind for each in kinds):
            self._settle(kinds)
        rows = rows[:1] if self.ended else rows
        return [row[1 : 1 + len(numbers)] for row in rows]

    def _settle(self, kinds):
        if kinds[0] not in _AFTER_TRAINING:
            raise Diverged(_places(kinds))
        others = [rank for rank, kind in enumerate(kinds) if kind != kinds[0]]
        if self.rank == 0:
            self.ended = others
            say(f"rank 0 has left its training loop, is about to {_NAMES[kinds[0]]}, and decides: ranks that are "
                f"still in it end ({', '.join(map(str, others))})")  # fmt: skip
            return
        self.started = False  # nothing more is agreed with this rank
        # With code 0: the job is what rank 0 makes of it.
        sys.exit(0)

    def _go_on_alone(self, kind, numbers):
        if kind not in _AFTER_TRAINING:
            raise Diverged(f"rank 0 is about to {_NAMES[kind]}, but the other ranks were ended when it had left its "
                           "training loop before them")  # fmt: skip
        return [list(numbers)]

    def equal(self, rows, column, what):
        """Raises when ranks have different numbers in a column of an event."""
        for rank, row in enumerate(rows):
            if row[column] != rows[0][column]:
                raise Diverged(f"{what} of rank {rank} and of rank 0 differ")


def _places(kinds):
    places = {}
    for rank, kind in enumerate(kinds):
        places.setdefault(kind, []).append(str(rank))
    said = "; ".join(f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}: {_NAMES[kind]}"
                     for kind, ranks in places.items())  # fmt: skip
    return f"the ranks are about to do different things ({said}): what decides so has to be the same on all ranks"
