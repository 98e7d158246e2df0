"""Turns results into rows, ratios and a table for people."""

import statistics

from .contenders import PEERS, PINNED

OURS = ("fabric", "fabric-shared", "fabric-staged")


def size_text(size):
    """8, 512, 64Ki, 2Mi."""
    for shift, letter in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{letter}"
    return str(size)


def time_text(nanoseconds):
    """Three digits and a unit."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= factor:
            return f"{nanoseconds / factor:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def minimum_bytes(case, shared=False):
    """Bytes all ranks together must read and write when every input is read and every output
    written once. (Pulling the reduced parts from the peers moves more: they are read once again.)"""
    size, ranks = case.bytes, case.ranks
    part = size / ranks
    # What all ranks read, and what they write; in place only all_gather has less of it.
    per_kind = {
        "allreduce": ranks * (size + (part if shared else size)),
        "all_gather": ranks * (part + (size - part if case.place == "in" else size)),
        "reduce_scatter": ranks * (size + part),
        "broadcast": size + (ranks - 1) * size,
        "barrier": 0,
        "send_recv": 2 * size,
        "scan": ranks * 2 * size,
        # Gradients are read; parameters and two states are read and written, once for all ranks.
        "step": (ranks + 6) * size,
    }
    return per_kind[case.collective]


class View:
    """What one contender's samples of one state say."""

    def __init__(self, result, state):
        self.entry = result.entry
        self.iterations = result.iterations
        self.samples = result.of_state(state)

    @property
    def median(self):
        """Nanoseconds per operation, over the rounds."""
        return statistics.median(s.nanoseconds for s in self.samples.values())


def states_of(results):
    """The states that have samples, near ones first."""
    found = {s.state for result in results.values() for s in result.samples.values()}
    return [state for state in ("near", "far", "any") if state in found]


def views_of(results, state, pinned):
    """By entry name. The limits are pinned whatever the others are, and stand beside both."""
    views = {name: View(result, state) for name, result in results.items()
             if result.entry.pinned == pinned or result.entry.family.startswith("limit")}
    return {name: view for name, view in views.items() if view.samples}


def best_of(views, family):
    """The view of a family with the least median, or None. One with few samples beside another's
    many does not stand for its family."""
    own = [view for view in views.values() if view.entry.family == family]
    most = max((len(view.samples) for view in own), default=0)
    own = [view for view in own if 3 * len(view.samples) >= most]
    return min(own, key=lambda view: view.median) if own else None


def paired_ratio(theirs, ours):
    """How many times faster `ours` is: the median over the rounds, each round against itself, where
    both had the same state."""
    # A contender that cannot do the case has no ratio.
    if theirs is None or ours is None:
        return None
    rounds = theirs.samples.keys() & ours.samples.keys()
    ratios = [theirs.samples[n].nanoseconds / ours.samples[n].nanoseconds for n in rounds]
    return statistics.median(ratios) if ratios else None


def rows_of(case, results, limits):
    """A row for each state of the cores, pinned and not."""
    for pinned in sorted({r.entry.pinned for r in results.values()
                          if not r.entry.family.startswith("limit")}):
        for state in states_of(results):
            views = views_of(results, state, pinned)
            unpinned = views_of(results, state, False) if pinned else {}
            if any(not view.entry.family.startswith("limit") for view in views.values()):
                yield row_of(case, state, pinned, views, unpinned, limits)


def _before(best, family):
    """The same of the build before; of what is not ours there is none."""
    return best.get(family.replace("fabric", "before", 1)) if "fabric" in family else None


def row_of(case, state, pinned, views, unpinned, limits):
    """Everything that is said about one case in one state, as plain values for the JSON file."""
    families = sorted({view.entry.family for view in views.values()})
    best = {family: best_of(views, family) for family in families}
    peers = [best[name] for name in PEERS if best.get(name)]
    # The best setting of each peer at this very size: the comparison is with their best.
    best_peer = min(peers, key=lambda view: view.median) if peers else None
    trips = [s.trip_ns for view in views.values() for s in view.samples.values() if s.trip_ns]
    row = {"collective": case.collective, "bytes": case.bytes, "ranks": case.ranks,
           "place": case.place, "state": state, "pinned": pinned,
           "trip_ns": statistics.median(trips) if trips else None,
           "minimum_bytes": minimum_bytes(case), "families": {},
           "best_peer": best_peer.entry.name if best_peer else None}
    for family, view in best.items():
        shared = view.entry.place == "shared"
        limit = best.get("limit-shared" if shared else "limit")
        moved = minimum_bytes(case, shared) / view.median  # bytes per ns: GB/s
        samples = [view.samples[number].nanoseconds for number in sorted(view.samples)]
        row["families"][family] = {
            "entry": view.entry.name, "median_ns": view.median, "min_ns": min(samples),
            "samples_ns": samples, "iterations": view.iterations,
            "settings_ns": {name: other.median for name, other in views.items()
                            if other.entry.family == family},
            "ratio_to_best_peer": paired_ratio(best_peer, view),
            "ratio_to_before": paired_ratio(_before(best, family), view),
            "ratio_to_unpinned": paired_ratio(best_of(unpinned, family), view),
            "share_of_limit": paired_ratio(limit, view),
            "gb_per_s": moved, "share_of_stream": _share_of_stream(moved, limits),
            "ping_pongs": view.median / (2 * row["trip_ns"]) if row["trip_ns"] else None}
    return row


def _share_of_stream(gb_per_s, limits):
    # The fastest of these: what a collective does at its best is one of them.
    best = max((value for key, value in limits.items()
                if key.startswith(("copy", "accumulate", "triad"))), default=0)
    return gb_per_s / best if best else None


def _cell(row, family, with_setting):
    found = row["families"].get(family)
    if not found:
        return ""
    text = time_text(found["median_ns"])
    setting = found["entry"].removesuffix(PINNED)[len(family) + 1:]
    return f"{text} ({setting})" if with_setting and setting else text


def _number(value, form):
    return "" if value is None else format(value, form)


def _our_cells(row, family):
    found = row["families"].get(family)
    if not found:
        return [""] * 5
    # What came before stands beside ours and is judged by that ratio alone.
    if family.startswith("before"):
        return [time_text(found["median_ns"]), "", "", "", ""]
    # Below that, waiting and not the bytes decides; the ping-pongs say how well it is done.
    share = found["share_of_limit"] if row["bytes"] >= 512 << 10 else None
    return [time_text(found["median_ns"]), _number(found["ratio_to_best_peer"], ".2f"),
            _number(share, ".0%"),
            _number(found.get("ratio_to_before"), ".2f"),
            _number(found.get("ratio_to_unpinned"), ".2f")]


def _samples(row):
    """Of the first of ours that has any, else of the contender that has the most."""
    counts = {family: len(found["samples_ns"]) for family, found in row["families"].items()}
    return next((counts[family] for family in OURS if family in counts), max(counts.values()))


def table(rows):
    """A Markdown table of rows that share collective, ranks, place and pinning."""
    extra = sorted({f for row in rows for f in row["families"]
                    if f.startswith(("fabric:", "before"))})
    ours = [f for f in OURS if any(f in row["families"] for row in rows)] + extra
    head = ["bytes", "cores", "samples"] + list(PEERS)
    for family in ours:
        head += [family, "ratio", "limit %", "to before", "to unpinned"]
    head += ["limit", "limit shared", "GB/s", "of stream", "ping-pongs"]
    lines = [head]
    for row in sorted(rows, key=lambda row: (row.get("state", "any") == "far", row["bytes"])):
        state = row.get("state", "any")
        cells = [size_text(row["bytes"]), "" if state == "any" else state, str(_samples(row))]
        cells += [_cell(row, peer, True) for peer in PEERS]
        for family in ours:
            cells += _our_cells(row, family)
        cells += [_cell(row, "limit", True), _cell(row, "limit-shared", True)]
        first = row["families"].get("fabric") or row["families"].get(
            (row["best_peer"] or "").split("-")[0])
        large = first and row["bytes"] >= 64 << 10
        small = first and row["bytes"] <= 64 << 10
        cells += [_number(first["gb_per_s"], ".1f") if large else "",
                  _number(first["share_of_stream"], ".0%") if large else "",
                  _number(first["ping_pongs"], ".1f") if small else ""]
        lines.append(cells)
    return aligned(lines)


def aligned(lines):
    """A Markdown table; the first line is its head."""
    # Columns that are empty in all rows are left out.
    used = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    lines = [[line[i] for i in used] for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(used))]
    text = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths)) + " |"
            for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(text)


def sections(rows):
    """(title, table) for each collective, number of ranks, place and pinning, as measured."""
    groups = {}
    for row in rows:
        key = row["collective"], row["ranks"], row["place"], row.get("pinned", False)
        groups.setdefault(key, []).append(row)
    places = {"out": "out of place", "in": "in place"}
    for (collective, ranks, place, pinned), group in groups.items():
        where = f", {places[place]}" if collective in (
            "allreduce", "all_gather", "reduce_scatter", "scan") else ""
        yield f"{collective}, {ranks} ranks{where}{', pinned' if pinned else ''}", table(group)


def markdown(document):
    """The page that docs/perf keeps of a run."""
    machine, limits = document["machine"], document["limits"]
    versions = ", ".join(sorted(set(machine["versions"].values())))
    lines = [f"# {document['title']}", "",
             f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['vector'])}), "
             f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, huge pages "
             f"{machine['thp']}/{machine['thp_shmem']} (anonymous/shared), load "
             f"{machine['load_1min']:.1f} at the start. Commit {machine['commit']}. {versions}.",
             "", "Machine: " + ", ".join(f"{key} {value}" for key, value in limits.items()) + ".",
             "", "`ratio` is best peer's time / ours in the same rounds; `limit %` the share of "
             "what the same bytes cost without waiting; near and far are the two cores by a cache "
             "line's trip beside each sample. See docs/benchmarks.md.", ""]
    for title, text in sections(document["rows"]):
        lines += [f"## {title}", "", text, ""]
    # Below a hundredth of a core it is the measuring itself.
    idle = {name: share for name, share in document["idle_cpu"].items() if share > 0.01}
    lines += ["Idle contenders that used more than 1 % of a core: "
              + (", ".join(f"{name} {share:.1%}" for name, share in idle.items()) or "none") + "."]
    if document.get("mixed"):
        lines += [f"Samples dropped because the cores' distance changed: {document['mixed']}."]
    lines += [f"FAULT: {fault}" for fault in document["faults"]]
    return "\n".join(lines) + "\n"
