#!/usr/bin/python3
"""Draws the pictures of a run; `plot.py FILE.json FILE.png` draws those of a kept one. A picture
answers one question on at most six panels and is 1,000 pixels wide. Needs matplotlib."""

import json
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# pylint: disable=wrong-import-position
from harness.contenders import PEERS  # noqa: E402
from harness.report import size_text  # noqa: E402

COLOURS = {"openmpi": "#7f7f7f", "mpich": "#bcbd22", "gloo": "#8c564b", "fabric": "#1f77b4",
           "fabric-shared": "#2ca02c", "fabric-staged": "#ff7f0e", "limit": "#d62728",
           "limit-shared": "#e377c2"}
NAMES = {"fabric": "zero copy", "fabric-shared": "shared result", "fabric-staged": "staged"}
PLACES = {"out": "out of place", "in": "in place"}
STYLES = {"near": "-", "far": "--", "any": "-"}
MOST_PANELS = 6
FEWEST_SAMPLES = 5  # of a state, for a point: fewer say nothing
RATIO_TICKS = (1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8, 12, 16, 32)

# One picture each: how its file is called, its question, what is drawn, of which rows.
PICTURES = (
    ("", "Allreduce: how many times as fast as the best peer?", "ratio_to_best_peer",
     lambda row: row["collective"] == "allreduce"),
    ("-others", "Others: how many times as fast as the best peer?", "ratio_to_best_peer",
     lambda row: row["collective"] in ("all_gather", "reduce_scatter", "broadcast")
     and row["place"] == "out"),
    ("-in-place", "In place: how many times as fast as the best peer?", "ratio_to_best_peer",
     lambda row: row["collective"] in ("all_gather", "reduce_scatter") and row["place"] == "in"),
    ("-messages", "Send and receive: how many times as fast as the best peer?",
     "ratio_to_best_peer", lambda row: row["collective"] == "send_recv"),
    ("-scan", "Scan: how many times as fast as the best peer?", "ratio_to_best_peer",
     lambda row: row["collective"] == "scan"),
    ("-limit", "Allreduce: what share of the limit of this memory?", "share_of_limit",
     lambda row: row["collective"] == "allreduce" and row["bytes"] >= 512 << 10),
    ("-times", "Allreduce out of place: microseconds", "median_ns",
     lambda row: row["collective"] == "allreduce" and row["place"] == "out"),
    ("-before", "How many times as fast as the build before?", "ratio_to_before",
     lambda row: row["bytes"] > 0),
)


def plot(rows, path):
    """Writes the pictures of what was measured next to `path`, the first one there; returns their
    paths."""
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    written = []
    base, ending = os.path.splitext(path)
    for name, question, value, is_meant in PICTURES:
        groups = {}
        for row in rows:
            if row["bytes"] and is_meant(row) and _families(row, value):
                key = row["collective"], row["place"], row["ranks"], row.get("pinned", False)
                groups.setdefault(key, []).append(row)
        keys = sorted(groups)
        # What does not fit on one picture goes on to the next.
        for first in range(0, len(keys), MOST_PANELS):
            number = "" if first == 0 else f"-{first // MOST_PANELS + 1}"
            target = f"{base}{name}{number}{ending}"
            _picture(target, question, value,
                     {key: groups[key] for key in keys[first:first + MOST_PANELS]})
            written.append(target)
    return written


def _families(row, value):
    """Whose line is drawn."""
    wanted = tuple(NAMES)
    if value == "median_ns":
        wanted += PEERS + ("limit", "limit-shared")
    found = [f for f in wanted if row["families"].get(f, {}).get(value)]
    # Without states there are as many as were asked for.
    return [f for f in found if row.get("state", "any") == "any"
            or len(row["families"][f]["samples_ns"]) >= FEWEST_SAMPLES]


def _picture(path, question, value, groups):
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    columns = 2 if len(groups) > 1 else 1
    lines = -(-len(groups) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(10, 1.4 + 3.1 * lines), squeeze=False)
    panels = [axis for line in axes for axis in line]
    for axis, (key, rows) in zip(panels, groups.items()):
        _panel(axis, value, rows)
        axis.set_title(_title(key), fontsize=12)
    for axis in panels[len(groups):]:
        axis.set_visible(False)
    # One legend for all panels: the same names everywhere.
    shown = {}
    for axis in panels:
        shown.update({label: line for line, label in zip(*axis.get_legend_handles_labels())})
    figure.suptitle(question, fontsize=14)
    figure.legend(shown.values(), shown.keys(), loc="lower center", ncol=4, fontsize=10,
                  frameon=False)
    legend_inches = 0.25 + 0.22 * -(-len(shown) // 4)
    figure.tight_layout(rect=(0, legend_inches / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _title(key):
    collective, place, ranks, pinned = key
    where = f", {PLACES[place]}" if collective in (
        "allreduce", "all_gather", "reduce_scatter", "scan") else ""
    return f"{collective}{where}, {ranks} ranks{', pinned' if pinned else ''}"


def _panel(axis, value, rows):
    factor = {"median_ns": 1e-3, "share_of_limit": 100}.get(value, 1)
    # Powers of two have even steps, and a ratio of 2 is as far from 1 as one of 1/2.
    axis.set_xscale("log", base=2)
    axis.set_yscale("linear" if value == "share_of_limit" else "log",
                    **({} if value == "share_of_limit" else {"base": 2}))
    for state in ("near", "far", "any"):
        group = sorted((row for row in rows if row.get("state", "any") == state),
                       key=lambda row: row["bytes"])
        for family in dict.fromkeys(f for row in group for f in _families(row, value)):
            points = [(row["bytes"], row["families"][family][value] * factor) for row in group
                      if family in _families(row, value)]
            label = NAMES.get(family, family) + ("" if state == "any" else f", {state} cores")
            axis.plot(*zip(*points), STYLES[state], marker=".", color=COLOURS[family], label=label)
    _ticks(axis, value, rows)


def _ticks(axis, value, rows):
    sizes = sorted({row["bytes"] for row in rows})
    # As many labels as can be read.
    step = -(-len(sizes) // 8)
    axis.set_xticks(sizes[::step], [size_text(size) for size in sizes[::step]], fontsize=10)
    axis.set_xlabel("bytes", fontsize=10)
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    if value == "share_of_limit":
        axis.set_ylabel("per cent", fontsize=10)
        axis.axhline(100, color="black", linewidth=1)
        axis.set_ylim(0, max(120, axis.get_ylim()[1]))
        return
    axis.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
    if value != "median_ns":
        axis.axhline(1, color="black", linewidth=1)
        low, high = axis.get_ylim()
        axis.set_yticks([tick for tick in RATIO_TICKS if low <= tick <= high])


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print("\n".join(plot(json.load(file)["rows"], sys.argv[2])))
