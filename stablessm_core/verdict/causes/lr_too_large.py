"""The first updates were fatal: the learning rate is far too large."""

from __future__ import annotations

import math

from stablessm_core.verdict import facts
from stablessm_core.verdict.advice import lower_lr
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import against_best, tensor_label

EARLY = 3  # maximum number of trained steps of a run that diverged because of its first updates
LARGE_UPDATE = 0.5  # minimum size of a large update, as a share of the norm of all weights
USUAL_LR = 0.01


def _find(case: Case) -> Answer | None:
    trained = case.step - case.run.first_step + 1
    if not 1 < trained <= EARLY or case.run.every > 1 or case.contributes(case.worst):
        return None
    if not (case.risen or large_first_updates(case)) or _cannot_be_to_blame(case):
        return None
    if case.lives("tenth_of_rate") is False and (case.lives("batch_left_out") or not large_first_updates(case)):
        return None  # a rate that suits every other batch is not too large
    second = "explosion" if case.risen else None
    return Answer(confidence="measured" if case.lives("tenth_of_rate") else "inferred", runner_up=second)


def _cannot_be_to_blame(case: Case) -> bool:
    """Whether the rate is not known, or its updates hardly changed the weights and no trial says otherwise."""
    small = case.update is not None and case.update <= facts.SMALL_UPDATE
    return math.isnan(case.lr) or (small and not case.lives("tenth_of_rate"))


def large_first_updates(case: Case) -> bool:
    """Whether one update could change the weights by half their norm or more; by the rate alone if the norm is unknown."""
    return case.update >= LARGE_UPDATE if case.update is not None else case.lr >= 1


@sentence(
    "train/loss", "optim/lr", "alerts", basis="inferred",
    holds="the second or third trained step was not finite, the rate is known, and one update could change the weights by "
    "half their norm (where their norm is not known, the rate was 1 or more), or the loss was 10 x its best and the updates "
    "were not small, or the run lives with a tenth of the rate; and the run does not die with a tenth of the rate while it lives "
    "without the batch",
)  # fmt: skip
def first_updates_were_fatal(case: Case) -> str:
    trained = case.step - case.run.first_step + 1
    size = "" if case.update is None else f" One update could change the weights by about {number(case.update)} x their norm."
    risen = f" The loss was {against_best(case.growth)}." if case.growth is not None and case.risen else ""
    return (
        f"The learning rate {number(case.lr)} is far too large: {tensor_label(case, first=False)} was no longer finite in step "
        f"{trained} of the training.{risen}{size}"
    )


def _summary(case: Case, _answer: Answer) -> list[Said]:
    return said(first_updates_were_fatal(case))


def _advice(case: Case, _answer: Answer) -> list[Try]:
    usual = min(case.run.lr / 100, USUAL_LR)
    why = f"learning rate {number(case.run.lr)} was fatal at step {case.step:,}; {number(usual)} is a usual rate"
    return [lower_lr(usual, why)]


CAUSE = Cause(
    name="lr_too_large", label="a learning rate far too large", find=_find, summary=_summary, advice=_advice, tested_by="rate",
    by_update=True,
)  # fmt: skip
