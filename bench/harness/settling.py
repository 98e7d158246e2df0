"""Figures of a run with shares: how near the ideal, how soon, how steady. Pure."""

import math
import statistics

NEAR = 1.10  # a cut is settled when its slowest part takes no more than this of the ideal
DEAD_BAND = 0.02  # of the batch; smaller changes of a rank's part are no change of direction


def ideal_step(batch, rate, speeds):
    """Seconds of a step when the parts are as the speeds."""
    return batch / (rate * sum(speeds))


def cut_step(counts, rate, speeds):
    """Seconds of a step that is cut so, by the prescribed speeds: the slowest part's. Free of what
    the machine adds."""
    return max(count / (rate * speed) for count, speed in zip(counts, speeds))


def settled_after(steps, rate, speeds):
    """Seconds from the first of `steps` on, after which every cut is near the ideal one; None:
    never."""
    far = [i for i, step in enumerate(steps)
           if cut_step(step["counts"], rate, speeds)
           > NEAR * ideal_step(sum(step["counts"]), rate, speeds)]
    if not far:
        return 0.0
    if far[-1] == len(steps) - 1:
        return None
    # From when the first step began, not from its end.
    return steps[far[-1]]["t"] - (steps[0]["t"] - steps[0]["s"])


def changes(steps):
    """The cuts that followed one another, tails left out: [step, counts]."""
    batch = max(sum(step["counts"]) for step in steps)
    found = []
    for number, step in enumerate(steps):
        # The last batch of an epoch may be smaller, and is cut otherwise.
        whole = sum(step["counts"]) == batch
        if whole and (not found or step["counts"] != found[-1][1]):
            found.append([number, step["counts"]])
    return found


def reversals(steps):
    """How often a rank's part changed direction: the most of any rank."""
    cuts = [counts for _, counts in changes(steps)]
    if not cuts:
        return 0
    # Of the whole batch: a small rank's part may turn round within it unnoticed.
    band = DEAD_BAND * sum(cuts[0])
    worst = 0
    for parts in zip(*cuts):
        direction, base, count = 0, parts[0], 0
        for part in parts[1:]:
            if abs(part - base) <= band:
                continue
            now = 1 if part > base else -1
            count += direction != 0 and now != direction
            direction, base = now, part
        worst = max(worst, count)
    return worst


def phase_figures(steps, plan, phase, window_s):
    """Of one phase of constant speeds."""
    mine = [step for step in steps if step["phase"] == phase]
    speeds, rate = plan["speeds"][phase], plan["rate"]
    samples = sum(sum(step["counts"]) for step in mine)
    seconds = sum(step["s"] for step in mine)
    settled = settled_after(mine, rate, speeds)
    began = mine[0]["t"] - mine[0]["s"]
    # A thousandth of a microsecond for the sums of the times.
    end = [s for s in mine if settled is not None and s["t"] - s["s"] - began >= settled - 1e-9]
    end_samples = sum(sum(step["counts"]) for step in end)
    end_seconds = sum(step["s"] for step in end)
    return {
        "speeds": speeds,
        "samples": samples,
        "seconds": seconds,
        "ideal_samples_per_s": rate * sum(speeds),
        "samples_per_s": samples / seconds,
        "of_ideal": samples / seconds / (rate * sum(speeds)),
        "settled_of_ideal": end_samples / end_seconds / (rate * sum(speeds)) if end else None,
        "settled_s": settled,
        # Windows are counted whole: settled within the third is three.
        "settled_windows": None if settled is None else -(-settled // window_s),
        "changes": max(len(changes(mine)) - 1, 0),
        "reversals": reversals(mine),
    }


def time_to(accuracy, wanted):
    """Seconds until `wanted` was reached; None: it was not."""
    return next((seconds for seconds, value in accuracy if value >= wanted), None)


def medians(rows):
    """Of the figures of several runs of one plan. A run that never settled counts as the worst, so it
    is not forgotten; None where the median is such a run."""
    def of(key, tables):
        worst = 0.0 if key.endswith("of_ideal") else math.inf
        middle = statistics.median(worst if table[key] is None else table[key] for table in tables)
        return None if middle == worst else middle

    phases = [{"speeds": same[0]["speeds"],
               **{key: of(key, same) for key in same[0] if key != "speeds"}}
              for same in zip(*(row["phases"] for row in rows))]
    return {"phases": phases, **{key: of(key, rows) for key in rows[0] if key != "phases"}}


def figures(found, plan, window_s, wanted):
    """Of a whole run."""
    steps, accuracy = found["steps"], found["accuracy"]
    phases = [phase_figures(steps, plan, i, window_s) for i in range(len(plan["ends"]))]
    seconds = sum(phase["seconds"] for phase in phases)
    ideal_s = sum(phase["samples"] / phase["ideal_samples_per_s"] for phase in phases)
    return {
        "phases": phases,
        "seconds": seconds,
        "of_ideal": ideal_s / seconds,
        "final_accuracy": accuracy[-1][1] if accuracy else None,
        "time_to_accuracy_s": time_to(accuracy, wanted),
    }
