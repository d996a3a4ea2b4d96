"""Where the eigenvalues of a run with finite numbers are, and why those outside the boundary did no harm."""

from __future__ import annotations

import math

from stablessm_core.telemetry.stability import overflow_length
from stablessm_core.verdict.ending import Ending
from stablessm_core.verdict.formats import near_one, number, ordinal, power
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import eigenvalue_label, reserved


def recurrence(ending: Ending) -> list[Said]:
    """Where the eigenvalues are, and why those outside the boundary did no harm."""
    return said(
        boundary_is_unknown(ending), outside_is_meant(ending), eigenvalues_inside(ending), eigenvalues_on_boundary(ending),
        had_been_outside(ending), eigenvalues_outside(ending), budget_is_spent(ending), sequences_are_short(ending),
    )  # fmt: skip


@sentence(
    "ssm/{layer}/boundary_distance", holds="our run recorded no distance at its end, and no layer is meant to exceed the boundary"
)
def boundary_is_unknown(ending: Ending) -> str | None:
    if ending.worst is not None or any(layer.may_exceed for layer in ending.run.layers):
        return None
    return (
        None if ending.run.reported is not None else "Whether its eigenvalues are inside the stability boundary is not recorded."
    )


@sentence(
    "ssm/{layer}/boundary_distance",
    holds="no distance is recorded of a layer that must stay inside, and a layer has a form that bounds states by other means",
)
def outside_is_meant(ending: Ending) -> str | None:
    if ending.worst is not None or not any(layer.may_exceed for layer in ending.run.layers):
        return None
    return "Eigenvalues outside the stability boundary are meant in this model, and cannot make a state overflow."


@sentence(
    "ssm/{layer}/boundary_distance",
    holds="at the last recorded row, the distance 1 - |eigenvalue| of every recorded eigenvalue is above 0",
)
def eigenvalues_inside(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.distance > 0:
        return None
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    recorded = "recorded " if run.reported is not None or worst.known < run.eigenvalues else ""
    count = f"All {worst.known:,} {recorded}eigenvalues are" if worst.known > 1 else f"The only {recorded}eigenvalue is"
    nearest = f"; the nearest, {where}, is at distance" if worst.known > 1 else ", at distance"
    return f"{count} inside the stability boundary{reserved(run)}{nearest} {number(worst.distance)}."


@sentence(
    "ssm/{layer}/boundary_distance", holds="at the last recorded row, no recorded distance is below 0, and the smallest is 0"
)
def eigenvalues_on_boundary(ending: Ending) -> str | None:
    worst = ending.worst
    if worst is None or worst.distance != 0:
        return None
    where = eigenvalue_label(ending.run, worst.layer, worst.eigenvalue)
    some = f"{worst.on_boundary:,} of {worst.known:,} recorded eigenvalues are" if worst.on_boundary > 1 else f"{where} is"
    return (
        f"{some[:1].upper()}{some[1:]} exactly on the stability boundary: such a state does not decay. No recorded eigenvalue is "
        f"outside{reserved(ending.run)}."
    )


@sentence(
    "ssm/{layer}/boundary_distance", holds="an eigenvalue was outside the boundary at an earlier row, and none is at the last"
)
def had_been_outside(ending: Ending) -> str | None:
    if ending.worst is None or ending.worst.outside or not ending.firsts:
        return None
    return f"Some had been outside before, first at step {ending.firsts[0].step:,}{reserved(ending.run)}."


@sentence("ssm/{layer}/boundary_distance", holds="an eigenvalue is outside the boundary at the last recorded row")
def eigenvalues_outside(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.outside:
        return None
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    layer = worst.layers_outside[0] if len(worst.layers_outside) == 1 else worst.layer
    low, high = ending.source.steps_outside(layer, ending.last)
    many = f"{low:,}" if low == high else f"at least {low:,}"
    steps = "step" if many == "1" else "steps"
    recorded = steps if run.every == 1 else f"of the recorded steps (every {ordinal(run.every)})"
    of_layer = f" in layer {layer}" if len(worst.layers_outside) > 1 else ""
    count = f"{worst.outside:,}" if worst.known >= run.eigenvalues else f"At least {worst.outside:,}"
    first = f", first at step {ending.firsts[0].step:,}" if ending.firsts else ""
    size = worst.value if worst.value is not None else 1 - worst.distance
    total = f"{run.eigenvalues:,} eigenvalue{'' if run.eigenvalues == 1 else 's'}"
    boundary = f"outside the stability boundary{reserved(run)}"
    return (
        f"{count} of {total} {'is' if worst.outside == 1 else 'are'} {boundary}{first}: in {many} "
        f"{recorded}, at least one{of_layer} was. The furthest, {where}, is {near_one(size)}."
    )


@sentence(
    "ssm/{layer}/overflow_budget", holds="the overflow budget of the worst eigenvalue is at or above the limit of its layer"
)
def budget_is_spent(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.outside or worst.budget is None or worst.budget < run.limit_of(worst.layer):
        return None
    limit = number(run.limit_of(worst.layer))
    return (
        f"Its overflow budget is {number(worst.budget)}, at or above the limit of {limit}: with random inputs its state "
        "would overflow."
    )


@sentence(
    "ssm/{layer}/overflow_budget",
    holds="at the last recorded row an eigenvalue is outside the boundary, and the overflow budget of the worst one is below "
    "the limit of its layer",
)  # fmt: skip
def sequences_are_short(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.outside or worst.budget is None or run.length is None:
        return None
    limit = run.limit_of(worst.layer)
    if worst.budget >= limit:
        return None
    longest = overflow_length(worst.distance, limit)
    ends = "float32 ends at 3.4e38" if limit == 1 else f"{run.squares} can square numbers up to 1.8e19"
    would = f", but at length {math.ceil(longest):,} or more it would overflow" if math.isfinite(longest) else ""
    return f"It survived because sequences are short: {power(1 - worst.distance, run.length)}, and {ends}{would}."
