"""Neighbour exchange: which rank computes which sample of a batch, after ranks have swapped some.

After each iteration a rank swaps a part of its samples in every batch still to come with those of one
neighbour. The pairs of ranks and their picks follow from (seed, epoch, step), so no message is sent, and
all batches that are cut alike are swapped alike: what has to be kept is one order of a batch's places.
The same rule in C++, for the cache that fetches ahead: fabricd/data/plan/exchange.hpp.
"""

from .._random import numbers_of

_WHOLE = 1 << 32


def part_of(exchange):
    """A share of 1 as a whole number, so that every machine rounds alike."""
    if not 0 <= exchange <= 1:
        raise ValueError(f"exchange is {exchange}; it is a share, 0 to 1")
    return round(exchange * _WHOLE)


def swap_once(places, counts, part, numbers):
    """What the exchange of one step does to the places of a batch that is cut by `counts`.

    Neighbours are pairs of a ring that begins at a random rank; of an odd number one stays alone. Both
    give as many: `part` of the smaller piece, where a fraction is one more with that probability.
    """
    world = len(counts)
    if world < 2:
        return
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    first = next(numbers) % world
    for pair in range(world // 2):
        rank = (first + 2 * pair) % world
        other = (rank + 1) % world
        share = part * min(counts[rank], counts[other])
        picks = (share >> 32) + ((next(numbers) >> 32) < share % _WHOLE)
        for pick in range(picks):
            # Each takes one of those that it has not taken yet, and puts it in front of them.
            chosen = []
            for each in (rank, other):
                front = starts[each] + pick
                taken = front + next(numbers) % (counts[each] - pick)
                places[front], places[taken] = places[taken], places[front]
                chosen.append(front)
            one, two = chosen
            places[one], places[two] = places[two], places[one]


class Exchange:
    """The places of a batch after all exchanges before it. Cheapest when batches come in order."""

    def __init__(self, part):
        self.part = part
        self._key = None
        self._step = 0
        self._places = []

    def places(self, seed, epoch, since, batch, counts):
        """Of batch `batch`, whose cut has held since batch `since`: counts[0] places of rank 0, and
        so on."""
        key = (seed, epoch, since, tuple(counts))
        if key != self._key or self._step > batch:
            # A new cut deals out what is not drawn yet; from then on it is exchanged.
            self._key, self._step = key, since
            self._places = list(range(sum(counts)))
        while self._step < batch:
            swap_once(self._places, counts, self.part, numbers_of(seed, epoch, self._step))
            self._step += 1
        return self._places
