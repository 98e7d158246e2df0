"""What fabric-place prints: plans and runs, as text and as JSON."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Comparison:
    """good: as the check wanted. largest: the largest difference, relative to the largest value."""

    checked: bool
    good: bool
    equal: bool
    largest: float
    values: int


def compare(expected, outputs, check):
    """Outputs of all micro-batches against those of a single process. "close" allows rounding to
    differ: 1e-5 of the largest value, about a hundred units in the last place of float32, for sums
    over some thousand terms that were added in another order."""
    values = sum(tensor.numel() for batch in outputs for tensor in batch)
    if check == "none":
        return Comparison(False, True, False, 0.0, values)
    equal, largest = True, 0.0
    for wanted, got in zip(expected, outputs):
        for a, b in zip(wanted, got):
            equal = equal and a.shape == b.shape and bool((a == b).all())
            scale = max(float(a.abs().max()), 1e-30)
            largest = max(largest, float((a.double() - b.double()).abs().max()) / scale)
    # Written so that a NaN is no good.
    good = equal or (check == "close" and largest <= 1e-5)
    return Comparison(True, good, equal, largest, values)


def _bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count} B"
        count /= 1024
    return f"{count:.3g} GiB"


def _ms(seconds):
    return f"{seconds * 1e3:.3f}"


def _table(titles, rows):
    """Columns two blanks apart; those of numbers to the right."""
    cells = [titles, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    right = [all(row[i][:1].isdigit() for row in rows) for i in range(len(titles))]
    return "\n".join(
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right))
        .rstrip() for row in cells)


def _busy(plan):
    """Seconds per micro-batch of each device."""
    busy = [0.0] * len(plan.devices)
    for segment in plan.segments:
        busy[segment.device] += segment.seconds
    return busy


def _bottleneck(plan):
    busy = _busy(plan)
    return max(range(len(busy)), key=lambda d: busy[d])


def _layer_rows(plan):
    network = plan.graph.network
    for i, layer in enumerate(network.layers):
        device = plan.devices[plan.placement[i]]
        yield (str(i), layer.name, layer.kind, layer.operation, f"{layer.flops / 1e6:.3f}",
               str(layer.weight_bytes), str(sum(network.bytes_of[v] for v in layer.outputs)),
               device.name, _ms(device.compute_seconds(layer)))


def _stage_rows(plan):
    size = plan.graph.network.bytes_of
    for i, segment in enumerate(plan.segments):
        yield (str(i), plan.devices[segment.device].name, f"{segment.first}-{segment.last - 1}",
               _bytes(sum(size[v] for v in segment.reads)),
               _bytes(sum(size[v] for v in segment.writes)), _ms(segment.seconds))


def _device_rows(plan):
    for d, (device, busy) in enumerate(zip(plan.devices, _busy(plan))):
        mine = [s for s in plan.segments if s.device == d]
        yield (device.name, device.kind, str(sum(s.last - s.first for s in mine)), str(len(mine)),
               _ms(busy), _bytes(plan.memory[d]), _bytes(device.quota_bytes))


def plan_text(options, plan):
    network = plan.graph.network
    flops = sum(layer.flops for layer in network.layers)
    weights = sum(layer.weight_bytes for layer in network.layers)
    step = plan.schedule.seconds
    slowest = _bottleneck(plan)
    parts = [
        f"network  {options.graph}: {len(network.layers)} layers, {flops / 1e9:.3f} GFLOP per"
        f" micro-batch, {_bytes(weights)} of weights",
        f"plan     by {options.policy}, {options.micro_batches} micro-batches,"
        f" {options.in_flight} in flight"]
    if not options.brief:
        parts.append("\n" + _table(
            ("LAYER", "NAME", "KIND", "OPERATION", "MFLOP", "WEIGHT B", "OUTPUT B", "DEVICE", "MS"),
            list(_layer_rows(plan))))
    parts.append("\n" + _table(
        ("STAGE", "DEVICE", "LAYERS", "READS", "WRITES", "MS"), list(_stage_rows(plan))))
    parts.append("\n" + _table(
        ("DEVICE", "KIND", "LAYERS", "STAGES", "MS PER MICRO-BATCH", "MEMORY", "QUOTA"),
        list(_device_rows(plan))))
    parts.append(
        f"\npredicted step  {_ms(step)} ms, {_ms(step / options.micro_batches)} per micro-batch;"
        f" bottleneck {plan.devices[slowest].name} ({_ms(_busy(plan)[slowest])} busy of that)")
    return "\n".join(parts)


def run_text(options, plan, outcome):
    run, single, comparison = outcome
    predicted = plan.schedule.seconds
    rows = []
    for d, device in enumerate(plan.devices):
        figures = run.devices.get(device.name)
        if figures is not None:
            expected = _busy(plan)[d] * options.micro_batches
            rows.append((device.name, _ms(expected), _ms(figures["busy_s"]), _ms(figures["real_s"]),
                         f"{figures['late']} of {figures['segments']}"))
    parts = [
        f"measured step   {_ms(run.seconds)} ms, {(run.seconds / predicted - 1) * 100:+.1f} % of the"
        " prediction",
        "\n" + _table(("DEVICE", "PREDICTED BUSY MS", "BUSY MS", "THIS MACHINE MS", "LATE"), rows)]
    if any(figures["late"] for figures in run.devices.values()):
        parts.append("late: this machine needed longer than the device would; slow the devices down")
    parts.append("\n" + _comparison_text(comparison, options, single))
    return "\n".join(parts)


def _comparison_text(comparison, options, single):
    if not comparison.checked:
        return "outputs  not compared"
    said = "the same, bit for bit" if comparison.equal else (
        f"differ by {comparison.largest:.2g} of the largest value")
    return (f"outputs  {comparison.values} values, against a single process: {said}"
            f"{'' if comparison.good else ': WRONG'} (it took {_ms(single)} ms unslowed)")


def as_json(options, plan, outcome=None):
    network = plan.graph.network
    names = [device.name for device in plan.devices]
    picture = {
        "graph": options.graph, "policy": options.policy,
        "micro_batches": options.micro_batches, "in_flight": options.in_flight,
        "layers": [
            {"name": layer.name, "kind": layer.kind, "operation": layer.operation,
             "flops": layer.flops, "weight_bytes": layer.weight_bytes,
             "output_bytes": sum(network.bytes_of[v] for v in layer.outputs),
             "device": names[d], "predicted_s": plan.devices[d].compute_seconds(layer)}
            for layer, d in zip(network.layers, plan.placement)],
        "stages": [
            {"device": names[s.device], "first_layer": s.first, "last_layer": s.last - 1,
             "read_bytes": sum(network.bytes_of[v] for v in s.reads),
             "write_bytes": sum(network.bytes_of[v] for v in s.writes), "predicted_s": s.seconds}
            for s in plan.segments],
        "devices": [
            {"name": device.name, "kind": device.kind, "busy_s": busy, "memory_bytes": memory,
             "quota_bytes": device.quota_bytes}
            for device, busy, memory in zip(plan.devices, _busy(plan), plan.memory)],
        "bottleneck": names[_bottleneck(plan)],
        "predicted_step_s": plan.schedule.seconds,
    }  # fmt: skip
    if outcome is not None:
        run, single, comparison = outcome
        picture["run"] = {
            "step_s": run.seconds, "single_process_s": single, "devices": run.devices,
            "outputs": dataclasses.asdict(comparison)}
    return json.dumps(picture)
