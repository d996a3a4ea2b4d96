"""The step is finite in float64, and float32 could hold every result and its square: rounding in float32 broke it."""

from __future__ import annotations

from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import PASSES, number_of
from stablessm_core.verdict.sentences import Said, said, sentence


def _find(case: Case) -> Answer | None:
    if not _float32_could_hold_it(case):
        return None
    return Answer(confidence="measured")


def _float32_could_hold_it(case: Case) -> bool:
    autopsy = case.autopsy
    return autopsy is not None and autopsy.first is not None and autopsy.fits_float32 and not case.computes_in_half


@sentence(
    "autopsy.first_nonfinite", "autopsy.float64", "autopsy.modules",
    holds="the step is finite in float64, with the recorded loss within a tenth where that is finite; the result of every module "
    "there, and the input of the operation, is below 1e18; and the run does not compute in float16",
)  # fmt: skip
def finite_in_float64(case: Case) -> str | None:
    if not _float32_could_hold_it(case) or case.autopsy is None:
        return None
    first, repeat = case.autopsy.first or {}, case.autopsy.float64 or {}
    where = f" of {first['module']}" if first.get("module") else ""
    loss = number(number_of(repeat.get("loss")))
    return (
        f"Arithmetic: at step {case.step:,}, {first.get('operation')}{where} ({PASSES[str(first.get('pass'))]}) gave "
        f"{first.get('value')}, but in float64 the same step is finite, with loss {loss}. No result of a module exceeds "
        f"{number(case.autopsy.largest)} there, so float32 could hold each of them and its square."
    )


def _summary(case: Case, _answer: Answer) -> list[Said]:
    return said(finite_in_float64(case))


CAUSE = Cause(name="arithmetic", label="rounding in float32", find=_find, summary=_summary)
