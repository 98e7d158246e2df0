#!/usr/bin/python3
"""How well does the control loop do in the simulator, from 8 to 1,024 devices?

Runs `fabric-sim control` twice: devices of one speed with stragglers, and devices of speeds 1, 1, 0.5, 0.25 with
stragglers and a failure. Draws the regret against an oracle that knows the next step's speeds, and the
windows until shares settle after a change, for even shares, shares by the last step's speed, and the loop.
"""

import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position,import-outside-toplevel
from harness.fingerprint import fingerprint  # noqa: E402

SKIPPED = 77
NAMES = {"even": "even shares", "proportional": "last step's speed", "control": "control loop"}
COLOURS = {"even": "#7f7f7f", "proportional": "#ff7f0e", "control": "#1f77b4"}
CASES = (("equal devices, 3 stragglers", []),
         ("speeds 1, 1, 0.5, 0.25; 3 stragglers, 1 failure",
          ["--speeds", "1,1,0.5,0.25", "--failures", "1"]))


def parse_options(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--devices", default="8,16,32,64,128,256,512,1024", metavar="LIST",
        help="how many (default 8,16,32,64,128,256,512,1024)")
    add("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    add("--json", metavar="FILE", help="write everything that the simulator reported")
    add("--plot", metavar="FILE", help="draw it (PNG)")
    return parser.parse_args(arguments)


def simulate(options, wishes):
    """The rows of one run of the simulator."""
    command = [os.path.join(options.build, "emu", "sim", "fabric-sim"), "control", "--devices",
               options.devices, "--stragglers", "3", *wishes, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def table_of(title, told):
    """One case as Markdown."""
    lines = [f"{title}:", "",
             "| devices | policy | regret | settles, windows (median) | slowest | within 5 | "
             "reversals at most |", "|---:|---|---:|---:|---:|---:|---:|"]
    for row in told["rows"]:
        lines.append(f"| {row['devices']:,.0f} | {NAMES[row['policy']]} | "
                     f"{100 * row['regret_share']:.1f} % | {row['settling_windows']:.1f} | "
                     f"{row['worst_settling_windows']:.1f} | "
                     f"{100 * row['settled_in_5_share']:.0f} % of {row['changes']:.0f} | "
                     f"{row['worst_reversals']:.0f} |")
    return "\n".join(lines) + "\n"


def plot(results, path):
    """Regret above, settling below; a column per case."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(2, len(results), figsize=(6 * len(results), 7), squeeze=False,
                                   sharex=True, sharey="row")
    for column, (title, told) in enumerate(results.items()):
        for policy, name in NAMES.items():
            rows = [row for row in told["rows"] if row["policy"] == policy]
            devices = [row["devices"] for row in rows]
            colour = COLOURS[policy]
            axes[0][column].plot(devices, [100 * row["regret_share"] for row in rows], "o-",
                                 color=colour, label=name)
            if policy == "even":
                continue  # which never settles
            axes[1][column].plot(devices, [row["settling_windows"] for row in rows], "o-",
                                 color=colour, label=f"{name}, median")
            axes[1][column].plot(devices, [row["worst_settling_windows"] for row in rows], "v:",
                                 color=colour, label=f"{name}, slowest")
        axes[0][column].set_title(title, fontsize=10)
        axes[0][column].set_xscale("log", base=2)
        axes[1][column].axhline(5, color="black", linewidth=0.8)
        axes[1][column].set_xlabel("devices")
    axes[0][0].set_ylabel("regret against the oracle, %")
    axes[1][0].set_ylabel("windows until shares settle")
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(arguments=None):
    """0; 77 where something is missing."""
    options = parse_options(arguments)
    if options.plot:
        try:
            import matplotlib  # pylint: disable=unused-import  # noqa: F401
        except ImportError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return SKIPPED
    results = {title: simulate(options, wishes) for title, wishes in CASES}
    for title, told in results.items():
        print(table_of(title, told))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": fingerprint(SOURCE, {}), "cases": results}, file)
    if options.plot:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
