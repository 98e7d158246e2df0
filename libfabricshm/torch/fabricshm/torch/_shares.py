"""How a global batch is cut between ranks: pure arithmetic, the same on every rank."""

import math


def equal_shares(world):
    return [1.0 / world] * world


def valid_shares(shares, world):
    """`shares` scaled to the sum 1; None when they are unset (all zero) or no shares of `world` ranks.

    They come from another process by shared memory: nothing about them is taken for granted.
    """
    if len(shares) < world or not all(math.isfinite(s) and s >= 0 for s in shares[:world]):
        return None
    total = sum(shares[:world])
    if not 0 < total < math.inf:
        return None
    return [share / total for share in shares[:world]]


def largest_remainder(total, weights):
    """Whole parts of `total` in proportion to `weights`: none is off by one, and the sum is `total`.

    A weight of zero gets nothing, ties go to the lower rank. One of the weights must not be zero.
    """
    scale = total / math.fsum(weights)
    exact = [weight * scale for weight in weights]
    # The product may exceed the total by rounding, when one rank has nearly all.
    parts = [min(math.floor(part), total) for part in exact]
    left = total - sum(parts)
    takers = [rank for rank, weight in enumerate(weights) if weight > 0]
    takers.sort(key=lambda rank: (parts[rank] - exact[rank], rank))
    for position in range(left):
        parts[takers[position % len(takers)]] += 1
    return parts


def cut(total, unit, shares, work_units=None):
    """Samples per rank of a global batch of `total`, in work units of `unit` samples.

    `work_units` (the number of units per rank) decides where it is given, `shares` otherwise. Where
    the units given are not as many as the batch has (a tail), they are taken as proportions. A last
    unit that is not full is with the last rank that has any.
    """
    units = -(-total // unit)
    counts = largest_remainder(units, work_units if work_units else shares)
    starts = [min(sum(counts[:rank]) * unit, total) for rank in range(len(counts) + 1)]
    return [end - start for start, end in zip(starts, starts[1:])]
