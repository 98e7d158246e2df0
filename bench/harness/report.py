"""Turns results into rows, ratios and a table for people."""

import statistics

from .contenders import PEERS

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
    }
    return per_kind[case.collective]


def best_of(results, family):
    """The result of a family with the least median, or None."""
    own = [r for r in results.values() if r.entry.family == family]
    return min(own, key=lambda r: r.median) if own else None


def paired_ratio(theirs, ours):
    """How many times faster `ours` is: the median over the rounds, each round against itself."""
    # A contender that cannot do the case has no ratio.
    if theirs is None or ours is None:
        return None
    return statistics.median(a / b for a, b in zip(theirs.nanoseconds, ours.nanoseconds))


def row_of(case, results, limits):
    """Everything that is said about one case, as plain values for the JSON file."""
    families = sorted({r.entry.family for r in results.values()})
    best = {family: best_of(results, family) for family in families}
    peers = [best[name] for name in PEERS if best.get(name)]
    # The best setting of each peer at this very size: the comparison is with their best.
    best_peer = min(peers, key=lambda r: r.median) if peers else None
    row = {"collective": case.collective, "bytes": case.bytes, "ranks": case.ranks,
           "place": case.place, "minimum_bytes": minimum_bytes(case), "families": {},
           "best_peer": best_peer.entry.name if best_peer else None}
    for family, result in best.items():
        shared = result.entry.place == "shared"
        limit = best.get("limit-shared" if shared else "limit")
        moved = minimum_bytes(case, shared) / result.median  # bytes per ns: GB/s
        row["families"][family] = {
            "entry": result.entry.name, "median_ns": result.median,
            "min_ns": min(result.nanoseconds), "samples_ns": result.nanoseconds,
            "iterations": result.iterations,
            "ratio_to_best_peer": paired_ratio(best_peer, result),
            "share_of_limit": paired_ratio(limit, result),
            "gb_per_s": moved, "share_of_stream": _share_of_stream(moved, limits),
            "ping_pongs": _ping_pongs(result, limits)}
    return row


def _share_of_stream(gb_per_s, limits):
    # The fastest of these: what a collective does at its best is one of them.
    best = max((value for key, value in limits.items()
                if key.startswith(("copy", "accumulate", "triad"))), default=0)
    return gb_per_s / best if best else None


def _ping_pongs(result, limits):
    trip = limits.get("ping_pong_ns")
    return result.median / trip if trip else None


def _cell(row, family, with_setting):
    found = row["families"].get(family)
    if not found:
        return ""
    text = time_text(found["median_ns"])
    setting = found["entry"][len(family) + 1:]
    return f"{text} ({setting})" if with_setting and setting else text


def _number(value, form):
    return "" if value is None else format(value, form)


def _our_cells(row, family):
    found = row["families"].get(family)
    if not found:
        return ["", "", ""]
    # Below that, the meeting and not the bytes decides; the ping-pongs say how well it is done.
    share = found["share_of_limit"] if row["bytes"] >= 512 << 10 else None
    return [time_text(found["median_ns"]), _number(found["ratio_to_best_peer"], ".2f"),
            _number(share, ".0%")]


def table(rows):
    """A Markdown table of rows that share collective, ranks and place."""
    extra = sorted({f for row in rows for f in row["families"]
                    if f.startswith(("fabric:", "before"))})
    ours = [f for f in OURS if any(f in row["families"] for row in rows)] + extra
    head = ["bytes"] + list(PEERS)
    for family in ours:
        head += [family, "ratio", "limit %"]
    head += ["limit", "limit shared", "GB/s", "of stream", "ping-pongs"]
    lines = [head]
    for row in rows:
        cells = [size_text(row["bytes"])] + [_cell(row, peer, True) for peer in PEERS]
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
    return _aligned(lines)


def _aligned(lines):
    # Columns that are empty in all rows are left out.
    used = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    lines = [[line[i] for i in used] for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(used))]
    text = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths)) + " |"
            for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(text)


def sections(rows):
    """(title, table) for each collective, number of ranks and place, in the order measured."""
    groups = {}
    for row in rows:
        groups.setdefault((row["collective"], row["ranks"], row["place"]), []).append(row)
    places = {"out": "out of place", "in": "in place"}
    for (collective, ranks, place), group in groups.items():
        where = f", {places[place]}" if collective in (
            "allreduce", "all_gather", "reduce_scatter") else ""
        yield f"{collective}, {ranks} ranks{where}", table(group)


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
             "what the same bytes cost without waiting. See docs/benchmarks.md.", ""]
    for title, text in sections(document["rows"]):
        lines += [f"## {title}", "", text, ""]
    # Below a hundredth of a core it is the measuring itself.
    idle = {name: share for name, share in document["idle_cpu"].items() if share > 0.01}
    lines += ["Idle contenders that used more than 1 % of a core: "
              + (", ".join(f"{name} {share:.1%}" for name, share in idle.items()) or "none") + "."]
    lines += [f"FAULT: {fault}" for fault in document["faults"]]
    return "\n".join(lines) + "\n"
