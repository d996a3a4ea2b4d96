"""The batch of a step held NaN or an infinity, or numbers far above usual, or only targets that the loss leaves out."""

from __future__ import annotations

import math

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.verdict.advice import CLIP, SKIP
from stablessm_core.verdict.batches import FAR
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes import changed_data
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import FLOAT32_LARGEST
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import WHICH, ended

NEAR = 0.8  # share of its budget limit from which an eigenvalue was about to overflow anyway
SIZES = (names.LARGEST_INPUT, names.LARGEST_TARGET)


def _find(case: Case) -> Answer | None:
    bad = case.bad
    if bad is None:
        return Answer(confidence="measured") if _ignored(case) else None
    if not bad.finite:
        return Answer(confidence="measured")
    alone = bad.since is None and _dies_without(case, bad.step)  # of batches that grow, the first one alone says nothing
    if case.lives("batches_scaled"):
        return None if alone else Answer(confidence="measured")
    if case.dies_soon("batches_scaled"):
        return None
    if alone or _about_to_overflow(case, bad.step):
        return None
    if bad.since is None and changed_data.find(case) is not None:
        return None  # not one batch, but all from a step on
    return Answer(confidence="measured")


def _ignored(case: Case) -> bool:
    """Whether every target of the fatal step is the class that the loss leaves out, and the loss is no number."""
    classes = None if case.autopsy is None else case.autopsy.classes
    return classes is not None and classes["count"] > 0 and classes["ignored"] == classes["count"] and case.fatal_loss is None


def _dies_without(case: Case, step: int) -> bool:
    """Whether the run dies as soon if only the batch of this step is left out."""
    one = None if case.autopsy is None else case.autopsy.counterfactual("batch_left_out")
    return one is not None and int(one["from_step"]) + 1 == step and case.dies_soon("batch_left_out")


def _about_to_overflow(case: Case, step: int) -> bool:
    """Whether an eigenvalue was already so far outside before the update of this step that a state was about to overflow."""
    worst = case.worst_at(step)
    return worst is not None and worst.budget is not None and worst.budget >= NEAR * case.run.limit_of(worst.layer)


@sentence(names.BATCH_NONFINITE, "alerts", "autopsy.batch", holds="the batch of the fatal step held a number that is not finite")
def batch_held_no_number(case: Case) -> str | None:
    bad = case.bad
    if bad is None or bad.finite:
        return None
    return (
        f"The data: {WHICH[bad.which]} of step {bad.step:,} held NaN or an infinity before anything was computed."
        f"{ended(case, bad.step)}"
    )


@sentence(
    *SIZES, "autopsy.batch",
    holds="the largest number of the batch is at least 10 x the median of the other recorded batches and 3 x that of every batch "
    "before, or 1e18 or more; and it is the last batch, or the loss never came back below 3 x its usual level, or, under SGD, at "
    "most 20 rows came after it",
)  # fmt: skip
def batch_far_above_usual(case: Case) -> str | None:
    bad = case.bad
    if bad is None or not bad.finite or bad.largest is None or bad.since is not None:
        return None
    part, largest = WHICH[bad.which].removeprefix("the "), number(bad.largest)
    if bad.usual is not None and 0 < FAR * bad.usual <= bad.largest:
        times = f"{number(bad.largest / bad.usual)} x {bad.against}"
        text = f"is far above usual. Its largest {part} is {largest}, {times}."
    else:
        squares = math.floor(FLOAT32_LARGEST / bad.largest**2)
        beyond = f"hold the sum of {squares + 1:,} such squares" if squares else "square it"
        text = f"has too large numbers. Its largest {part} is {largest}, and float32 cannot {beyond}."
    return f"The data: the batch of step {bad.step:,} {text}{ended(case, bad.step)}"


@sentence(
    *SIZES,
    holds="up to the last batch, the largest numbers grew in at least 4 steps without a break, tenfold or more and not in one "
    "step alone; or tenfold over the last 20 batches, in nine of ten steps; and the last is at least 10 x the median before",
)  # fmt: skip
def batches_grew(case: Case) -> str | None:
    bad = case.bad
    if bad is None or bad.since is None or bad.largest is None or bad.usual is None:
        return None
    part = WHICH[bad.which].removeprefix("the ")
    return (
        f"The data: the largest {part} grew {bad.growth}, from {number(bad.usual)} at step {bad.since:,} to "
        f"{number(bad.largest)} at the end.{ended(case, bad.since)}"
    )


@sentence(
    "autopsy.batch.classes",
    "train/loss",
    holds="every target of the batch is the class that the loss leaves out, and no finite loss of this step is recorded",
)
def every_target_left_out(case: Case) -> str | None:
    if not _ignored(case) or case.autopsy is None or case.autopsy.classes is None:
        return None
    return (
        f"The data: all {case.autopsy.classes['count']:,} targets of step {case.step:,} are the class that the loss leaves "
        "out, and the mean over no targets is 0 / 0."
    )


def _summary(case: Case, _answer: Answer) -> list[Said]:
    told = said(batch_held_no_number(case), batch_far_above_usual(case), batches_grew(case))
    return told or said(every_target_left_out(case))


def _advice(case: Case, _answer: Answer) -> list[Try]:
    bad = case.bad
    if bad is not None and not bad.finite:
        return [(dict(SKIP), "the run then leaves out a batch that holds NaN or an infinity; the data should be looked at too")]
    survived = bad is not None and bad.since is None and bad.step < case.step and _finite_at(case, bad.step)
    if not case.run.bounded_steps and survived and not case.run.grad_clip:
        return [(dict(CLIP), "clipping bounds what one batch can do; the data should be looked at too")]
    return []


def _finite_at(case: Case, step: int) -> bool:
    """Whether the loss and the gradient of this step were finite, so that only its update did harm."""
    here = case.scalars.step == step
    numbers = np.concatenate([case.scalars.loss[here], case.scalars.grad_norm[here]])
    return bool(len(numbers)) and bool(np.isfinite(numbers).all())


CAUSE = Cause(name="bad_input", label="the data", find=_find, summary=_summary, advice=_advice)
