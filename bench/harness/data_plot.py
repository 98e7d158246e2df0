"""Draws what the data cache reaches of its targets: `data_plot.py FILE.json FILE.png`, of a kept run. Needs matplotlib."""

import json
import sys


def plot(targets, path):
    """A bar for each: what was measured, as a multiple of the target. 1,000 pixels wide."""
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    names = [row["what"] for row in targets][::-1]
    shares = [share_of(row) for row in targets][::-1]
    figure, axis = pyplot.subplots(figsize=(10, 0.45 * len(names) + 1.2))
    axis.barh(names, shares, color=["#2ca02c" if share >= 1 else "#d62728" for share in shares])
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=1)
    for place, share in enumerate(shares):
        axis.annotate(f"{share:.2f}", (share, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axis.set_xlim(min(*shares, 1) / 1.5, max(*shares, 1) * 2)
    axis.set_xlabel("measured / target, larger is better (times: target / measured)")
    axis.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def share_of(row):
    """Above 1: reached."""
    share = row["measured"] / row["target"]
    return 1 / share if row.get("at_most") else share


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        plot(json.load(file)["targets"], sys.argv[2])
