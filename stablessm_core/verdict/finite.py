"""The verdict on a run whose training values are all finite: what its loss and its evaluations say, which eigenvalues are outside
the stability boundary, and why no state has overflowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stablessm_core.telemetry.stability import overflow_length
from stablessm_core.telemetry.statuses import FINAL
from stablessm_core.verdict import facts
from stablessm_core.verdict.evidence import Evidence, budget, evaluation, item
from stablessm_core.verdict.inputs import Run, Source
from stablessm_core.verdict.timeline import crossed, evaluated, event, reactions, rose
from stablessm_core.verdict.words import against_best, eigenvalue_label, near_one, number, power

LAST_ROWS = 10  # the loss at the end is the median of this many rows, at most
WORSE = 3.0  # loss at the end divided by the loss at the start: at this ratio it ended far above its start


def judge_finite(run: Run, source: Source) -> dict[str, Any]:
    """{summary, events, evidence, step}. step: the last recorded step, or None if no step is recorded."""
    scalars = source.scalars(max(1, run.step - run.every), run.step)
    last = int(scalars.step[-1]) if len(scalars) else None
    if last is None:
        return {
            "summary": _begin(run, None) or "Nothing is recorded yet.",
            "events": reactions(run),
            "evidence": [],
            "step": None,
        }
    worst = facts.worst_eigenvalue(run, source, last)
    firsts = sorted(
        (one for layer in run.layers if (one := facts.first_crossing(run, source, layer)) is not None), key=lambda one: one.step
    )
    bad = facts.bad_evaluation(source, max(run.step, last))
    events = [crossed(run, one) for one in firsts] + reactions(run) + evaluated(bad)
    evidence = budget(run, worst) + evaluation(bad)
    worse, numbers = _ended_above(run, source, last)
    evidence += numbers
    first = " ".join(text for text in (_evaluation(bad), worse) if text)
    summary = f"{_begin(run, last)} {first or _recurrence(run, source, worst, firsts, last)}"
    if first:
        recurrence = _recurrence(run, source, worst, firsts, last)
        summary += f" {recurrence[:1].upper()}{recurrence[1:]}"
    growth = facts.loss_growth(source, source.scalars(last - facts.LOSS_TAIL * run.every, last), last + 1)
    if growth is not None and growth.rose_at is not None and run.status not in FINAL and not worse:
        summary += f" The loss is {against_best(growth)}. It rose at step {growth.rose_at:,}."
        events.append(event(growth.rose_at, "loss_rose", rose(growth)))
        text = f"Loss {number(growth.loss)} at step {growth.step:,}; best {number(growth.best)} at step {growth.best_step:,}."
        evidence.append(item(text, loss=growth.loss, best=growth.best, times_best=growth.times))
    events.sort(key=lambda one: int(one["step"]))
    return {"summary": summary.strip(), "events": events, "evidence": evidence, "step": last}


def _begin(run: Run, last: int | None) -> str:
    match run.status:
        case "finished":
            return "Finished:"
        case "cancelled":
            return f"Cancelled at step {run.step:,}" + (":" if last is not None else ".")
        case "failed":
            why = f": {run.reason.rstrip('.')}." if run.reason else "."
            return f"Failed at step {run.step:,}{why}" + (f" At step {last:,}," if last is not None else "")
    return "" if last is None else f"So far, at step {last:,}:"


def _evaluation(bad: tuple[int, float] | None) -> str:
    if bad is None:
        return ""
    what = "NaN" if math.isnan(bad[1]) else "infinite"
    return f"the loss of the evaluation at step {bad[0]:,} is {what}, although every number of the training is finite."


def _ended_above(run: Run, source: Source, last: int) -> tuple[str, list[Evidence]]:
    """A sentence about a loss that is far above its start, and its numbers; empty if it is not."""
    recorded = (last - run.first_step) // run.every + 1
    rows = min(LAST_ROWS, max(1, recorded // 4))  # of a short run, its last quarter
    if recorded < 2:
        return "", []
    begun = source.scalars(run.first_step, run.first_step + (rows - 1) * run.every)
    ended = source.scalars(last - (rows - 1) * run.every, last)
    begun_loss, ended_loss = (one.loss[np.isfinite(one.loss)] for one in (begun, ended))
    if not len(begun_loss) or not len(ended_loss):
        return "", []
    start, end = float(begun_loss[0]), float(np.median(ended_loss))
    scale = max(abs(start), float(np.median(np.abs(begun_loss - start))))
    if not end - start > (WORSE - 1) * scale:
        return "", []
    times = f", {number(end / start)} x its start ({number(start)})" if start > 0 else f"; it started at {number(start)}"
    text = f"The loss is far above its start: {number(end)} at step {last:,}{times}."
    return text[0].lower() + text[1:], [item(text, loss=end, loss_at_start=start)]


def _recurrence(run: Run, source: Source, worst: facts.Worst | None, firsts: list[facts.Crossing], last: int) -> str:
    if worst is None:
        if any(layer.may_exceed for layer in run.layers):
            return "eigenvalues outside the stability boundary are meant in this model, and cannot make a state overflow."
        return "where its eigenvalues are is not recorded."
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    if not worst.outside:
        many = f"all {worst.known:,} eigenvalues are" if worst.known > 1 else "the only eigenvalue is"
        if worst.known > 1 and any(layer.wide for layer in run.layers):
            many = f"all {run.eigenvalues:,} eigenvalues are"
        nearest = f"; the nearest, {where}, is at distance" if worst.known > 1 else ", at distance"
        text = f"{many} inside the stability boundary{nearest} {number(worst.distance)}."
        return text + (f" Some had been outside before, first at step {firsts[0].step:,}." if firsts else "")
    layer = worst.layers_outside[0] if len(worst.layers_outside) == 1 else worst.layer
    low, high = source.steps_outside(layer, last)
    many = f"{low:,}" if low == high else f"at least {low:,}"
    steps = "step" if many == "1" else "steps"
    recorded = steps if run.every == 1 else f"of the recorded steps (every {run.every}th),"
    of_layer = f" in layer {layer}" if len(worst.layers_outside) > 1 else ""
    count = f"{worst.outside:,}" if worst.known >= run.eigenvalues else f"at least {worst.outside:,}"
    first = f" from step {firsts[0].step:,} on" if firsts else ""
    size = worst.value if worst.value is not None else 1 - worst.distance
    total = f"{run.eigenvalues:,} eigenvalue{'' if run.eigenvalues == 1 else 's'}"
    return (
        f"{count} of {total} {'is' if worst.outside == 1 else 'are'} outside the stability boundary, at least one of "
        f"them{of_layer} on {many} {recorded}{first}. The furthest, {where}, is at {near_one(size)}. {_fits(run, worst)}"
    )


def _fits(run: Run, worst: facts.Worst) -> str:
    """Why an eigenvalue outside the boundary does not make a state overflow, and the sequence length at which it would."""
    if run.length is None or worst.budget is None:
        return ""
    limit = run.limit_of(worst.layer)
    longest = overflow_length(worst.distance, limit)
    if worst.budget >= limit:
        return (
            f"Its overflow budget is {number(worst.budget)}, at or above the limit of {number(limit)}: with random inputs its "
            "state would overflow."
        )
    ends = "float32 ends at 3.4e38" if limit == 1 else f"{run.squares} can square numbers up to 1.8e19"
    would = f", but at length {math.ceil(longest):,} or more it would overflow" if math.isfinite(longest) else ""
    return f"It survived because sequences are short: {power(1 - worst.distance, run.length)}, and {ends}{would}."
