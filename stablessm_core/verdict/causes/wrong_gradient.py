"""The backward pass gave a gradient that disagrees with its loss, and this gradient threw the weights.

The autopsy compares the gradient with the slope of the loss itself. A slope counts only if it has converged
(`stablessm_core.autopsy.gradient`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stablessm_core.verdict import facts
from stablessm_core.verdict.advice import CLIP
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import WrongGradient
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import ended


def _find(case: Case) -> Answer | None:
    autopsy = case.autopsy
    if autopsy is None:
        return None
    wrong = autopsy.wrong_gradient
    if wrong is not None and not case.computes_in_half and not case.half_losses and _threw(case, wrong):
        return Answer(confidence="measured", about=wrong)
    return Answer(confidence="measured") if _made_in_a_layer(case) else None


def _threw(case: Case, wrong: WrongGradient) -> bool:
    """Whether the wrong gradient can have thrown the weights: steps of AdamW do not grow with a constant factor."""
    if not case.run.bounded_steps:
        return True
    return facts.norm_over_usual(case.scalars, wrong.step) >= facts.SPIKE


def is_in_a_block(first: Mapping[str, Any]) -> bool:
    return first.get("layer") is not None or str(first.get("module") or "").startswith("blocks.")


def _made_in_a_layer(case: Case) -> bool:
    """Whether the backward pass of a layer made the number that is not finite from ordinary numbers, in float64 too."""
    autopsy = case.autopsy
    if autopsy is None or autopsy.place != "backward" or not is_in_a_block(autopsy.first or {}):
        return False
    fails = autopsy.float64 is not None and not autopsy.float64.get("finite")
    return fails and autopsy.from_ordinary_numbers and not case.computes_in_half


@sentence(
    "autopsy.gradient",
    holds="in float64, the slope of the loss along the gradient converged, and the norm of the gradient differs from it by more "
    "than a tenth of the larger one",
)
def gradient_disagrees(case: Case, wrong: WrongGradient) -> str | None:
    if wrong.differs is not None:
        return None
    return (
        f"The backward pass gave a wrong gradient at step {wrong.step:,}: its norm is {number(wrong.norm)}, but along it the "
        f"loss changes by {number(wrong.slope)} per unit of distance. A right gradient has equal numbers."
        f"{ended(case, wrong.step)}"
    )


@sentence(
    "autopsy.gradient", "optim/grad_norm",
    holds="the recorded norm differs by more than a tenth from that of the same step without the run's kernels, which equals the "
    "slope of the loss within a twentieth; or the norm of training mode differs from its slope by more than a tenth, and that of "
    "evaluation mode by less than a twentieth",
)  # fmt: skip
def gradient_differs(case: Case, wrong: WrongGradient) -> str | None:
    if wrong.differs is None:
        return None
    where = {"kernels": "the run's compiled kernels", "training_mode": "training mode"}[wrong.differs]
    slope = f"along it the loss changes by {number(wrong.slope)} per unit of distance"
    right = f"but {slope}. In evaluation mode, norm and slope agree."
    if wrong.differs == "kernels":
        right = f"but without these kernels it is {number(wrong.repeated)}, and {slope}."
    return (
        f"The backward pass of {where} gave a wrong gradient at step {wrong.step:,}: its norm is {number(wrong.norm)}, {right}"
        f"{ended(case, wrong.step)}"
    )


@sentence(
    "autopsy.first_nonfinite", "autopsy.float64",
    holds="the backward pass of a layer made the number from finite numbers below 1e18, and the step fails in float64 too",
)  # fmt: skip
def backward_of_a_layer(case: Case) -> str | None:
    if not _made_in_a_layer(case) or case.autopsy is None:
        return None
    first = case.autopsy.first or {}
    return (
        f"The backward pass of {first['module']} made the first number that is not finite, at step {case.step:,}: "
        f"{first.get('value')} in {first.get('operation')}."
    )


def _summary(case: Case, answer: Answer) -> list[Said]:
    if answer.about is None:
        return said(backward_of_a_layer(case))
    return said(gradient_disagrees(case, answer.about), gradient_differs(case, answer.about))


def _advice(case: Case, answer: Answer) -> list[Try]:
    if answer.about is None or case.run.grad_clip or not math.isfinite(answer.about.norm):
        return []
    why = f"clipping bounds a gradient like that of step {answer.about.step:,}, until the backward pass is right"
    return [(dict(CLIP), why)]


CAUSE = Cause(name="wrong_gradient", label="a wrong backward pass", find=_find, summary=_summary, advice=_advice)
