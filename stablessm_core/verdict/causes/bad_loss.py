"""The loss function made a number that is not finite from ordinary numbers, or it falls without a bound."""

from __future__ import annotations

import math

from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.causes.wrong_gradient import is_in_a_block
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import PASSES, number_of
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import ended


def _find(case: Case) -> Answer | None:
    if _made_here(case):
        return Answer(confidence="measured")
    return Answer(confidence="inferred", runner_up="explosion") if case.descent is not None else None


def _made_here(case: Case) -> bool:
    autopsy = case.autopsy
    if autopsy is None or autopsy.place not in ("loss", "backward") or case.half_losses or case.computes_in_half:
        return False
    first = autopsy.first or {}
    if not autopsy.from_ordinary_numbers or (autopsy.place == "backward" and is_in_a_block(first)):
        return False
    fails_in_float64 = autopsy.float64 is not None and not autopsy.float64.get("finite")
    if autopsy.place == "backward":
        return fails_in_float64
    return not autopsy.fits_float32 or not first.get("module")


@sentence(
    "autopsy.first_nonfinite", "autopsy.float64",
    holds="the first number that is not finite was made by the loss function, or by the backward pass outside the layers, "
    "from numbers below 1e18",
)  # fmt: skip
def loss_made_it(case: Case) -> str | None:
    if not _made_here(case) or case.autopsy is None:
        return None
    first = case.autopsy.first or {}
    backward = first.get("pass") == "backward"
    where = PASSES["backward" if backward else "loss"]
    given = number_of(first.get("largest_input"))
    made = "" if math.isnan(given) else f", from numbers up to {number(given)}"
    loss = f" The loss itself was finite: {number(case.fatal_loss)}." if backward and case.fatal_loss is not None else ""
    return (
        f"The {where} made the first number that is not finite, at step {case.step:,}: {first.get('value', 'NaN')} in "
        f"{first.get('operation', where)}{made}.{loss}"
    )


@sentence(
    "train/loss", basis="inferred",
    holds="the loss is negative, the lowest so far and at least 10 x as far from 0 as in the first half of its rows, and in "
    "each of the last 3 rows it fell from 0 or above to below 0, or to more than twice its distance from 0",
)  # fmt: skip
def loss_falls_without_bound(case: Case) -> str | None:
    fall = case.descent
    if fall is None:
        return None
    each = "step" if case.run.every == 1 else "recorded step"
    return (
        f"The loss fell without a bound: from {number(fall.began)} at step {fall.since:,} to {number(fall.loss)} at step "
        f"{fall.step:,}, more in each {each}. Training follows a loss that falls without a bound until numbers overflow."
        f"{ended(case, fall.since)}"
    )


def _summary(case: Case, _answer: Answer) -> list[Said]:
    return said(loss_made_it(case)) or said(loss_falls_without_bound(case))


CAUSE = Cause(name="bad_loss", label="the loss function", find=_find, summary=_summary)
