"""The verdict on a run whose values are all finite: which eigenvalues are outside the stability boundary, and why no state has
overflowed."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.telemetry.stability import overflow_length
from stablessm_core.telemetry.statuses import FINAL
from stablessm_core.verdict import facts
from stablessm_core.verdict.evidence import budget
from stablessm_core.verdict.inputs import Run, Source
from stablessm_core.verdict.timeline import crossed, event, rolled_back
from stablessm_core.verdict.words import eigenvalue_label, number, power


def judge_finite(run: Run, source: Source) -> dict[str, Any]:
    """{summary, events, evidence, step}. step: the last recorded step, or None if no step is recorded."""
    scalars = source.scalars(max(1, run.step - run.every), run.step)
    last = int(scalars.step[-1]) if len(scalars) else None
    if last is None:
        return {
            "summary": _begin(run, None) or "Nothing is recorded yet.",
            "events": rolled_back(run),
            "evidence": [],
            "step": None,
        }
    worst = facts.worst_eigenvalue(run, source, last)
    firsts = sorted(
        (one for layer in run.layers if (one := facts.first_crossing(run, source, layer)) is not None), key=lambda one: one.step
    )
    events, evidence = [crossed(run, one) for one in firsts] + rolled_back(run), budget(run, worst)
    summary = f"{_begin(run, last)} {_recurrence(run, source, worst, firsts, last)}"
    growth = facts.loss_growth(source, source.scalars(last - facts.LOSS_TAIL * run.every, last), last + 1)
    if growth is not None and growth.rose_at is not None and run.status not in FINAL:
        summary += (
            f" The loss is {number(growth.times)} times its best, more than {facts.ROSE:.0f} times since step {growth.rose_at:,}."
        )
        events.append(
            event(growth.rose_at, "loss_rose", f"The loss passed {facts.ROSE:.0f} times its best, {number(growth.best)}.")
        )
        text = f"Loss {number(growth.loss)} at step {growth.step:,}; best {number(growth.best)} at step {growth.best_step:,}."
        evidence.append({"text": text, "loss": growth.loss, "best": growth.best, "times_best": growth.times})
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


def _recurrence(run: Run, source: Source, worst: facts.Worst | None, firsts: list[facts.Crossing], last: int) -> str:
    if worst is None:
        return "where its eigenvalues are is not recorded."
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    if not worst.outside:
        text = (
            f"all {run.eigenvalues:,} eigenvalues are inside the stability boundary, the nearest ({where}) at distance "
            f"{number(worst.distance)}."
        )
        return text + (f" Some had been outside before, first at step {firsts[0].step:,}." if firsts else "")
    layer = worst.layers_outside[0] if len(worst.layers_outside) == 1 else worst.layer
    low, high = source.steps_outside(layer, last)
    many = f"{low:,}" if low == high else f"at least {low:,}"
    recorded = "steps" if run.every == 1 else f"recorded steps, every {run.every}th,"
    of_layer = f" in layer {layer}" if len(worst.layers_outside) > 1 else ""
    count = f"{worst.outside:,}" if worst.known >= run.eigenvalues else f"at least {worst.outside:,}"
    first = f" from step {firsts[0].step:,} on" if firsts else ""
    size = worst.value if worst.value is not None else 1 - worst.distance
    return (
        f"{count} of {run.eigenvalues:,} eigenvalues are outside the stability boundary, some of them{of_layer} on {many} "
        f"{recorded}{first}. The furthest, {where}, is at {number(size)}. {_fits(run, worst)}"
    )


def _fits(run: Run, worst: facts.Worst) -> str:
    """Why an eigenvalue outside the boundary does not make a state overflow, and the sequence length at which it would."""
    if run.length is None or worst.budget is None:
        return ""
    longest = overflow_length(worst.distance, run.limit_of(worst.layer))
    would = f"; at length {math.ceil(longest):,} or more it would not" if math.isfinite(longest) else ""
    room = (
        "float32, which ends at 10^38"
        if run.limit_of(worst.layer) == 1
        else "float32, where the normalisation squares what may reach 10^19"
    )
    if worst.budget >= run.limit_of(worst.layer):
        return f"Its overflow budget is {number(worst.budget)}: a state of white input would overflow."
    return f"Numbers are finite because {power(1 - worst.distance, run.length)} fits into {room}{would}."
