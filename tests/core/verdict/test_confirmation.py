"""A fork confirms or contradicts a cause only if it could have gone either way."""

from __future__ import annotations

from typing import Any

import pytest

from stablessm_core.verdict import confirmation

FROZEN = {"optimizer.recurrent_lr": 0}
OVERFLOW = {"cause": "eigenvalue_overflow", "thrown_by": "optimizer_step", "trouble": {"step": 20}}
EXPLOSION = {"cause": "explosion", "thrown_by": None, "trouble": {"step": 20}}


def said(verdict: dict[str, Any], *, status: str, step: int, from_step: int = 10, change: dict[str, Any] | None = None) -> str:
    fork = FROZEN if change is None else change
    return str(confirmation(verdict, fork, run_id=2, status=status, step=step, from_step=from_step, died_at=30)["text"])


@pytest.mark.parametrize(
    ("verdict", "status", "step", "begins"),
    [
        (OVERFLOW, "finished", 200, "Confirmed"),
        (OVERFLOW, "running", 31, "Confirmed"),
        (OVERFLOW, "diverged", 30, "Contradicted"),
        (EXPLOSION, "finished", 200, "Contradicted"),
        (EXPLOSION, "diverged", 32, "Confirmed"),
        (OVERFLOW | {"thrown_by": "explosion"}, "diverged", 30, "Confirmed"),
    ],
)
def test_a_frozen_fork_from_before_the_trouble_answers(verdict: dict[str, Any], status: str, step: int, begins: str) -> None:
    assert said(verdict, status=status, step=step).startswith(f"{begins}: from step 10 with frozen eigenvalues, it ")


@pytest.mark.parametrize("from_step", [20, 25, 29])
@pytest.mark.parametrize(("status", "step"), [("finished", 200), ("diverged", 30), ("running", 31)])
@pytest.mark.parametrize("verdict", [OVERFLOW, EXPLOSION])
def test_a_fork_from_inside_the_trouble_does_not_answer(verdict: dict[str, Any], status: str, step: int, from_step: int) -> None:
    text = said(verdict, status=status, step=step, from_step=from_step)
    assert text.startswith(f"From step {from_step} with frozen eigenvalues, it ")
    assert "This does not test the cause: the trouble of the original began at step 20" in text
    assert "A fork from step 19 or earlier would." in text


def test_a_fork_that_has_not_passed_the_fatal_step_does_not_answer() -> None:
    for status, step in (("running", 30), ("finished", 25), ("cancelled", 12)):
        text = said(OVERFLOW, status=status, step=step)
        assert text == f"From step 10 with frozen eigenvalues, it is {status} at step {step} (the original died at step 30)."


def test_a_fork_that_dies_much_later_does_not_answer() -> None:
    assert "it may have died of something else" in said(OVERFLOW, status="diverged", step=90)


def test_a_verdict_without_a_known_trouble_is_not_judged() -> None:
    assert "where the trouble began is not known" in said(OVERFLOW | {"trouble": None}, status="finished", step=200)


def test_other_changes_and_other_causes_are_only_reported() -> None:
    text = said(OVERFLOW, status="finished", step=200, change={"optimizer.lr": 0.01})
    assert text == "From step 10 with lr 0.01, it lives to its end, step 200 (the original died at step 30)."
    assert not said({}, status="finished", step=200).startswith("Confirmed")
    assert not said({"cause": "bad_input", "trouble": {"step": 20}}, status="finished", step=200).startswith("Confirmed")
