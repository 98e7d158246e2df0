"""Draws times and ratios over sizes. Needs matplotlib; without it there is no picture."""

from .contenders import PEERS
from .report import OURS, size_text

COLOURS = {"openmpi": "#7f7f7f", "mpich": "#bcbd22", "gloo": "#8c564b", "fabric": "#1f77b4",
           "fabric-shared": "#2ca02c", "fabric-staged": "#ff7f0e", "limit": "#d62728",
           "limit-shared": "#e377c2"}


def plot(rows, path):
    """One column per collective, ranks and place: time above, ratio to the best peer below."""
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    groups = {}
    for row in rows:
        if row["bytes"] and row["families"]:
            groups.setdefault((row["collective"], row["ranks"], row["place"]), []).append(row)
    if not groups:
        return
    figure, axes = pyplot.subplots(2, len(groups), figsize=(5 * len(groups), 8), squeeze=False)
    for column, ((collective, ranks, place), group) in enumerate(groups.items()):
        _times(axes[0][column], group)
        axes[0][column].set_title(f"{collective}, {ranks} ranks, {place}")
        _ratios(axes[1][column], group)
    axes[0][0].set_ylabel("time per operation, microseconds")
    axes[1][0].set_ylabel("best peer's time / ours")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _points(group, family, field, factor=1.0):
    """Of the rows in which the family was measured."""
    points = [(row["bytes"], row["families"][family][field] * factor) for row in group
              if row["families"].get(family, {}).get(field)]
    return [p[0] for p in points], [p[1] for p in points]


def _times(axis, group):
    for family in PEERS + OURS + ("limit", "limit-shared"):
        sizes, times = _points(group, family, "median_ns", 1e-3)
        if sizes:
            style = "--" if family.startswith("limit") else "-"
            axis.loglog(sizes, times, style, marker=".", color=COLOURS[family], label=family)
    _size_ticks(axis, group)


def _ratios(axis, group):
    axis.set_xscale("log")
    for family in OURS:
        sizes, ratios = _points(group, family, "ratio_to_best_peer")
        if sizes:
            axis.plot(sizes, ratios, marker=".", color=COLOURS[family], label=family)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xlabel("bytes")
    axis.set_ylim(bottom=0)
    _size_ticks(axis, group)


def _size_ticks(axis, group):
    sizes = sorted({row["bytes"] for row in group})
    axis.set_xticks(sizes, [size_text(size) for size in sizes], rotation=60, fontsize=7)
    axis.minorticks_off()
    axis.grid(alpha=0.3)
