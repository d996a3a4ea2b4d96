"""Claims about eigenvalues, their distance to the boundary, step sizes and overflow."""

from __future__ import annotations

import math
import re

import numpy as np

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.numbers import N, S, read, says, step
from benchmarks.verdicts.audit.recorded_facts import LN_LARGEST, LayerRows
from stablessm_core.maps import MAPS, formulas


def _layer(context: Context, name: str | None) -> LayerRows:
    layers = context.facts.layers
    return layers[step(name)] if name else layers[min(layers)]  # type: ignore[no-any-return]


def _end(context: Context) -> int:
    return int(context.facts.died_at or context.facts.last)


def _last_rows(context: Context) -> dict[int, tuple[LayerRows, int]]:
    """Each bounded layer with its last row that has a known distance."""
    found = {}
    for index, layer in context.facts.layers.items():
        known = np.flatnonzero(np.isfinite(layer.distance).any(axis=1) & (layer.step <= _end(context)))
        if layer.bounded and len(known):
            found[index] = (layer, int(known[-1]))
    return found


def _first_outside(layer: LayerRows, eigenvalue: int | None) -> int | None:
    outside = layer.distance < 0
    rows = outside.any(axis=1) if eigenvalue is None else outside[:, eigenvalue]
    return int(layer.step[int(np.argmax(rows))]) if rows.any() else None


@claim(rf"Eigenvalue {S}(?: of layer {S})? (?:first left|was first recorded outside) the stability boundary at step {S}")
def first_left(context: Context, match: re.Match[str]) -> bool:
    return _first_outside(_layer(context, match[2]), step(match[1])) == step(match[3])


@claim(rf"Eigenvalue {S}(?: of layer {S})? left the stability boundary in the update of the step before")
def left_in_the_last_update(context: Context, match: re.Match[str]) -> bool:
    return _first_outside(_layer(context, match[2]), step(match[1])) == _end(context)


@claim(rf"Eigenvalue {S}(?: of layer {S})? was outside the stability boundary")
def was_outside(context: Context, match: re.Match[str]) -> bool:
    return _first_outside(_layer(context, match[2]), step(match[1])) is not None


@claim(
    rf"Eigenvalue {S}(?: of layer {S})?(?: \([\w.]+\))? (left the boundary|was first recorded outside the boundary"
    rf"|was outside the boundary from "
    rf"the start)(?: \(now (more than )?{N}\))?(?:, as (?:did|were) (?:at least )?{S} of the other {S})?"
)
def crossed(context: Context, match: re.Match[str]) -> bool:
    layer, index, at = _layer(context, match[2]), step(match[1]), int(context.step or 0)
    row = layer.row(at)
    assert row is not None
    first = min(one for one in (_first_outside(layer, None),) if one is not None)
    others = int((layer.distance[row] < 0).sum()) - 1
    right = first == at or _first_outside(layer, index) == at
    value = float(layer.value[row, index])
    right = right and (match[5] is None or (value >= read(match[5]) if match[4] else says(match[5], value)))
    count = step(match[6]) if match[6] else 0
    return right and count == others and (not match[7] or step(match[7]) == layer.distance.shape[1] - 1)


@claim(rf"(?:Its step was|the step was|Measured:) {N} (?:x the distance it had|times as long as the remaining distance)")
def the_step_of_a_crossing(context: Context, match: re.Match[str]) -> bool | None:
    named = re.search(rf"[Ee]igenvalue {S}(?: of layer {S})?", context.whole)
    if named is None:
        return None
    layer, index = _layer(context, named[2]), step(named[1])
    at = _first_outside(layer, index)
    row = None if at is None else layer.row(at)
    if row is None or row == 0 or layer.step[row] - layer.step[row - 1] != 1:
        return None
    return says(match[1], layer.relative_step(row, index), 3.0)


@claim(rf"\|{N}\|\^{S} = {N}")
def a_power(context: Context, match: re.Match[str]) -> bool:
    base, length = abs(read(match[1])), step(match[2])
    exponent = length * math.log10(base)
    mantissa, _, shown = match[3].partition("e")
    said = math.log10(float(mantissa.replace(",", ""))) + int(shown or 0) if read(match[3]) else -math.inf
    worst = [1 - float(np.nanmin(layer.distance[row])) for layer, row in _last_rows(context).values()]
    capped = base > 1e300
    return (
        length == context.facts.length
        and abs(exponent - said) <= 0.12
        and not capped
        and any(says(match[1].lstrip("-"), one, 1.5) for one in worst)
    )


@claim(
    r"(?:and )?float32 (?:ends at|reaches) 3\.4e38|the limit of float32, 3\.4e38|which float32 can do up to 1\.8e19"
    r"|the 1\.8e19 that float32 can square|numbers up to 1\.8e19"
)
def the_range_of_float32(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(r"its state overflowed|the state exceeds the limit of float32")
def a_state_overflowed(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    kinds = {alert.kind for alert in context.facts.alerts if alert.step == _end(context)}
    return context.facts.tensor.endswith(".state") or "nonfinite_state" in kinds


@claim(r"No eigenvalue can leave the stability boundary in this model")
def none_can_leave(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    for layer in context.facts.layers.values():
        if layer.bounded and (layer.distance < 0).any():
            return False
        form = layer.form
        if layer.bounded and form.map in MAPS and form.map not in ("fixed", "none", "gate"):
            made = formulas(form.map, form.time, np, a=form.a, b=form.b)
            w = np.concatenate([-np.logspace(-3, 4, 50), np.logspace(-3, 4, 50)])
            with np.errstate(all="ignore"):
                far = made.f(w) > 1e-9 if form.time == "continuous" else np.abs(made.f(w)) > 1 + 1e-9
            if far.any():
                return False
    return True


@claim(r"No (?:recorded )?eigenvalue was ever outside the (?:stability )?boundary")
def none_was_outside(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return not any((layer.distance < 0).any() for layer in context.facts.layers.values() if layer.bounded)


@claim(r"(?:with )?every eigenvalue (?:was )?inside the boundary")
def every_one_inside(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return not any((layer.distance[row] < 0).any() for layer, row in _last_rows(context).values())


@claim(r"Eigenvalues (?:were|had been) outside the (?:stability )?boundary, but not far enough to overflow a state")
def not_far_enough(context: Context, match: re.Match[str]) -> bool | None:  # noqa: ARG001
    outside = any((layer.distance < 0).any() for layer in context.facts.layers.values() if layer.bounded)
    if not outside or context.facts.length is None:
        return False if not outside else None
    shares = [
        context.facts.length * math.log(1 - float(np.nanmin(layer.distance[row]))) for layer, row in _last_rows(context).values()
    ]
    return max(shares) < LN_LARGEST  # type: ignore[no-any-return]


@claim(rf"(?:[Aa]ll {S}|the only) (?:recorded )?eigenvalues? (?:are|is) inside the stability boundary")
def all_inside(context: Context, match: re.Match[str]) -> bool:
    rows = _last_rows(context)
    count = sum(int(np.isfinite(layer.distance[row]).sum()) for layer, row in rows.values())
    inside = all((layer.distance[row][np.isfinite(layer.distance[row])] > 0).all() for layer, row in rows.values())
    return inside and (match[1] is None or step(match[1]) >= count)


@claim(
    rf"(?:the nearest, |The nearest(?: at step {S})? was )[Ee]igenvalue {S}(?: of layer {S})?(?: \([\w.]+\))?,(?: "
    rf"is)? (?:at distance {N}|exactly on it, so it does not decay)"
)
def the_nearest(context: Context, match: re.Match[str]) -> bool:
    layer = _layer(context, match[3])
    row = layer.row(step(match[1])) if match[1] else _last_rows(context)[step(match[3] or str(min(context.facts.layers)))][1]
    if row is None:
        return False
    least = min(float(np.nanmin(one.distance[at])) for one, at in _last_rows(context).values())
    own = float(layer.distance[row, step(match[2])])
    if match[4] is None:
        return own == 0
    return says(match[4], own) and own >= 0 and (match[1] is not None or own <= least * 1.01 + 1e-12)


@claim(rf"(?:at least )?{S} of {S} (?:recorded )?eigenvalues? (?:is|are) outside the stability boundary(?:, first at step {S})?")
def some_outside(context: Context, match: re.Match[str]) -> bool:
    rows = _last_rows(context)
    outside = sum(int((layer.distance[row] < 0).sum()) for layer, row in rows.values())
    firsts = [one for layer, _ in rows.values() if (one := _first_outside(layer, None)) is not None]
    return step(match[1]) == outside and (match[3] is None or min(firsts) == step(match[3]))


@claim(rf"in (?:at least )?{S} (?:steps?|of the recorded steps \(every {S}(?:st|nd|rd|th)\)), at least one(?: in layer {S})? was")
def steps_outside(context: Context, match: re.Match[str]) -> bool:
    layers = [context.facts.layers[step(match[3])]] if match[3] else list(context.facts.layers.values())
    counts = [int(((layer.distance < 0).any(axis=1)).sum()) for layer in layers if layer.bounded]
    return step(match[1]) in counts


@claim(rf"(?:The|the) furthest, eigenvalue {S}(?: of layer {S})?(?: \([\w.]+\))?, is {N}")
def the_furthest(context: Context, match: re.Match[str]) -> bool:
    layer, row = _last_rows(context)[step(match[2]) if match[2] else min(context.facts.layers)]
    least = min(float(np.nanmin(one.distance[at])) for one, at in _last_rows(context).values())
    own = float(layer.distance[row, step(match[1])])
    return own == least and (says(match[3].lstrip("-"), 1 - own) or says(match[3], float(layer.value[row, step(match[1])])))


@claim(rf"Furthest outside the boundary at step {S}: eigenvalue {S}(?: of layer {S})?(?: \([\w.]+\))?, at (more than )?{N}")
def furthest_outside(context: Context, match: re.Match[str]) -> bool:
    layer = _layer(context, match[3])
    row = layer.row(step(match[1]))
    assert row is not None
    own = float(layer.distance[row, step(match[2])])
    return own < 0 and (1 - own >= read(match[5]) if match[4] else says(match[5].lstrip("-"), 1 - own))


@claim(rf"with an overflow budget of {N} \(limit {N}\)|[Oo]verflow budget (?:is )?{N}")
def the_overflow_budget(context: Context, match: re.Match[str]) -> bool | None:
    length = context.facts.length
    if length is None:
        return None
    shares = []
    for layer, _ in _last_rows(context).values():
        with np.errstate(all="ignore"):
            shares += (length * np.log(1 - np.nanmin(layer.distance, axis=1)) / LN_LARGEST).tolist()
    return any(says(match[1] or match[3], one, 2.0) for one in shares)


@claim(rf"at length {S} or more it would(?: overflow| not)?")
def overflows_at(context: Context, match: re.Match[str]) -> bool | None:
    rows = _last_rows(context)
    least = min(float(np.nanmin(layer.distance[row])) for layer, row in rows.values())
    longest = LN_LARGEST / math.log(1 - least)
    return any(abs(step(match[1]) - limit * longest) <= 2 + 0.01 * longest for limit in (0.5, 1.0))


@claim(rf"[Ss]ome had been outside before, first at step {S}")
def some_before(context: Context, match: re.Match[str]) -> bool:
    firsts = [
        one for layer in context.facts.layers.values() if layer.bounded and (one := _first_outside(layer, None)) is not None
    ]
    return min(firsts) == step(match[1])


@claim(
    rf"step size dt ran away,(?: from at most {N} at the start)? to (more than )?{N}(?: \(eigenvalue {S}(?: of layer {S})?\))?"
    rf"|[Ll]argest step size dt: {N} at the start, (more than )?{N} at step {S}"
)
def dt_grew(context: Context, match: re.Match[str]) -> bool:
    began, more, now = (match[1], match[2], match[3]) if match[3] else (match[6], match[7], match[8])
    for layer in context.facts.layers.values():
        if layer.dt is None or (began and not says(began, float(np.nanmax(layer.dt[0])), 1.5)):
            continue
        last = [float(np.nanmax(row)) for row in layer.dt[-3:] if not np.isnan(row).all()]
        if any(one >= read(now) if more else says(now, one, 1.5) for one in last):
            return True
    return False


@claim(rf"At step {S} no recorded eigenvalue was outside the boundary")
def none_outside_at(context: Context, match: re.Match[str]) -> bool:
    rows = [(layer, layer.row(step(match[1]))) for layer in context.facts.layers.values() if layer.bounded]
    return not any((layer.distance[row] < 0).any() for layer, row in rows if row is not None)


@claim(rf"An eigenvalue was outside the stability boundary, first at step {S}, but at step {S}")
def outside_first_at(context: Context, match: re.Match[str]) -> bool:
    firsts = [_first_outside(layer, None) for layer in context.facts.layers.values() if layer.bounded]
    return min(one for one in firsts if one is not None) == step(match[1])


@claim(rf"(?:[Ee]xactly )?{S} (?:eigenvalues? (?:are|is)|of them (?:are|is)) (?:exactly )?on the (?:stability )?boundary")
def on_the_boundary(context: Context, match: re.Match[str]) -> bool:
    return sum(int((layer.distance[row] == 0).sum()) for layer, row in _last_rows(context).values()) == step(match[1])


@claim(rf"but at step {S} none was far enough outside to overflow a state")
def none_far_enough(context: Context, match: re.Match[str]) -> bool | None:
    length = context.facts.length
    if length is None:
        return None
    rows = [(layer, layer.row(step(match[1]))) for layer in context.facts.layers.values() if layer.bounded]
    used = [length * math.log(1 - float(np.nanmin(layer.distance[row]))) for layer, row in rows if row is not None]
    return max(used) < LN_LARGEST  # type: ignore[no-any-return]


@claim(r"No (?:recorded )?eigenvalue is outside")
def none_is_outside(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return not any((layer.distance[row] < 0).any() for layer, row in _last_rows(context).values())


@claim(
    rf"(?:{S} of {S} (?:recorded )?eigenvalues are|[Ee]igenvalue {S}(?: of layer {S})?(?: \([\w.]+\))? is) exactly on the "
    rf"stability boundary: such a state does not decay"
)
def exactly_on_it(context: Context, match: re.Match[str]) -> bool:
    count = sum(int((layer.distance[row] == 0).sum()) for layer, row in _last_rows(context).values())
    return count == (step(match[1]) if match[1] else 1)


@claim(rf"its absolute value is more than {N}, over {S} steps")
def its_absolute_value(context: Context, match: re.Match[str]) -> bool:
    worst = [1 - float(np.nanmin(layer.distance[row])) for layer, row in _last_rows(context).values()]
    return max(worst) >= read(match[1]) and step(match[2]) == context.facts.length
