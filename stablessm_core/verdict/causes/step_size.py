"""In continuous time, a step size dt ran away: states overflowed with every eigenvalue inside the boundary."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.advice import round_down
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.formats import bounded, number
from stablessm_core.verdict.measured import MODERATE
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.trouble import Trouble, update_before
from stablessm_core.verdict.words import eigenvalue_label, tensor_label

GREW = 100.0  # step size divided by its initial value: at this ratio, dt has run away
RAN_AWAY = 1e6  # the same without a sign that a state became too large


class StepSizes(NamedTuple):
    """The largest step size of a layer at the start and at the end, and the eigenvalue with the latter."""

    began: float
    now: float
    eigenvalue: int


def _find(case: Case) -> Answer | None:
    """If no state overflowed, a norm may have squared states that were too large. Then dt must have grown RAN_AWAY-fold, or the
    autopsy must show such numbers. A trial with frozen step sizes that dies too contradicts this cause."""
    if case.layer is None or not case.layer.continuous or (case.worst is not None and case.worst.outside):
        return None
    if case.dies_soon("recurrence_frozen"):
        return None  # freezing the recurrence freezes dt, too
    lives = case.lives("recurrence_frozen")
    if not case.run.bounded_steps and not lives:
        return None  # a single large gradient moves dt, too; only bounded steps move it step by step
    sizes = eigenvalues.largest_step_sizes(case.run, case.source, case.layer, case.step)
    large = case.state or case.largest >= MODERATE
    if sizes is None or (case.risen and not (case.run.bounded_steps and (case.state or lives))):
        return None  # a gradient that exploded moves dt, too; only the steps of AdamW do not grow with it
    if np.isfinite(sizes[1]) and not sizes[1] >= (GREW if large else RAN_AWAY) * sizes[0]:
        return None
    return Answer(
        confidence="measured" if lives else "inferred", layer=case.layer, eigenvalue=sizes[2], about=StepSizes(*sizes)
    )  # fmt: skip


@sentence(
    "ssm/{layer}/dt", "ssm/{layer}/boundary_distance",
    holds="the largest dt of a layer grew at least 100-fold since the first row (10^6-fold without a state that is not finite "
    "and without a result of 1e18), and no recorded eigenvalue is outside the boundary at the fatal row or the recorded row "
    "before",
)  # fmt: skip
def step_size_ran_away(case: Case, answer: Answer) -> str | None:
    if case.worst is not None and case.worst.outside:
        return None
    began, now, which = answer.about
    where = "" if answer.layer is None else f" ({eigenvalue_label(case.run, answer.layer.index, which)})"
    start = "" if math.isnan(began) else f" from at most {number(began)} at the start"
    inside = "" if case.worst is None else f" At step {case.worst.step:,} no recorded eigenvalue was outside the boundary."
    return (
        f"The step size dt ran away,{start} to {bounded(now)}{where}, and at step {case.step:,} "
        f"{tensor_label(case, first=False)} was no longer finite.{inside}"
    )


@sentence("ssm/{layer}/dt", holds="the largest dt of the layer is recorded in the first row and in the fatal one")
def largest_step_sizes(case: Case, sizes: StepSizes) -> tuple[str, dict[str, float | int]] | None:
    began, now, which = sizes
    if math.isnan(began):
        return None
    text = f"Largest step size dt: {number(began)} at the start, {bounded(now)} at step {case.step:,}."
    return text, {"dt_at_start": began, "dt": now, "eigenvalue": which}


def _summary(case: Case, answer: Answer) -> list[Said]:
    return said(step_size_ran_away(case, answer))


def _evidence(case: Case, answer: Answer) -> list[Said]:
    return said(largest_step_sizes(case, answer.about))


def _advice(case: Case, _answer: Answer) -> list[Try]:
    own = case.run.recurrent_lr
    reason = f"dt learns with the recurrent learning rate, here {number(own)}"
    if case.run.optimizer == "adamw":
        reason = f"under AdamW one step multiplies or divides dt by about e^{number(own)}, because log dt moves by the rate"
    return [
        ({"optimizer.recurrent_lr": round_down(min(own / 100, 0.01))}, reason),
        (
            {"model.reparameterization.time": "discrete", "model.eigenvalue_range": None},
            "discrete time has no step size that could run away",
        ),
    ]


def _begins(case: Case, answer: Answer) -> list[Trouble]:
    """The row in which a step size of the layer had grown GREW-fold since the first row, and stayed so large."""
    run, source, layer, end = case.run, case.source, answer.layer, case.step
    if layer is None:
        return []
    low = end - min(facts.LOSS_TAIL, max(1, eigenvalues.ROWS_OF_LAYER // max(1, layer.width))) * run.every
    first, rows = source.layer(layer.index, 0, run.first_step + run.recorded_every), source.layer(layer.index, max(1, low), end)
    if not len(first) or first.dt is None or rows.dt is None:
        return []
    usual = np.flatnonzero(~(rows.dt.max(axis=1) >= GREW * np.nanmax(first.dt[0])) & np.isfinite(rows.dt).all(axis=1))
    later = int(usual[-1]) + 1 if len(usual) else 0
    return [update_before(run, "fatal", rows.step, later)] if later < len(rows) else []


CAUSE = Cause(
    name="step_size",
    label="the step size dt ran away",
    find=_find,
    summary=_summary,
    evidence=_evidence,
    advice=_advice,
    tested_by="recurrence",
    begins=_begins,
    by_update=True,
)
