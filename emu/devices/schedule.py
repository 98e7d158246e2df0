"""The order in which the devices of a plan serve their segments, and when each would end."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Schedule:
    """orders: per device the (micro-batch, segment) pairs in the order they are served.
    finish: (micro-batch, segment) -> seconds from the start. seconds: the whole step."""

    orders: dict
    finish: dict
    seconds: float


def make_schedule(segments, micro_batches, in_flight):
    """Whatever can start first does; at the same time, the older micro-batch.

    A micro-batch is let in when the one `in_flight` before it has left. The order is one that a
    whole run could have taken, so devices that keep to it never wait for each other in a circle.
    """
    finish = {}
    free = {segment.device: 0.0 for segment in segments}
    orders = {segment.device: [] for segment in segments}
    entered = min(in_flight, micro_batches)
    entry = {m: 0.0 for m in range(entered)}
    open_of = {m: set(range(len(segments))) for m in entry}  # not served yet
    while open_of:
        start, m, number = min(
            (max(_ready(segments[s], m, finish, entry), free[segments[s].device]), m, s)
            for m, waiting in open_of.items() for s in waiting
            if all((m, before) in finish for before in segments[s].needs)
        )
        segment = segments[number]
        finish[m, number] = free[segment.device] = start + segment.seconds
        orders[segment.device].append((m, number))
        open_of[m].remove(number)
        if not open_of[m]:
            del open_of[m]
            if entered < micro_batches:
                entry[entered] = max(finish[m, s] for s in range(len(segments)))
                open_of[entered] = set(range(len(segments)))
                entered += 1
    return Schedule(orders, finish, max(finish.values(), default=0.0))


def _ready(segment, m, finish, entry):
    return max((finish[m, before] for before in segment.needs), default=entry[m])
