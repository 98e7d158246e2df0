"""Draws shares, step time and quotas over time. Needs matplotlib."""

from harness.settling import ideal_step

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")


def plot(results, plan, path):
    """A column for each of the first two runs (the loop on and off, of one seed): parts of the batch,
    step time against the ideal, and quotas where they moved, else accuracy. 1,000 pixels wide."""
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    shown = dict(list(results.items())[:2])
    moved = any(_quotas_moved(found["quotas"]) for found, _ in shown.values())
    figure, axes = pyplot.subplots(3, len(shown), figsize=(10, 10), squeeze=False, sharey="row")
    for column, (name, (found, _)) in enumerate(shown.items()):
        column_axes = [row[column] for row in axes]
        _shares(column_axes[0], found["steps"], plan)
        _step_time(column_axes[1], found["steps"], plan)
        if moved:
            _quotas(column_axes[2], found["quotas"])
        else:
            _accuracy(column_axes[2], found["accuracy"])
        column_axes[0].set_title(f"control loop {name}", fontsize=12)
        column_axes[-1].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _quotas_moved(quotas):
    seen = {}
    for _, row in quotas:
        for name, (quota, _) in row.items():
            seen.setdefault(name, set()).add(quota)
    return any(len(values) > 1 for values in seen.values())


def _shares(axis, steps, plan):
    """Whole batches only: the rest at an epoch's end is cut otherwise."""
    batch = plan["batch"]
    whole = [step for step in steps if sum(step["counts"]) == batch]
    times = [step["t"] for step in whole]
    for rank in range(len(plan["speeds"][0])):
        colour = COLOURS[rank % len(COLOURS)]
        axis.plot(times, [step["counts"][rank] / batch for step in whole], color=colour,
                  label=f"rank {rank}")
        ideal = [plan["speeds"][s["phase"]][rank] / sum(plan["speeds"][s["phase"]]) for s in whole]
        axis.plot(times, ideal, ":", color=colour, linewidth=0.9)
    axis.set_ylabel("part of the batch (dots: by speed)")
    axis.legend(fontsize=9)
    axis.grid(alpha=0.3)


def _step_time(axis, steps, plan):
    times = [step["t"] for step in steps]
    axis.plot(times, [step["s"] * 1e3 for step in steps], linewidth=0.8, label="step")
    ideal = [ideal_step(plan["batch"], plan["rate"], plan["speeds"][s["phase"]]) for s in steps]
    axis.plot(times, [seconds * 1e3 for seconds in ideal], "k--", linewidth=0.9, label="ideal")
    axis.set_ylabel("step time, milliseconds")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=9)
    axis.grid(alpha=0.3)


def _accuracy(axis, accuracy):
    axis.plot([row[0] for row in accuracy], [row[1] for row in accuracy], marker=".")
    axis.axhline(0.85, color="black", linewidth=0.8)
    axis.set_ylabel("share of test images right")
    axis.grid(alpha=0.3)


def _quotas(axis, quotas):
    """Devices come and go with their sessions: each is drawn where it was seen."""
    names = sorted({name for _, row in quotas for name in row})
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        rows = [(at, row[name]) for at, row in quotas if name in row]
        times = [at for at, _ in rows]
        axis.plot(times, [quota / 2**20 for _, (quota, _) in rows], color=colour,
                  label=f"{name}: quota")
        axis.plot(times, [used / 2**20 for _, (_, used) in rows], ":", color=colour)
    axis.set_ylabel("pool quota (dots: used), MiB")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=9)
    axis.grid(alpha=0.3)
