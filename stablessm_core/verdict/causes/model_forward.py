"""The model's forward pass made the number from ordinary numbers, for example the logarithm of a negative one."""

from __future__ import annotations

import math

from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import number_of
from stablessm_core.verdict.sentences import Said, said, sentence

SCANS = ("scan_states", "scan_adjoints")  # a recurrence, whose states grow with its eigenvalues


def _find(case: Case) -> Answer | None:
    return Answer(confidence="measured") if _made_here(case) else None


def _made_here(case: Case) -> bool:
    autopsy = case.autopsy
    if autopsy is None or autopsy.place != "forward" or not autopsy.from_ordinary_numbers or case.computes_in_half:
        return False
    first = autopsy.first or {}
    if first.get("operation") in (*SCANS, "batch", "weights"):
        return False
    layer = case.measured_layer
    if layer is not None and case.contributes(case.worst):
        return False
    if case.risen:  # an explosion reaches such an operation in the end, too, and makes an infinity there
        return not _overflowed(first) and case.dies_soon("tenth_of_rate")
    if _fails_the_same_way(first, autopsy.float64) and not _overflowed(first):
        return True
    if _overflowed(first) and not case.updated_little and case.step > case.run.first_step:
        return False  # numbers that a large update made grow overflow in float64, too
    return not case.lives("tenth_of_rate") and not case.lives("recurrence_frozen")


def _overflowed(first: object) -> bool:
    """Whether the first number that is not finite is an infinity."""
    return isinstance(first, dict) and math.isinf(number_of(first.get("value")))


def _fails_the_same_way(first: object, repeat: object) -> bool:
    """Whether the step in float64 fails in the same operation of the same module."""
    if not isinstance(first, dict) or not isinstance(repeat, dict) or repeat.get("finite"):
        return False
    again = repeat.get("first_nonfinite") or {}
    return all(again.get(part) == first.get(part) for part in ("pass", "module", "operation"))


@sentence(
    "autopsy.first_nonfinite", "autopsy.float64",
    holds="an operation of the forward pass that is no scan made the number from finite numbers below 1e18; in a layer, no "
    "eigenvalue had used 0.3 of its budget limit; the run does not compute in float16; if the loss had risen to 10 x its best, "
    "the number is NaN and the run dies at most 5 steps later with a tenth of the rate, else no trial with a slower rate or a "
    "frozen recurrence lives, or the number is NaN and float64 fails in the same operation; an infinity also needs that the "
    "update before could move the weights by at most 0.1 x their norm",
)  # fmt: skip
def forward_made_it(case: Case) -> str | None:
    if not _made_here(case) or case.autopsy is None:
        return None
    first = case.autopsy.first or {}
    given = number_of(first.get("largest_input"))
    made = "" if math.isnan(given) else f" from numbers up to {number(given)}"
    where = first.get("module") or "the model"
    return (
        f"The model's forward pass made the first number that is not finite, at step {case.step:,}: {first.get('operation')} in "
        f"{where} gave {first.get('value')}{made}."
    )


@sentence("autopsy.float64", holds="the step in float64 fails in the same operation of the same module")
def precision_does_not_matter(case: Case) -> str | None:
    autopsy = case.autopsy
    if autopsy is None or not _fails_the_same_way(autopsy.first, autopsy.float64):
        return None
    return "In float64 the same operation fails, so its argument is at fault and not the precision."


def _summary(case: Case, _answer: Answer) -> list[Said]:
    return said(forward_made_it(case), precision_does_not_matter(case))


CAUSE = Cause(name="model_forward", label="the model's forward pass", find=_find, summary=_summary)
