"""Claims that a verdict takes over from alerts, and claims about gradients and decays of single eigenvalues."""

from __future__ import annotations

import math
import re

import numpy as np

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.numbers import N, S, read, says, step, unit
from benchmarks.verdicts.audit.recorded_facts import LN_LARGEST, LayerRows
from stablessm_core.telemetry import series as names

PLACE = rf"(?:Layer {S}, )?[Ee]igenvalue {S}(?: of layer {S})?"


def _rows(context: Context, layer: str | None) -> LayerRows:
    return context.facts.complete_layers[step(layer) if layer else min(context.facts.layers)]  # type: ignore[no-any-return]


def _at(context: Context, rows: LayerRows) -> int:
    row = rows.row(int(context.step or context.facts.died_at or context.facts.last))
    if row is None:
        raise KeyError("no row")
    return row


@claim(rf"Layer {S}, eigenvalue {S}: gradient is {N} times the weight")
def the_gradient_over_the_weight(context: Context, match: re.Match[str]) -> bool:
    sink, index, found = context.facts.complete, step(match[2]), []
    for name, spec in sink.catalogue.items():
        if name.endswith("/grad_over_weight") and names.layer_of(spec.group) == step(match[1]):
            steps, values = sink.series(name)
            found += [float(row[index]) for row in values[steps == context.step] if index < len(row)]
    return any(says(match[3], one, 2.0) for one in found)


@claim(rf"above the threshold of {N} times")
def above_the_threshold(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(rf"; the same holds for {S} of the other {S} eigenvalues|; the same holds for {S} others?")
def the_same_holds(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return not match[2] or step(match[1]) <= step(match[2])


@claim(rf"Layer {S}, eigenvalue {S}: distance to the stability boundary is {N}")
def the_alerted_distance(context: Context, match: re.Match[str]) -> bool:
    rows = _rows(context, match[1])
    return any(says(match[3], float(one), 2.0) for one in rows.distance[:, step(match[2])])


@claim(
    rf"and has been below the threshold of {N}(?: for {S} steps)?|this lasted from step {S} to step {S}|and stable "
    rf"values are at most 1"
)
def it_lasted(context: Context, match: re.Match[str]) -> bool:
    return not match[3] or step(match[3]) <= step(match[4]) <= max(context.facts.last, context.facts.died_at or 0)


@claim(rf"Layer {S}, eigenvalue {S}: outside the stability boundary: \|lambda_bar\| is (?:1 \+ )?{N}")
def the_alerted_eigenvalue(context: Context, match: re.Match[str]) -> bool:
    rows = _rows(context, match[1])
    beyond = "1 + " in match[0]
    return any(says(match[3], float(-one if beyond else 1 - one), 2.0) for one in rows.distance[:, step(match[2])])


@claim(rf"its overflow budget is {N} of {N} at length {S}")
def the_alerted_budget(context: Context, match: re.Match[str]) -> bool:
    with np.errstate(all="ignore"):
        used = [step(match[3]) * np.log(1 - rows.distance) / LN_LARGEST for rows in context.facts.complete_layers.values()]
    return any(bool((np.abs(one - read(match[1])) <= 0.02 * abs(read(match[1])) + 1e-9).any()) for one in used)


@claim(r"Also not finite at this step: .*")
def also_not_finite(context: Context, match: re.Match[str]) -> bool | None:
    found = {str(alert.tensor) for alert in context.facts.alerts if alert.step == context.step and "nonfinite" in alert.kind}
    named = list(re.findall(r"[a-z_]\w*(?:\.[\w]+)+", match[0]))
    return all(one.rstrip(".") in found for one in named) if found else None


@claim(rf"(?:The norm of a|{PLACE}): \|g\| {N}(?:, {N} x its median before)?")
def a_spike(context: Context, match: re.Match[str]) -> bool:
    layer = match[1] or match[3]
    index, at = step(match[2]), int(context.step or 0)
    number = step(layer) if layer else min(context.facts.layers)
    steps, ratio = context.facts.sink.series(names.layer_series(number, "grad_over_weight"))
    rows = context.facts.layers[number]
    assert rows.weight is not None
    size = np.abs(ratio[:, index].astype(float) * rows.weight[: len(ratio), index])
    row = int(np.flatnonzero(steps == at)[0])
    before = float(np.nanmedian(size[max(0, row - 20) : row]))
    return says(match[4], float(size[row]), 2.0) and (match[5] is None or says(match[5], float(size[row]) / before, 3.0))


@claim(rf"{PLACE} at step {S}: distance to the boundary {N}")
def a_distance(context: Context, match: re.Match[str]) -> bool:
    rows = _rows(context, match[1] or match[3])
    row = rows.row(step(match[4]))
    return row is not None and says(match[5], float(rows.distance[row, step(match[2])]))


@claim(rf"Overflow budget at step {S}: {S} x ln (?:more than )?{N} / 88\.72 = {N}")
def a_budget(context: Context, match: re.Match[str]) -> bool:
    value = step(match[2]) * math.log(read(match[3])) / 88.72
    rows = [layer for layer in context.facts.layers.values() if layer.bounded and layer.row(step(match[1])) is not None]
    worst = [1 - float(np.nanmin(layer.distance[layer.row(step(match[1]))])) for layer in rows]
    tolerance = 0.01 * abs(value) + step(match[2]) / 88.72 * 10 ** -(len(match[3].partition(".")[2]) or 1) / read(match[3]) + 1e-3
    return (
        step(match[2]) == context.facts.length
        and abs(value - read(match[4])) <= tolerance
        and any(says(match[3], one, 1.5) for one in worst)
    )


@claim(rf"At {N}, where the eigenvalue is {N}, float32 overflows")
def the_limit(context: Context, match: re.Match[str]) -> bool | None:
    length = context.facts.length
    return None if not length else says(match[2], math.exp(read(match[1]) * LN_LARGEST / length), 2.0)


@claim(rf"Expected step: {N} x this distance \(map slope R_f {N} x learning rate(?: x \|g\|)?(?: plus momentum)? {N}\)")
def an_expected_step(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    slope, step_of_weight = read(match[2]), read(match[3])
    rounding = slope * unit(match[3]) + step_of_weight * unit(match[2])  # of the two factors, as they are written
    return abs(read(match[1]) - slope * step_of_weight) <= 0.02 * read(match[1]) + 0.01 + (rounding + unit(match[1])) / 2


@claim(rf"Measured: {N} x")
def a_measured_step(context: Context, match: re.Match[str]) -> bool | None:
    named = re.search(rf"[Ee]igenvalue {S}(?: of layer {S})? at step {S}", context.whole)
    if named is None:
        return None
    rows, index = _rows(context, named[2]), step(named[1])
    row = rows.row(step(named[3]))
    if row is None or row + 1 >= len(rows.step):
        return None
    return says(match[1], rows.relative_step(row + 1, index), 3.0)


@claim(r"Anything above 1 can cross")
def above_one(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(
    rf"Since step {S}, the decay -ln\|lambda_bar\| of [Ee]igenvalue {S}(?: of layer {S})?(?: \([\w.]+\))? has "
    rf"changed to {N} x its "
    rf"value: the rate of "
    rf"its weight to {N} x, its (gate|step size) to {N} x"
)
def a_decay(context: Context, match: re.Match[str]) -> bool:
    product = read(match[5]) * read(match[7])
    consistent = abs(product - read(match[4])) <= 0.03 * abs(product) + 0.005
    rows, index = _rows(context, match[3]), step(match[2])
    first = rows.row(step(match[1]))
    known = np.flatnonzero(np.isfinite(rows.distance[:, index]))
    if first is None or match[6] == "gate":
        return consistent
    with np.errstate(all="ignore"):
        decays = -np.log1p(-rows.distance[:, index])
    if not np.isfinite(decays[[first, *known[-3:]]]).all():
        return consistent
    return consistent and any(
        abs(decays[at] / decays[first] - read(match[4])) <= 0.03 * abs(read(match[4])) + 0.01 for at in known[-3:]
    )


@claim(r"The (weight|gate|step size) moved it more")
def moved_it_more(context: Context, match: re.Match[str]) -> bool | None:
    parts = re.search(rf"its weight to {N} x, its (?:gate|step size) to {N} x", context.whole)
    if parts is None:
        return None
    weight, other = (abs(math.log(abs(read(one)) or 1e-300)) for one in parts.groups())
    return (weight >= other - 1e-3) == (match[1] == "weight") or abs(weight - other) < 0.02


@claim(rf"at a recurrent rate of {N} one step could cover up to {N} x the distance to the boundary; at {N} no eigenvalue could")
def a_slower_rate(context: Context, match: re.Match[str]) -> bool:
    own = context.facts.config["optimizer"]
    rate = own.get("recurrent_lr") or own["lr"]
    slower = read(match[1]) / read(match[2])
    return says(match[1], rate) and slower / 2.5 <= read(match[3]) <= slower * 1.02


@claim(
    rf"have reached it in one step|learning rate {N} was fatal at step {S}; {N} is a usual rate|dt learns with the "
    rf"recurrent learning rate, here {N}"
)
def a_rate(context: Context, match: re.Match[str]) -> bool:
    own = context.facts.config["optimizer"]
    if match[1]:
        return says(match[1], own["lr"]) and step(match[2]) == context.facts.died_at
    return not match[4] or says(match[4], own.get("recurrent_lr") or own["lr"])


@claim(rf"under AdamW one step multiplies or divides dt by about e\^{N}, because log dt moves by the rate")
def dt_by_a_step(context: Context, match: re.Match[str]) -> bool:
    own = context.facts.config["optimizer"]
    return own["name"] == "adamw" and says(match[1], own.get("recurrent_lr") or own["lr"])


@claim(
    rf"clipping bounds a gradient like that of step {S}(?:, {N} x (?:its median before|the norm of all "
    rf"weights))?(?:, until the backward pass is right)?"
)
def clipping_bounds(context: Context, match: re.Match[str]) -> bool:
    norm, at = context.facts.norm, step(match[1])
    if not match[2]:
        return at in norm
    before = [norm[s] for s in sorted(norm) if s < at][-20:]
    usual = float(np.nanmedian(before)) if before else context.facts.weight_norm[at]
    return says(match[2], norm[at] / usual, 2.0) or (
        at in context.facts.weight_norm and says(match[2], norm[at] / context.facts.weight_norm[at], 2.0)
    )


@claim(rf"clipping bounds a spike like the one of {N} at step {S}")
def clipping_bounds_a_spike(context: Context, match: re.Match[str]) -> bool:
    return step(match[2]) <= (context.facts.died_at or 0)


@claim(rf"Their norm rose from {N} to {N}")
def the_norm_rose(context: Context, match: re.Match[str]) -> bool:
    known = context.facts.weight_norm.values()
    return (
        any(says(match[1], one) for one in known)
        and any(says(match[2], one) for one in known)
        and read(match[2]) > read(match[1])
    )


@claim(r"These operations did not compute in float64: .*")
def narrow_operations(context: Context, match: re.Match[str]) -> bool:
    narrow = context.facts.findings["float64"]["narrow"]
    return all(part.strip() in narrow for part in match[0].removesuffix(".").partition(": ")[2].split(", "))


@claim(
    r"and the normalisation that follows squares (?:its input|more than the)|the normalisation that follows squares "
    r"(?:its input|more than the)|and the loss squares (?:its input|more than)|with the inputs of \d+ steps added "
    r"up|learning rate x weight decay far below 1 shrinks the weights a little in each step, as it should"
)
def what_squares(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(rf", more than float32 can hold \({N}\)")
def more_than_float32(context: Context, match: re.Match[str]) -> bool:
    largest = max(float(one.get("largest_float64") or 0) for one in context.facts.findings["modules"])
    return says(match[1], 3.4028235e38) and max(largest, float(context.facts.findings["float64"]["largest"])) > 3.4e38


@claim(r"in the backward pass(?=: the loss of this step)")
def in_the_backward_pass(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return context.facts.tensor.endswith((".grad", "gradient"))  # type: ignore[no-any-return]


@claim(r"after one gradient far above usual")
def after_one_gradient(context: Context, match: re.Match[str]) -> bool | None:  # noqa: ARG001
    named = re.search(rf"at step {S} was", context.whole)
    if named is None:
        return None
    norm, at = context.facts.norm, step(named[1])
    before = [norm[s] for s in sorted(norm) if s < at][-20:]
    return not before or norm[at] >= 10 * float(np.nanmedian(before))


@claim(rf"this was so on {S} of the steps from step {S} to step {S}")
def this_was_so(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return step(match[1]) <= step(match[3]) - step(match[2]) + 1


def _gradient_at(context: Context, layer: str | None, eigenvalue: str, at: int) -> tuple[float, float]:
    """|g| of this eigenvalue, and its median over the 20 rows before."""
    number = step(layer) if layer else min(context.facts.layers)
    steps, ratio = context.facts.sink.series(names.layer_series(number, "grad_over_weight"))
    weight = context.facts.sink.series(names.layer_series(number, "weight"))[1]
    size = np.abs(ratio[:, step(eigenvalue)].astype(float) * weight[: len(ratio), step(eigenvalue)])
    row = int(np.flatnonzero(steps == at)[0])
    return float(size[row]), float(np.nanmedian(size[max(0, row - 20) : row]))


@claim(rf"Its gradient at step {S}: \|g\| {N}, {N} x the median before, with the eigenvalue at {N}; \|grad\|/\|w\| {N}")
@claim(rf"(?:A spike of its gradient pushed it out|Its gradient spiked): \|g\| rose to {N}, {N} x its median before, at step {S}")
def a_spike_of_the_culprit(context: Context, match: re.Match[str]) -> bool | None:
    culprit = context.verdict.get("culprit")
    if culprit is None:
        return None
    spike = "rose to" in match[0]
    at, size, times = (match[3], match[1], match[2]) if spike else (match[1], match[2], match[3])
    own, usual = _gradient_at(context, str(culprit["layer"]), str(culprit["eigenvalue"]), step(at))
    blamed = "pushed" not in match[0] or "gradient_spike" not in context.truth.not_thrown_by
    return blamed and says(size, own, 2.0) and says(times, own / usual, 5.0)


@claim(rf"Its gradient did not spike: over the last recorded steps, {S} at most, \|g\| was at most {N}, {N} x the median before")
def no_spike(context: Context, match: re.Match[str]) -> bool | None:
    culprit = context.verdict.get("culprit")
    if culprit is None:
        return None
    number, index = int(culprit["layer"]), int(culprit["eigenvalue"])
    steps, ratio = context.facts.sink.series(names.layer_series(number, "grad_over_weight"))
    weight = context.facts.sink.series(names.layer_series(number, "weight"))[1]
    size = np.abs(ratio[:, index].astype(float) * weight[: len(ratio), index])[steps < (context.facts.died_at or math.inf)]
    return says(match[2], float(np.nanmax(size[-step(match[1]) :])), 2.0) and read(match[3]) < 10


@claim(rf"The weight of eigenvalue {S}(?: of layer {S})?(?: \([\w.]+\))? is {N} at step {S}")
def an_extreme_weight(context: Context, match: re.Match[str]) -> bool:
    rows = context.facts.layers[step(match[2]) if match[2] else min(context.facts.layers)]
    row = rows.row(step(match[4]))
    return row is not None and rows.weight is not None and says(match[3], float(rows.weight[row, step(match[1])]))
