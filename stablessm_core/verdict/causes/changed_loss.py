"""The loss function changed its scale, its sign or its state: the same outputs have another loss than a step before.

The autopsy computes a yardstick of the same outputs and targets, the mean squared error or the cross entropy, which cannot have
changed (`findings.onset`).
"""

from __future__ import annotations

import math

from stablessm_core.verdict.advice import CLIP
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.levels import CALM
from stablessm_core.verdict.measured import Autopsy, Onset
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import ended

ROUNDING = 1e-5  # relative difference up to which two losses of the same outputs may differ by rounding
CLEARLY = 0.1  # the same, at which the state of the loss function matters
STEEP = 10.0  # logarithm of the change of a loss divided by that of its yardstick: no usual loss is so steep
CHANGED = 10.0  # the loss divided by its yardstick, against the same a step before: at this ratio the loss function changed


def _find(case: Case) -> Answer | None:
    onset = None if case.autopsy is None else case.autopsy.onset
    if onset is not None and _gives_another(onset, CLEARLY):
        return Answer(confidence="measured", about=onset)
    if case.autopsy is not None and case.autopsy.control_step is not None and not _named_by_operation(case.autopsy):
        return Answer(confidence="inferred", runner_up="explosion" if case.risen else None)
    if onset is None or not _usual(onset):
        return None
    scale, sign = _scale(onset), onset.loss * onset.loss_before < 0 and min(abs(onset.loss), abs(onset.loss_before)) > 0
    if not (scale >= CHANGED or scale <= 1 / CHANGED or (sign and onset.yardstick > 0)):
        return None
    return Answer(confidence="measured", about=onset)


def _named_by_operation(autopsy: Autopsy) -> bool:
    """Whether the operation that made the first number that is not finite says more than trials that cannot be compared."""
    return autopsy.place in ("loss", "backward") and autopsy.from_ordinary_numbers


def _gives_another(onset: Onset, tolerance: float) -> bool:
    """Whether the loss function, asked twice about the same outputs, gave losses that differ by more than this share."""
    return not math.isnan(onset.loss_again) and not math.isclose(onset.loss, onset.loss_again, rel_tol=tolerance)


def _usual(onset: Onset) -> bool:
    """Whether the yardstick and the outputs of the step were like those of the step before, and everything is finite. A loss may
    be a steep function of its yardstick, so its logarithm must have changed STEEP times as much."""
    known = (onset.loss, onset.loss_before, onset.yardstick, onset.yardstick_before, onset.output, onset.output_before)
    if not all(math.isfinite(x) for x in known) or onset.yardstick <= 0 or onset.yardstick_before <= 0:
        return False
    yardstick = onset.yardstick / onset.yardstick_before
    output = onset.output / onset.output_before if onset.output_before else math.inf
    if not (1 / CALM <= yardstick <= CALM and 1 / CALM <= output <= CALM):
        return False
    if onset.loss * onset.loss_before <= 0:
        return True
    return abs(math.log(onset.loss / onset.loss_before)) >= STEEP * abs(math.log(yardstick))


def _scale(onset: Onset) -> float:
    """By which factor the loss changed against its yardstick."""
    before = abs(onset.loss_before) / onset.yardstick_before
    return abs(onset.loss) / onset.yardstick / before if before > 0 else math.inf


@sentence(
    "autopsy.onset", "train/loss",
    holds="the yardstick and the largest output of the step are within 3 x those of the step before; and the loss has the other "
    "sign, or differs from its yardstick by 10 x more than before while its logarithm changed 10 x as much as the yardstick's",
)  # fmt: skip
def same_outputs_another_loss(case: Case, onset: Onset) -> str | None:
    if not _usual(onset) or (1 / CHANGED < _scale(onset) < CHANGED and onset.loss * onset.loss_before > 0):
        return None
    return (
        f"The loss function changed at step {onset.step:,}: the loss went from {number(onset.loss_before)} to "
        f"{number(onset.loss)}, while the {onset.yardstick_name} of the same outputs and targets went from "
        f"{number(onset.yardstick_before)} to {number(onset.yardstick)}.{ended(case, onset.step)}"
    )


@sentence(
    "autopsy.onset", holds="the loss function gave two losses for the same outputs that differ by more than 1e-5 of their size"
)
def loss_keeps_a_state(onset: Onset) -> str | None:
    if not _gives_another(onset, ROUNDING):
        return None
    return (
        f"Asked twice about the outputs of step {onset.step:,}, the loss function gave {number(onset.loss, 6)} and "
        f"{number(onset.loss_again, 6)}, so it keeps a state or draws random numbers."
    )


@sentence(
    "autopsy.counterfactuals",
    holds="trained again from the same state, with the same batches and random numbers, the unchanged run did not die at the "
    "fatal step, although its replay had given the recorded bits",
)
def control_differs(case: Case) -> str | None:
    step = None if case.autopsy is None else case.autopsy.control_step
    if step is None:
        return None
    ends = "lives" if step < 0 else f"dies at step {step:,}"
    return (
        f"Trained again from the same state, the unchanged run {ends}, not at step {case.step:,}. Its batches and random "
        "numbers were the same, so its loss function or its model keeps a state that no checkpoint holds."
    )


def _summary(case: Case, answer: Answer) -> list[Said]:
    if answer.about is None:
        return said(control_differs(case))
    return said(same_outputs_another_loss(case, answer.about)) or said(loss_keeps_a_state(answer.about))


def _evidence(_case: Case, answer: Answer) -> list[Said]:
    return said(None if answer.about is None else loss_keeps_a_state(answer.about))


def _advice(case: Case, answer: Answer) -> list[Try]:
    if answer.about is None or case.run.bounded_steps or case.run.grad_clip or answer.about.step >= case.step:
        return []
    why = f"clipping bounds what the loss of step {answer.about.step:,} can do, until the loss function is right"
    return [(dict(CLIP), why)]


CAUSE = Cause(
    name="changed_loss", label="the loss function changed", find=_find, summary=_summary, evidence=_evidence, advice=_advice
)
