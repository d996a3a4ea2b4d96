"""No verdict on a planted fault is wrong. docs/verdict.md shows the whole measurement, `python -m benchmarks.verdicts`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.verdicts.faults import KINDS, TOTAL, drawn
from benchmarks.verdicts.grading import CANNOT_TELL, RIGHT, WRONG, grade
from benchmarks.verdicts.section import PlantedFault
from benchmarks.verdicts.task import planted_fault
from benchmarks.verdicts.truth import Truth

ROOT = Path(__file__).resolve().parents[2]
# one fault of each of eight kinds, all of which end the run: target, loss in float32, loss, backward pass, one bad batch, input,
# an eigenvalue that overflows, and one of two layers that overflows
PLANTED = (52, 50, 139, 32, 40, 173, 201, 42)
OVERFLOW: dict[str, Any] = {
    "cause": "eigenvalue_overflow",
    "thrown_by": "optimizer_step",
    "culprit": {"layer": 1, "eigenvalue": 3},
    "summary": "Eigenvalue 3 of layer 1 had been outside since step 12.",
    "evidence": [],
}


@pytest.mark.slow
def test_no_verdict_on_eight_planted_faults_is_wrong() -> None:
    command = [sys.executable, "-m", "benchmarks.verdicts", "--quick", str(TOTAL), "--only", *map(str, PLANTED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^\| All \| {len(PLANTED)} \| {len(PLANTED)} \|", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(
    ("truth", "graded"),
    [
        (Truth(frozenset({"eigenvalue_overflow"})), RIGHT),
        (Truth(frozenset({"eigenvalue_overflow"}), frozenset({1}), frozenset({(1, 3)}), step=12), RIGHT),
        (Truth(frozenset({"explosion", "bad_input"})), WRONG),
        (Truth(frozenset({"eigenvalue_overflow"}), layers=frozenset({0})), WRONG),
        (Truth(frozenset({"eigenvalue_overflow"}), eigenvalues=frozenset({(1, 4)})), WRONG),
        (Truth(frozenset({"eigenvalue_overflow"}), not_thrown_by=frozenset({"optimizer_step"})), WRONG),
        (Truth(frozenset({"eigenvalue_overflow"}), step=13), WRONG),
        (Truth(frozenset({"eigenvalue_overflow"}), mentions="evaluation"), WRONG),
    ],
)
def test_a_verdict_is_right_only_if_cause_place_and_time_are_right(truth: Truth, graded: str) -> None:
    assert grade(truth, OVERFLOW, "diverged")[0] == graded


def test_a_verdict_that_cannot_tell_is_neither_right_nor_wrong_unless_the_run_lived() -> None:
    verdict = OVERFLOW | {"cause": "unknown", "culprit": None, "thrown_by": None}
    assert grade(Truth(frozenset({"bad_loss"})), verdict, "diverged")[0] == CANNOT_TELL
    assert grade(Truth(frozenset({"bad_loss"})), OVERFLOW | {"confidence": "cannot_tell"}, "diverged")[0] == CANNOT_TELL
    assert grade(Truth(frozenset({None})), verdict, "finished")[0] == WRONG


def test_ending_a_run_that_lives_to_its_end_is_wrong() -> None:
    verdict = OVERFLOW | {"cause": None, "culprit": None, "thrown_by": None, "unstable": None}
    assert grade(Truth(frozenset({None}), may_stop=False), verdict, "cancelled")[0] == WRONG
    assert grade(Truth(frozenset({None})), verdict, "cancelled")[0] == RIGHT


@pytest.mark.parametrize("place", ["input", "target"])
def test_a_fault_is_in_the_batch_of_its_step_and_in_no_other(place: str) -> None:
    def batch(step: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        section = PlantedFault(name="planted_fault", length=16, step=5, **options)
        return planted_fault(section, Path()).batch(step, 4, 0, "cpu")

    fault = {"place": place, "change": "times", "size": 1e6, "extent": "batch"}
    changed = 0 if place == "input" else 1
    assert torch.equal(batch(5, **fault)[changed], batch(5)[changed] * 1e6)
    assert torch.equal(batch(5, **fault)[1 - changed], batch(5)[1 - changed])
    assert all(torch.equal(a, b) for step in (4, 6) for a, b in zip(batch(step, **fault), batch(step), strict=True))


@pytest.mark.parametrize("place", ["loss", "backward"])
def test_a_fault_of_the_loss_is_made_from_finite_batches_and_outputs(place: str) -> None:
    task = planted_fault(PlantedFault.model_validate({"name": "planted_fault", "place": place, "step": 5}), Path())
    for step in (4, 5):
        x, y = task.batch(step, 4, 0, "cpu")
        output = torch.zeros_like(y).requires_grad_()
        loss = task.loss(output, y)
        (gradient,) = torch.autograd.grad(loss, output)
        made = gradient if place == "backward" else loss
        assert bool(made.isfinite().all()) == (step == 4)
        assert x.isfinite().all()
        assert y.isfinite().all()
        assert loss.isfinite() or place == "loss"


def test_all_plants_together_hold_each_kind_as_often_as_its_share() -> None:
    kinds = drawn(3)
    assert TOTAL >= 150
    assert {kind.name: kinds.count(kind) for kind in KINDS} == {kind.name: kind.share for kind in KINDS}
    assert drawn(3, 8) == kinds[:8]
    assert drawn(4, 8) != kinds[:8]
