"""Claims about runs that another program trains. The loop itself noted what it saw."""

from __future__ import annotations

import math
import re

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.numbers import N, S, says, step


@claim(rf"(Finished|Failed|Cancelled|Diverged)(?: at| after)? step {S}(?: of {S})?(?:; {S} steps missing)?")
def it_ended_at(context: Context, match: re.Match[str]) -> bool:
    taken = context.facts.steps_taken
    return match[1].lower() == context.facts.status and step(match[2]) in (context.facts.last, taken)


@claim(
    rf"The first (recorded )?number that is not finite: at step {S}, ([\w.]+|the loss)(?: at (?:eigenvalue {S} of "
    rf")?layer {S} \(([\w.]+)\))? is (NaN|infinite|not finite)"
)
def the_first_number(context: Context, match: re.Match[str]) -> bool:
    """Without the word "recorded", the sentence says what came first of all numbers of the loop."""
    at, kind = context.facts.loop.nonfinite[0]
    if context.where == "events" and step(match[2]) != at:
        return False
    if step(match[2]) != at:
        return False
    return bool(match[1]) or (match[3] == "the loss") == (kind == "loss")


@claim(rf"[Tt]he loss of step {S}, the last recorded one, is {N}")
def the_last_recorded_loss(context: Context, match: re.Match[str]) -> bool:
    value = context.facts.loss[step(match[1])]
    return math.isnan(value) if match[2] == "NaN" else math.isinf(value) if match[2] == "infinite" else says(match[2], value)


@claim(
    rf"(Nearest to|Furthest outside) the boundary at step {S}: eigenvalue {S} of layer {S} \([\w.]+\), at distance "
    rf"{N}(?: from it)?"
)
def nearest_or_furthest(context: Context, match: re.Match[str]) -> bool:
    layer = context.facts.layers[step(match[4])]
    row = layer.row(step(match[2]))
    distance = float(layer.distance[row, step(match[3])])
    return says(match[5], distance if match[1] == "Nearest to" else -distance)


@claim(rf"[Ee]igenvalue {S} of layer {S} \([\w.]+\) was first recorded outside the stability boundary")
def first_outside(context: Context, match: re.Match[str]) -> bool:
    layer = context.facts.layers[step(match[2])]
    rows = (layer.distance < 0).any(axis=1)
    return bool(rows.any()) and int(layer.step[rows.argmax()]) == context.step


@claim(rf"[Ll]oss {N} at step {S}|the lowest of {S} steps")
def a_loss_of_the_loop(context: Context, match: re.Match[str]) -> bool | None:
    return says(match[1], context.facts.loss[step(match[2])]) if match[1] else None


@claim(rf"([\w.]+)(?: at (?:eigenvalue {S} of )?layer {S} \([\w.]+\))? was first recorded as not finite")
def first_recorded_as_not_finite(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return context.step is not None and any(at <= context.step for at, _ in context.facts.loop.nonfinite)
