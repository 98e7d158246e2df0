#!/usr/bin/python3
"""Draws the simulator's answers: runs fabric-sim (or reads a kept validation) and leaves one picture
per question. Needs matplotlib.

    emu/sim/plot.py --program build/release/emu/sim/fabric-sim --output docs/sim
"""

import argparse
import json
import os
import subprocess
import sys

ALGORITHM_COLOURS = {"direct": "#1f77b4", "ring": "#d62728", "host": "#7f7f7f", "flat": "#9467bd",
                     "staged": "#ff7f0e"}


def ask(program, *words):
    """What fabric-sim says to a question, as a dictionary."""
    done = subprocess.run([program, *words, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def column(rows, name):
    """One field of all rows, in their order."""
    return [row[name] for row in rows]


def draw_allreduce(pyplot, program):
    """Time by size, one line per algorithm, one panel per topology."""
    topologies = [("64 devices, one switch", ["--devices", "64"]),
                  ("1,024 devices, tree", ["--topology", "tree", "--devices", "1024"]),
                  ("64 devices in a chain", ["--topology", "chain", "--devices", "64"])]
    figure, axes = pyplot.subplots(1, len(topologies), figsize=(15, 4.5), sharey=True)
    # From what fits a line to what no cache holds.
    sizes = "64,1KiB,16KiB,256KiB,4MiB,64MiB,1GiB"
    for axis, (title, words) in zip(axes, topologies):
        rows = ask(program, "allreduce", *words, "--sizes", sizes)["rows"]
        for name in ("direct", "ring", "host"):
            own = [row for row in rows if row["algorithm"] == name]
            axis.loglog(column(own, "size_bytes"), column(own, "time_s"), marker=".", label=name,
                        color=ALGORITHM_COLOURS[name])
        axis.set_title(title)
        axis.set_xlabel("bytes of the vector")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("simulated time, seconds")
    axes[0].legend()
    return figure


def draw_crossover(pyplot, program):
    """Ring's time over direct's for a large vector."""
    figure, axis = pyplot.subplots(figsize=(8, 5))
    cases = [("one switch, pools", []),
             ("tree, own memory, uplinks as wide as the hosts' links",
              ["--topology", "tree", "--placement", "device"])]
    for narrow in ("4", "16"):
        cases.append((f"the same, uplinks {narrow} times narrower",
                      ["--topology", "tree", "--placement", "device", "--oversubscription", narrow]))
    cases.append(("chain, own memory", ["--topology", "chain"]))
    for label, words in cases:
        rows = ask(program, "crossover", *words)["rows"]
        axis.loglog(column(rows, "devices"), column(rows, "ring_over_direct"), marker="o", label=label)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xlabel("devices")
    axis.set_ylabel("time of ring / time of direct, 4 GiB")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


def draw_stragglers(pyplot, program):
    """Bars of what is left to wait for once all have come, relative to no rank being slow."""
    answer = ask(program, "stragglers", "--devices", "32", "--pools", "64")
    names = list(dict.fromkeys(column(answer["rows"], "straggler")))
    variants = list(dict.fromkeys(column(answer["rows"], "algorithm")))
    figure, axis = pyplot.subplots(figsize=(10, 4.5))
    width = 0.8 / len(variants)
    for number, variant in enumerate(variants):
        own = [row for row in answer["rows"] if row["algorithm"] == variant]
        axis.bar([i + number * width for i in range(len(own))], column(own, "against_nobody"), width,
                 label=variant)
    axis.set_xticks([i + 0.4 - width / 2 for i in range(len(names))], names, fontsize=8)
    axis.set_ylabel("time after the last arrival / undisturbed")
    axis.set_title(f"32 devices, 64 MiB, {answer['slow_times']:g} times slower, "
                   f"{answer['late_s'] * 1e3:g} ms late")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.legend(fontsize=8)
    return figure


def draw_bandwidth(pyplot, program):
    """The pool's bandwidth that models need, by devices."""
    figure, axis = pyplot.subplots(figsize=(8, 5))
    for model, batch in (("resnet50", "32"), ("gpt2", "8"), ("gpt2-xl", "2")):
        answer = ask(program, "bandwidth", "--model", model, "--batch", batch)
        # null: the devices' own links miss the target, whatever the pool does.
        points = [row for row in answer["rows"] if row["pool_per_s"] is not None]
        axis.loglog(column(points, "devices"), [row["pool_per_s"] / 1e9 for row in points], marker="o",
                    label=f"{model}, {batch} samples a device, {answer['step_s'] * 1e3:.0f} ms a step")
    axis.set_xlabel("devices")
    axis.set_ylabel("pool bandwidth, GB/s")
    axis.set_title("for at most 10 % exposed communication, half of the step hides it")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


def draw_network(pyplot, program):
    """A flat ring's time over that of the plan for several hosts, by hosts."""
    figure, axis = pyplot.subplots(figsize=(8, 5))
    hosts = "2,4,8,16,32,64,128"
    for label, words in (("100 Gbit/s, 8 ranks a host", ["--bandwidth", "12.5GB/s", "--memory", "100GB/s"]),
                         ("1 Gbit/s, 8 ranks a host", [])):
        for size in ("64KiB", "1MiB", "64MiB"):
            rows = ask(program, "network", "--hosts", hosts, "--ranks", "8", "--sizes", size, *words)["rows"]
            axis.loglog(column(rows, "hosts"), column(rows, "ring_over_plan"), marker="o",
                        linestyle="-" if words else "--", label=f"{size}, {label}")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xlabel("hosts")
    axis.set_ylabel("time of a flat ring / time of the plan")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


def draw_validation(pyplot, answer):
    """Simulated over measured, by size; one panel per number of ranks."""
    worlds = sorted({row["devices"] for row in answer["rows"]})
    figure, axes = pyplot.subplots(1, len(worlds), figsize=(6 * len(worlds), 4.5), squeeze=False,
                                   sharey=True)
    for axis, world in zip(axes[0], worlds):
        own = [row for row in answer["rows"] if row["devices"] == world]
        for name in dict.fromkeys(column(own, "algorithm")):
            rows = [row for row in own if row["algorithm"] == name]
            axis.loglog(column(rows, "size_bytes"), column(rows, "simulated_over_measured"), marker=".",
                        label=name, color=ALGORITHM_COLOURS.get(name))
        axis.axhline(1, color="black", linewidth=0.8)
        # Grey: within a factor of two.
        axis.axhspan(0.5, 2, color="black", alpha=0.06)
        axis.set_title(f"{world:g} ranks on {answer['cores']:g} cores")
        axis.set_xlabel("bytes of the vector")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("simulated / measured")
    axes[0][0].legend(fontsize=8)
    return figure


def main():
    """Writes the pictures, or says in one line why not."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="fabric-sim")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the pictures")
    parser.add_argument("--validation", metavar="FILE", help="JSON of fabric-sim validate; else none")
    parser.add_argument("--only", metavar="NAME", help="allreduce, crossover, stragglers, bandwidth, network")
    options = parser.parse_args()
    try:
        import matplotlib  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("plot.py: matplotlib is not installed (scripts/setup)", file=sys.stderr)
        return 77
    # Before pyplot: without a screen, and the same on every machine.
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    os.makedirs(options.output, exist_ok=True)
    pictures = {"allreduce": draw_allreduce, "crossover": draw_crossover,
                "stragglers": draw_stragglers, "bandwidth": draw_bandwidth,
                "network": draw_network}
    for name, draw in pictures.items():
        if options.only in (None, name):
            save(pyplot, draw(pyplot, options.program), options.output, name)
    if options.validation:
        with open(options.validation) as file:
            save(pyplot, draw_validation(pyplot, json.load(file)), options.output, "validation")
    return 0


def save(pyplot, figure, folder, name):
    """Closes the figure, too: matplotlib keeps every open one in memory."""
    figure.tight_layout()
    figure.savefig(os.path.join(folder, name + ".png"), dpi=90)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
