"""Draws what each rule has learnt by steps: a row for each task, loss on the left, held out on the right."""

import statistics

COLOURS = ("#7f7f7f", "#ff7f0e", "#1f77b4", "#2ca02c", "#d62728", "#9467bd")
PANELS = (("loss, training", 1), ("loss, held out", 2))


def plot(rows, path):
    """Medians of the seeds, and between which values they lie. 1,000 pixels wide. Needs matplotlib."""
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    # The same file from the same run.
    pyplot.rcParams["svg.hashsalt"] = "fabric"
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = pyplot.subplots(len(tasks), 2, figsize=(10, 3.6 * len(tasks)), squeeze=False)
    for task, pair in zip(tasks, axes):
        of_task = [row for row in rows if row["task"] == task]
        for axis, (title, column) in zip(pair, PANELS):
            _curves(axis, of_task, column)
            axis.set_title(f"{task}: {title}", fontsize=11)
            axis.set_xlabel("steps")
            axis.grid(alpha=0.3)
        pair[0].legend(fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Date": None} if path.endswith(".svg") else None)
    pyplot.close(figure)


def _curves(axis, rows, column):
    for rule, colour in zip(dict.fromkeys(row["rule"] for row in rows), COLOURS):
        curves = [row["curve"] for row in rows if row["rule"] == rule]
        steps = [point[0] for point in curves[0]]
        values = list(zip(*([point[column] for point in curve] for curve in curves)))
        axis.plot(steps, [statistics.median(each) for each in values], color=colour, label=rule, linewidth=1.2)
        axis.fill_between(steps, [min(each) for each in values], [max(each) for each in values],
                          color=colour, alpha=0.15, linewidth=0)
