"""The autopsy measures what the record left out: unrecorded steps, wrong gradients, and batches of unusual size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.verdicts.recorded import Recorded, run_and_source
from stablessm_core.autopsy.perform import perform
from stablessm_core.autopsy.request import Trouble
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from stablessm_core.telemetry import series as names
from stablessm_core.verdict import judge, trouble_start
from tests.core.autopsy.faulty_tasks import SPOILED
from tests.core.autopsy.runs import config_of, request_of, trained

pytestmark = [pytest.mark.spread, pytest.mark.slow]

SGD = {
    "task.length": 20, "train.steps": 30, "model.reparameterization.name": "best",
    "optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": 0.0},
}  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    monkeypatch.setattr(PolynomialMemory, "trained_by", f"tests.core.autopsy.faulty_tasks:{task}")


def trials(findings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trial["change"]: trial for trial in findings["counterfactuals"]}


def test_the_rows_between_recorded_steps_are_the_rows_of_a_run_that_recorded_them(tmp_path: Path) -> None:
    every_step = config_of({"optimizer.lr": 0.2})
    outcome, complete, _ = trained(every_step, tmp_path / "complete")
    config = config_of({"optimizer.lr": 0.2, "telemetry.every": 5})
    findings = perform(request_of(config, *trained(config, tmp_path / "gaps"), trouble=Trouble(1, "crossing")))
    found = findings["replayed"]
    assert found["steps"] == list(range(1, outcome.step + 1))
    for name, series in (
        ("loss", names.TRAIN_LOSS),
        ("largest_target", names.LARGEST_TARGET),
        ("weight_norm", names.WEIGHT_NORM),
    ):
        recorded = complete.series(series)[1][:, 0]
        assert np.array_equal(np.float32(found["scalars"][name]), recorded, equal_nan=True), name
    weights = complete.series(names.layer_series(0, "weight"))[1]
    assert np.array_equal(np.float32(found["layers"][0]["recorded"]["weight"]), weights, equal_nan=True)


def test_a_run_that_recorded_every_step_needs_no_replayed_rows(tmp_path: Path) -> None:
    config = config_of({"optimizer.lr": 0.2})
    assert perform(request_of(config, *trained(config, tmp_path)))["replayed"] is None


def test_a_wrong_backward_pass_is_told_from_a_large_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "WrongGradient")
    config = config_of(SGD)
    findings = perform(request_of(config, *trained(config, tmp_path), trouble=Trouble(SPOILED, "gradient")))
    wrong = findings["gradient"]
    assert (wrong["step"], wrong["agrees"]) == (SPOILED, False)
    assert wrong["norm"] == pytest.approx(1e8 * wrong["slope"], rel=0.1)


def test_a_right_gradient_equals_the_slope_of_the_loss(tmp_path: Path) -> None:
    config = config_of(SGD | {"optimizer.lr": 0.25, "task.length": 100})
    findings = perform(request_of(config, *trained(config, tmp_path), trouble=Trouble(1, "loss")))
    assert findings["gradient"]["agrees"]
    assert findings["gradient"]["norm"] == pytest.approx(findings["gradient"]["slope"], rel=0.05)


def test_growing_targets_are_the_cause_if_the_run_lives_with_usual_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "GrowingTarget")
    config = config_of(SGD | {"telemetry.every": 5})
    dead = trained(config, tmp_path)
    run, source = run_and_source(Recorded(config.model_dump(mode="json"), *dead))
    start = trouble_start(run, source)
    assert start is not None
    findings = perform(request_of(config, *dead, trouble=Trouble(start.step, start.kind)))
    tried = trials(findings)
    assert (tried["batches_scaled"]["lives"], tried["unchanged"]["lives"]) == (True, False)
    found = judge(replace(run, autopsy=findings), source)
    assert (found["cause"], found["confidence"]) == ("bad_input", "measured")
    assert "grew from batch to batch" in found["summary"]


def test_batches_of_usual_size_are_not_scaled(tmp_path: Path) -> None:
    config = config_of({"optimizer.lr": 0.2})
    tried = trials(perform(request_of(config, *trained(config, tmp_path), trouble=Trouble(1, "crossing"))))
    assert (tried["batches_scaled"]["lives"], tried["batches_scaled"]["reason"]) == (
        None, "no batch since then is larger than usual",
    )  # fmt: skip
