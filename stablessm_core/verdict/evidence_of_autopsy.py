"""The evidence that an autopsy measured: the first number that is not finite, the step in float64, the gradient, the trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stablessm_core.autopsy.changes import CHANGES
from stablessm_core.verdict.case import SOON, Case
from stablessm_core.verdict.formats import bounded, number
from stablessm_core.verdict.measured import FLOAT32_LARGEST, PASSES, SAME_NORM, Autopsy, number_of
from stablessm_core.verdict.sentences import Said, said, sentence

Numbers = dict[str, Any]
FAILS_TO_SQUARE = 1e18


def autopsied(case: Case) -> list[Said]:
    autopsy = case.autopsy
    if autopsy is None:
        return []
    items = said(first_number_not_finite(autopsy), norm_squares(autopsy), step_in_float64(autopsy))
    items += said(gradient_agrees(autopsy), gradient_not_proved(autopsy), training_keeps_a_state(autopsy))
    tried = (autopsy.counterfactual(change) for change in CHANGES)
    items += said(*(trial(autopsy, one) for one in tried if one is not None), trials_not_comparable(autopsy))
    return items


@sentence("autopsy.first_nonfinite", holds="the autopsy found the first result that is not finite")
def first_number_not_finite(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    first, step = autopsy.first, int(autopsy.findings["step"])
    if first is None:
        return None
    value, operation, where = first.get("value"), str(first.get("operation")), PASSES[str(first["pass"])]
    if operation == "batch":
        return f"The batch of step {step:,} held {value} before anything was computed.", {"step": step, "pass": first["pass"]}
    module = f" in {first['module']}" if first.get("module") and first["module"] != first["pass"] else ""
    given, before = number_of(first.get("largest_input")), number_of(first.get("largest_before"))
    made = "" if math.isnan(given) else f", from numbers up to {number(given)}"
    largest = "" if math.isnan(before) or before == given else f" The largest number before was {number(before)}."
    text = (
        f"The first number that is not finite at step {step:,} is {value}, made by {operation}{module} ({where}){made}.{largest}"
    )
    return text, {"step": step, "pass": first["pass"], "module": first.get("module")}


@sentence("autopsy.first_nonfinite", basis="inferred", holds="a norm made the number from inputs of 1e18 or more")
def norm_squares(autopsy: Autopsy) -> str | None:
    if "norm" not in str((autopsy.first or {}).get("operation")) or not autopsy.input_of_first >= FAILS_TO_SQUARE:
        return None
    return "This norm squares its input. It is where the overflow shows, and not why the numbers were so large."


@sentence("autopsy.float64", holds="the autopsy repeated the step in float64")
def step_in_float64(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    repeat, step, largest = autopsy.float64, int(autopsy.findings["step"]), autopsy.largest
    if repeat is None:
        return None
    if repeat.get("finite"):
        text = f"In float64, step {step:,} is finite: its loss is {number(number_of(repeat.get('loss')))}"
        if largest > FLOAT32_LARGEST:
            text += f" and its largest number {bounded(largest)}, more than float32 can hold ({number(FLOAT32_LARGEST)})"
        elif not math.isnan(largest):
            text += f" and the largest result of a module {number(largest)}"
        text += "."
    else:
        text = f"In float64, step {step:,} is not finite either."
    narrow = repeat.get("narrow") or ()
    if narrow:
        text += f" These operations did not compute in float64: {', '.join(map(str, list(narrow)[:3]))}."
    return text, {"step": step, "finite": bool(repeat.get("finite")), "largest": largest}


@sentence(
    "autopsy.gradient",
    holds="in float64, the slope of the loss along the gradient converged, and equals the norm of the gradient within a "
    "twentieth",
)  # fmt: skip
def gradient_agrees(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    one = autopsy.findings.get("gradient") or {}
    if not autopsy.gradient_agrees:
        return None
    step, norm, slope, recorded = int(one["step"]), *(number_of(one.get(name)) for name in ("norm", "slope", "recorded"))
    other = f" The run recorded the norm {number(recorded)}." if abs(recorded - norm) > SAME_NORM * norm else ""
    text = (
        f"In float64, the gradient of step {step:,} agrees with the loss: its norm is {number(norm)}, and the loss changes by "
        f"{number(slope)} per unit of distance along it.{other}"
    )
    return text, {"step": step, "norm": norm, "slope": slope}


@sentence(
    "autopsy.gradient",
    holds="the slope of the loss along the gradient did not converge, so the gradient was neither confirmed nor refuted",
)
def gradient_not_proved(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    one = autopsy.findings.get("gradient") or {}
    if not one or one.get("converged") or "converged" not in one:
        return None
    step, norm = int(one["step"]), number_of(one["norm"])
    text = (
        f"Whether the gradient of step {step:,}, with norm {number(norm)}, is right could not be measured: the slopes of the "
        "loss over different distances along it disagree, or rounding hides them."
    )
    return text, {"step": step, "norm": norm}


@sentence("autopsy.hidden_state", holds="the task gave two answers to the same question")
def training_keeps_a_state(autopsy: Autopsy) -> str | None:
    state = autopsy.findings.get("hidden_state")
    return str(state) if state else None


@sentence(
    "autopsy.counterfactuals", holds="the trial ended, and the trials can be compared with the run, or it is the unchanged one"
)
def trial(autopsy: Autopsy, one: Mapping[str, Any]) -> tuple[str, Numbers] | None:
    if not autopsy.comparable and one["change"] != "unchanged":
        return None
    how = CHANGES[str(one["change"])].how
    if one["change"] == "batch_left_out":
        how += f" of step {int(one['from_step']) + 1:,}"
    ends = f"lives to step {int(one['step']):,}" if one["lives"] else f"dies at step {int(one['step']):,}"
    text = f"Trained again from step {int(one['from_step']):,} {how}, the run {ends}."
    numbers = {"change": one["change"], "lives": bool(one["lives"]), "step": int(one["step"])}
    return text, numbers | {"from_step": int(one["from_step"])}


@sentence(
    "autopsy.counterfactuals", holds="the unchanged control did not die at the fatal step, or a milder trial died before it"
)
def trials_not_comparable(autopsy: Autopsy) -> str | None:
    if autopsy.comparable or not autopsy.findings.get("counterfactuals"):
        return None
    return (
        "The trials cannot be compared with the run, so they say nothing about its cause: the unchanged one did not die at its "
        "fatal step, or a trial that could only help died before it. The task or its loss may keep a state."
    )


@sentence(
    "autopsy.counterfactuals",
    holds="the run was trained again with a frozen recurrence, and the trials can be compared; it dies too if at most "
    "5 steps after the run",
)
def frozen_trial(case: Case) -> str | None:
    """What the trial with a frozen recurrence showed, for the summary of a cause that it can test."""
    one = None if case.autopsy is None else case.autopsy.counterfactual("recurrence_frozen")
    lives = case.lives("recurrence_frozen")
    if one is None or lives is None:
        return None
    start, ends = f"Trained again from step {int(one['from_step']):,} with the recurrence frozen,", int(one["step"])
    if lives:
        return f"{start} the run lives to step {ends:,}."
    if ends > case.step + SOON:
        return f"{start} the run dies later, at step {ends:,}."
    return f"{start} the run dies too, at step {ends:,}."
