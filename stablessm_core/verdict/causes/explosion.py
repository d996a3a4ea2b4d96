"""The whole training exploded: the loss rose far above its best, or true results outgrew float32."""

from __future__ import annotations

import math

from stablessm_core.verdict.advice import against_explosion
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import FLOAT32_LARGEST, MODERATE
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import against_best, tensor_label


def _find(case: Case) -> Answer | None:
    if case.state and case.worst is not None and case.worst.outside and not case.dies_soon("recurrence_frozen"):
        return None  # a state overflowed whose eigenvalue is outside, but not far enough: nothing explains it
    outgrew = case.largest >= MODERATE and bool(case.lives("tenth_of_rate"))
    if not case.risen and not outgrew:
        return None
    lives_frozen = bool(case.lives("recurrence_frozen"))  # then the recurrence has a part in it, and more than one cause fits
    measured = (
        case.is_tested and not lives_frozen and (outgrew or case.dies_soon("recurrence_frozen") or case.largest >= MODERATE)
    )
    unproven = "inferred" if case.is_tested else "cannot_tell"  # a wrong gradient or a changed loss leaves the same rows
    return Answer(confidence="measured" if measured else unproven, runner_up=_second(case))


def _second(case: Case) -> str | None:
    if case.lives("batch_left_out") or case.run.every > 1:
        return "bad_input"
    if case.contributes(case.worst) or (case.lives("recurrence_frozen") and case.firsts):
        return "eigenvalue_overflow"
    return None if case.lives("tenth_of_rate") is False or not case.risen else "lr_too_large"


@sentence("train/loss", holds="the loss of the last finite row was at least 10 x its best")
def training_exploded(case: Case) -> str | None:
    growth = case.growth
    if growth is None or not case.risen:
        return None
    since = f" from step {growth.rose_at:,} on" if growth.rose_at else ""
    return (
        f"The whole training exploded{since}: at step {growth.step:,} the loss was {against_best(growth)}, and at step "
        f"{case.step:,} {tensor_label(case, first=False)} was no longer finite."
    )


@sentence(
    "autopsy.modules", "autopsy.float64", "autopsy.counterfactuals",
    holds="the loss had not risen to 10 x its best, the result of a module in the fatal step is 1e18 or more (in float64, if "
    "that was measured), and the run lives with a tenth of the learning rate",
)  # fmt: skip
def numbers_exploded(case: Case) -> str | None:
    if case.risen or not case.largest >= MODERATE:
        return None
    if case.largest > FLOAT32_LARGEST:
        limit = f"float32, which ends at {number(FLOAT32_LARGEST)}, cannot hold them."
    elif case.largest**2 > FLOAT32_LARGEST:
        limit = f"float32, which ends at {number(FLOAT32_LARGEST)}, cannot square them."
    else:
        limit = f"The squares of {math.floor(FLOAT32_LARGEST / case.largest**2) + 1:,} such numbers, added, exceed float32."
    return f"The numbers of the model exploded: at step {case.step:,} they reached {number(case.largest)}. {limit}"


@sentence(
    "ssm/{layer}/boundary_distance",
    holds="a recorded eigenvalue was outside the boundary, and at the fatal row, or the recorded row before, the overflow "
    "budget of the worst one is below the limit of its layer",
)  # fmt: skip
def outside_without_overflow(case: Case) -> str | None:
    worst = case.worst
    if not case.firsts or worst is None or worst.budget is None or worst.budget >= case.run.limit_of(worst.layer):
        return None
    return (
        f"An eigenvalue was outside the stability boundary, first at step {case.firsts[0].step:,}, but at step {worst.step:,} "
        "none was far enough outside to overflow a state."
    )


@sentence(
    "ssm/{layer}/boundary_distance",
    holds="every recorded distance of the layers that must stay inside is 0 or more, and one of the end is known",
)
def never_outside(case: Case) -> str | None:
    if case.firsts or case.worst is None or case.worst.outside:
        return None
    return "No recorded eigenvalue was ever outside the stability boundary."


@sentence(
    "train/loss",
    holds="the loss of the last finite row was at least 10 x its best, and no autopsy confirmed the gradient or tried a tenth of "
    "the rate",
)
def rows_fit_three_causes(case: Case) -> str | None:
    if not case.risen or case.is_tested:
        return None
    return (
        "The recorded numbers cannot tell whether the learning rate was too large, the gradient was wrong or the loss function "
        "changed."
    )


def _summary(case: Case, _answer: Answer) -> list[Said]:
    return said(
        training_exploded(case),
        numbers_exploded(case),
        outside_without_overflow(case),
        never_outside(case),
        rows_fit_three_causes(case),
    )


CAUSE = Cause(
    name="explosion",
    label="the whole training exploded",
    find=_find,
    summary=_summary,
    advice=lambda case, _answer: against_explosion(case),
    tested_by="recurrence",
)
