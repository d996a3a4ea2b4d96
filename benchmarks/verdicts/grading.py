"""Compares a verdict with the truth: right, an honest "cannot tell", or wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.verdicts.truth import Truth

RIGHT, CANNOT_TELL, WRONG = "right", "cannot tell", "wrong"
GRADES = (RIGHT, CANNOT_TELL, WRONG)


def grade(truth: Truth, verdict: Mapping[str, Any], status: str) -> tuple[str, str]:
    """(one of GRADES, why it is not right). A right cause with a wrong layer, eigenvalue, step or origin is wrong."""
    cause = verdict["cause"]
    if status == "cancelled" and not truth.may_stop:
        return WRONG, "train.on_warning ended a run that lives to its end"
    if cause == "unknown" or verdict.get("confidence") == "cannot_tell":
        if None in truth.causes and cause is not None:
            return WRONG, "the run did not die"
        return (CANNOT_TELL, "") if cause is not None else _compared(truth, verdict)
    if cause not in truth.causes:
        return WRONG, f"cause {cause}; right: {', '.join(sorted(str(one) for one in truth.causes))}"
    return _compared(truth, verdict)


def _compared(truth: Truth, verdict: Mapping[str, Any]) -> tuple[str, str]:
    summary = str(verdict["summary"])
    text = " ".join([summary, *(str(item["text"]) for item in verdict["evidence"])]).lower()
    if verdict["thrown_by"] in truth.not_thrown_by:
        return WRONG, f"thrown by {verdict['thrown_by']}; the measurements exclude it"
    culprit = verdict["culprit"]
    if culprit is not None and verdict["cause"] == "eigenvalue_overflow":
        if truth.layers and culprit["layer"] not in truth.layers:
            return WRONG, f"layer {culprit['layer']}; right: {sorted(truth.layers)}"
        if truth.eigenvalues and (culprit["layer"], culprit["eigenvalue"]) not in truth.eigenvalues:
            return WRONG, f"eigenvalue {culprit['eigenvalue']} of layer {culprit['layer']}; right: {sorted(truth.eigenvalues)}"
    if truth.step is not None and truth.step not in named_steps(summary):
        return WRONG, f"names step {sorted(named_steps(summary))}; right: {truth.step}"
    if truth.mentions and not re.search(truth.mentions, text):
        return WRONG, f"does not mention the {truth.mentions}"
    if verdict["cause"] is None and truth.unstable is not None and (verdict["unstable"] is not None) != truth.unstable:
        return WRONG, f"eigenvalues {'are' if truth.unstable else 'are not'} outside the boundary at the end"
    return RIGHT, ""


def named_steps(text: str) -> set[int]:
    found = {int(number.replace(",", "")) for number in re.findall(r"\bsteps? (\d[\d,]*\d|\d)", text)}
    return found | ({1} if "first batch" in text else set())
