"""The verdict on a run whose training values are all finite: what its loss and its evaluations say, what its data and weights
did, which eigenvalues are outside the stability boundary, and why no state has overflowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.statuses import FINAL
from stablessm_core.verdict.causes.eigenvalue_overflow import overflow_budget
from stablessm_core.verdict.ending import Ending
from stablessm_core.verdict.evidence import evaluation_not_finite
from stablessm_core.verdict.finished_recurrence import recurrence
from stablessm_core.verdict.finished_weights import data_changed, gradients_are_zero, rate_jumped, weights_never_moved
from stablessm_core.verdict.formats import number, plural
from stablessm_core.verdict.inputs import Run, Source
from stablessm_core.verdict.sentences import Said, joined, said, sentence
from stablessm_core.verdict.timeline import crossed, evaluated, event, reactions, rose
from stablessm_core.verdict.words import against_best

WORSE = 3.0  # loss at the end divided by the loss at the start: at this ratio it ended far above its start
AS_CONSTANT = 0.97  # loss at the end divided by that of a constant prediction: from this share on, nothing was learned beyond it
AS_HIGH = 0.3  # share of the last losses at or above the median of the first ones, from which on the loss hardly fell
MUCH_LOWER = 0.8  # loss at the end divided by that at the start: below it, the loss fell, however much it scatters


def judge_finished(run: Run, source: Source, last: int) -> dict[str, Any]:
    """{sentences, events, evidence} of a run whose values up to step `last`, its last recorded one, are finite."""
    ending = Ending(run, source, last)
    worse = ended_above_start(ending)
    told = said(evaluation_lost(ending), worse, learned_nothing(ending) or loss_did_not_fall(ending))
    told += said(weights_never_moved(ending), gradients_are_zero(ending), data_changed(ending), rate_jumped(ending))
    if not worse and run.status not in FINAL:
        told += said(loss_is_high(ending))
    told += recurrence(ending)
    events = [crossed(run, one) for one in ending.firsts] + reactions(run) + evaluated(ending.evaluated)
    growth = ending.growth
    if growth is not None and growth.rose_at is not None:
        events.append(event(growth.rose_at, "loss_rose", rose(growth)))
    events.sort(key=lambda one: int(one["step"]))
    evidence = said(overflow_budget(run, ending.worst), evaluation_not_finite(ending.evaluated), losses_at_both_ends(ending))
    return {"sentences": told, "events": events, "evidence": [one.item for one in evidence]}


def begin(run: Run, last: int | None) -> str:
    """How the run stands, before a colon or as a sentence of its own."""
    match run.status:
        case "finished":
            return "Finished:"
        case "cancelled":
            return f"Cancelled at step {run.step:,}" + (":" if last is not None else ".")
        case "failed":
            why = f": {run.reason.rstrip('.')}." if run.reason else "."
            return f"Failed at step {run.step:,}{why}" + (f" At step {last:,}:" if last is not None else "")
    return "" if last is None else f"So far, at step {last:,}:"


def summary_of(start: str, sentences: list[Said]) -> str:
    """The sentences after a beginning such as "Finished:"."""
    text = joined(sentences)
    return f"{start} {text[:1].lower()}{text[1:]}".strip() if start.endswith(":") else f"{start} {text}".strip()


# ---- the loss ----


@sentence("eval/loss", holds="an evaluation gave a loss that is not finite, and every number of the training is finite")
def evaluation_lost(ending: Ending) -> str | None:
    bad = ending.evaluated
    if bad is None:
        return None
    what = "NaN" if math.isnan(bad[1]) else "infinite"
    every = "every recorded number" if ending.run.reported is not None else "every number"
    return f"The loss of the evaluation at step {bad[0]:,} is {what}, although {every} of the training is finite."


@sentence(
    names.TRAIN_LOSS,
    holds="the median of the last losses (10 rows, or a quarter of a shorter run) is above 3 x the first loss; if losses of the "
    "first rows are not all positive, above it by 2 x the larger of its size and their median distance from it",
)
def ended_above_start(ending: Ending) -> str | None:
    scale = _far_above(ending)
    if scale is None:
        return None
    start, end = scale
    times = (
        f", {number(end / start)} x its first value ({number(start)})" if start > 0 else f"; its first value was {number(start)}"
    )
    rows = 0 if ending.losses is None else len(ending.losses[1])
    what = f" is the median of its last {rows} recorded steps" if rows > 1 else f" at step {ending.last:,}"
    return f"The loss is far above its start: {number(end)}{what}{times}."


def _far_above(ending: Ending) -> tuple[float, float] | None:
    """(the first loss, the median of the last ones) if the loss ended far above its start."""
    if ending.losses is None:
        return None
    begun, ended = ending.losses
    start, end = float(begun[0]), float(np.median(ended))
    # losses around or below 0 are compared by their range
    scale = start if begun.min() > 0 else max(abs(start), float(np.median(np.abs(begun - start))))
    return (start, end) if end - start > (WORSE - 1) * scale else None


@sentence(names.TRAIN_LOSS, holds="the loss ended far above its start")
def losses_at_both_ends(ending: Ending) -> tuple[str, dict[str, float]] | None:
    both = _far_above(ending)
    if both is None:
        return None
    text = f"First recorded loss: {number(both[0])}. Median of the last recorded losses: {number(both[1])}."
    return text, {"loss": both[1], "loss_at_start": both[0]}


@sentence(
    names.TRAIN_LOSS, "environment.data.constant_loss",
    holds="at least 20 steps were trained and 8 rows recorded, and the median of the last losses is at least 0.97 x the loss "
    "of the best constant prediction, without being far above the start",
)  # fmt: skip
def learned_nothing(ending: Ending) -> str | None:
    constant = ending.constant_loss
    if constant is None or ending.losses is None or not ending.is_long or _far_above(ending):
        return None
    begun, ended = ending.losses
    end = float(np.median(ended))
    if not end >= AS_CONSTANT * constant:
        return None
    than = "no better than" if end >= constant else "about as good as"
    return (
        f"The model has learned nothing beyond a constant: its loss, {number(end)} at the end and "
        f"{number(float(np.median(begun)))} at the start (medians of {plural(len(ended), 'recorded step')}), is {than} that of "
        f"the best constant prediction ({number(constant)})."
    )


@sentence(
    names.TRAIN_LOSS,
    holds="at least 20 steps were trained and 8 rows recorded, the loss is not said to be that of a constant prediction, and "
    "the median of the last losses is below that of the first ones by at most 1 %, or by at most 5 % and half the range of the "
    "first ones, or by at most 20 % while 3 in 10 of the last losses are not below that median",
)  # fmt: skip
def loss_did_not_fall(ending: Ending) -> str | None:
    if ending.losses is None or not ending.is_long or _far_above(ending):
        return None
    begun, ended = ending.losses
    start, end = float(np.median(begun)), float(np.median(ended))
    spread = float(np.max(begun) - np.min(begun)) / 2
    as_high = float(np.mean(ended >= start)) >= AS_HIGH and end >= MUCH_LOWER * start > 0
    if end < start - max(0.01 * abs(start), min(spread, 0.05 * abs(start))) and not as_high:
        return None
    fell = "hardly fell" if end < start else "did not fall"
    return (
        f"The loss {fell}: its median was {number(start)} over the first {plural(len(begun), 'recorded step')} and "
        f"{number(end)} over the last {plural(len(ended), 'recorded step')}."
    )


@sentence(
    names.TRAIN_LOSS,
    holds="the run has not ended, its loss is not far above its start, and the last loss is at least 10 x its best",
)
def loss_is_high(ending: Ending) -> str | None:
    growth = ending.growth
    if growth is None or growth.rose_at is None:
        return None
    return f"The loss is {against_best(growth)}. It rose at step {growth.rose_at:,}."
