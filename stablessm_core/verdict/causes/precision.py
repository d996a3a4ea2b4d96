"""float16 numbers end at 65,504: the run, its loss or a layer computes in float16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import CAST_TO_HALF, MODERATE, PASSES, number_of
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import tensor_label


def _find(case: Case) -> Answer | None:
    if _made_in_half(case):
        return Answer(confidence="measured", runner_up="explosion" if case.risen else None)
    guessed = (case.computes_in_half or case.half_losses) and not case.contributes(case.worst)
    if not guessed or (case.autopsy is not None and case.autopsy.first is not None and not case.half_losses):
        return None
    return Answer(confidence="inferred", runner_up="explosion" if case.risen else None)


def _made_in_half(case: Case) -> bool:
    """Whether an operation in float16 made the number that is not finite from numbers that float32 holds."""
    autopsy = case.autopsy
    first = None if autopsy is None else autopsy.first
    if autopsy is None or first is None or _fails_in_float64(first, autopsy.float64):
        return False
    cast = "copy" in str(first.get("operation")) or case.half_losses
    half = first.get("dtype") == "float16" or (first.get("dtype") is None and cast and autopsy.place == "loss")
    return (half and CAST_TO_HALF <= autopsy.input_of_first < MODERATE) or (
        first.get("dtype") == "float16" and autopsy.input_of_first < MODERATE
    )


def _fails_in_float64(first: Mapping[str, Any], repeat: Mapping[str, Any] | None) -> bool:
    """Whether the same operation of the same module fails with a float64 result, too, so that its argument is at fault."""
    again = (repeat or {}).get("first_nonfinite") or {}
    same = all(again.get(part) == first.get(part) for part in ("pass", "module", "operation"))
    return same and again.get("dtype") == "float64"


@sentence(
    "autopsy.first_nonfinite",
    holds="the first result that is not finite is a float16 number, and its operation got finite numbers below 1e18; where "
    "the type is not known, a copy in the loss function, or any operation of it if all losses are float16 numbers, got 65,504 "
    "or more; and the same operation does not fail with a float64 result",
)
def made_in_float16(case: Case) -> str | None:
    if not _made_in_half(case) or case.autopsy is None:
        return None
    first = case.autopsy.first or {}
    module = f" in {first['module']}" if first.get("module") else ""
    return (
        f"Half precision: at step {case.step:,}, {first.get('operation')}{module} ({PASSES[str(first.get('pass'))]}) gave "
        f"{first.get('value')} in float16, from numbers up to {number(number_of(first.get('largest_input')))}. float16 numbers "
        "end at 65,504, and float32 numbers at 3.4e38."
    )


@sentence(
    "train/loss",
    basis="inferred",
    holds="each of at least 8 different recorded losses is a float16 number, at most half of them are bfloat16 numbers, and "
    "no eigenvalue had used 0.3 of its budget limit",
)
def losses_are_float16(case: Case) -> str | None:
    if not case.half_losses:
        return None
    return (
        f"Half precision: every recorded loss is a float16 number, and these end at 65,504. {tensor_label(case)} became "
        f"{_became(case)} at step {case.step:,}{_last(case)}. The loss function should compute in float32, which "
        "ends at 3.4e38."
    )


@sentence(
    "train.precision",
    holds="the program says that it computes in float16, no autopsy found where the number arose, the losses are not all "
    "float16 numbers, and no eigenvalue had used 0.3 of its budget limit",
)
def run_is_float16(case: Case) -> str | None:
    if not case.computes_in_half:
        return None
    return (
        f"Half precision: the run computes in float16, whose numbers end at 65,504. {tensor_label(case)} became "
        f"{_became(case)} at step {case.step:,}{_last(case)}."
    )


@sentence(
    "train/loss",
    basis="inferred",
    holds="each of at least 8 different recorded losses is a float16 number, and at most half of them are bfloat16 numbers",
)
def count_of_float16_losses(case: Case) -> tuple[str, dict[str, int]] | None:
    if not case.half_losses:
        return None
    losses = case.scalars.loss[(case.scalars.step < case.step) & np.isfinite(case.scalars.loss)]
    count = len(np.unique(losses))
    text = f"All of the {count} different recorded losses are float16 numbers; of float32 numbers, one in 8,192 is."
    return text, {"losses": count}


def _became(case: Case) -> str:
    return {"NaN": "NaN", "Infinity": "infinite", "-Infinity": "minus infinite"}.get(case.value or "", "not finite")


def _last(case: Case) -> str:
    return "" if case.growth is None else f" after {number(case.growth.loss, 5)} at step {case.growth.step:,}"


def _summary(case: Case, answer: Answer) -> list[Said]:
    if answer.confidence == "measured":
        return said(made_in_float16(case))
    return said(losses_are_float16(case)) or said(run_is_float16(case))


def _evidence(case: Case, _answer: Answer) -> list[Said]:
    return said(count_of_float16_losses(case))


CAUSE = Cause(name="precision", label="half precision", find=_find, summary=_summary, evidence=_evidence)
