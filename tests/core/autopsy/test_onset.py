"""The step that first shows the trouble tells a loss function that changed from numbers that grew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.verdicts.autopsies import opened
from benchmarks.verdicts.recorded import Recorded, run_and_source
from stablessm_core.autopsy.perform import perform
from stablessm_core.autopsy.request import Trouble
from stablessm_core.spec.tasks.modular_counting import ModularCounting
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from stablessm_core.verdict import trouble_start
from tests.core.autopsy.faulty_tasks import SPOILED
from tests.core.autopsy.runs import config_of, request_of, trained

pytestmark = [pytest.mark.spread, pytest.mark.slow]

SHORT: dict[str, Any] = {
    "task.length": 20, "train.steps": 30, "optimizer.lr": 0.01, "model.reparameterization.name": "best",
}  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, task: str, kind: type = PolynomialMemory) -> None:
    monkeypatch.setattr(kind, "trained_by", f"tests.core.autopsy.faulty_tasks:{task}")


def findings_of(folder: Path, changes: Mapping[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    config = config_of(changes)
    found = perform(request_of(config, *trained(config, folder), **given))
    assert found["refused"] is None
    return found


def trials(findings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trial["change"]: trial for trial in findings["counterfactuals"]}


def test_a_loss_that_changed_its_scale_has_usual_outputs_a_usual_batch_and_a_usual_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "RescaledLoss")
    changes = SHORT | {"optimizer": {"name": "sgd", "lr": 0.02, "weight_decay": 0.0}}
    found = findings_of(tmp_path, changes, trouble=Trouble(SPOILED - 1, "loss", SPOILED))
    assert found["fatal"]
    onset = found["onset"]
    assert onset["step"] == SPOILED < found["step"]
    assert onset["loss"] > 1e8 * onset["loss_before"]
    assert onset["loss_again"] == onset["loss"]
    for usual in ("output", "yardstick"):
        assert onset[usual] == pytest.approx(onset[f"{usual}_before"], rel=0.5)
    assert onset["yardstick_before"] == pytest.approx(onset["loss_before"], rel=1e-3)
    assert onset["batch"]["largest_target"] == pytest.approx(onset["batch"]["usual_target"], rel=0.5)
    assert found["hidden_state"] is None


def test_an_explosion_shows_in_the_outputs_and_in_the_error(tmp_path: Path) -> None:
    found = findings_of(tmp_path, {"optimizer.lr": 0.2, "model.activation": "gelu"})
    onset = found["onset"]
    assert onset["step"] == found["step"], "without a known trouble, it is the fatal step"
    assert not onset["yardstick"] < 1e6 * onset["yardstick_before"]
    assert not onset["output"] < 1e3 * onset["output_before"]


def test_the_first_step_has_no_step_before_it(tmp_path: Path) -> None:
    assert findings_of(tmp_path, SHORT, step=1)["onset"] is None
    onset = findings_of(tmp_path, SHORT, step=2)["onset"]
    assert (onset["step"], onset["loss_before"] is None) == (2, False)


def test_a_loss_that_keeps_a_sum_answers_differently_and_its_trials_are_not_comparable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "SummedLoss")
    found = findings_of(tmp_path, SHORT | {"train.steps": 20}, trouble=Trouble(2, "loss", 3))
    assert not (math.isfinite(found["onset"]["loss_again"]) and found["onset"]["loss_again"] == found["onset"]["loss"])
    assert "asked again for the loss of step 3" in found["hidden_state"]
    assert found["gradient"]["agrees"] is None
    assert {trial["comparable"] for trial in found["counterfactuals"]} == {False}
    assert any("the unchanged control did not repeat the run" in note for note in found["notes"])


def test_a_state_that_only_the_step_before_betrays_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "SummedLoss")
    found = findings_of(tmp_path, SHORT | {"train.steps": 20})
    assert math.isnan(found["onset"]["loss"])
    assert "asked again for the loss of step 11" in found["hidden_state"]
    found = findings_of(tmp_path / "planned", SHORT | {"train.steps": 20}, trouble=Trouble(12, "fatal"))
    assert {trial["comparable"] for trial in found["counterfactuals"]} == {False}


def test_a_loss_that_draws_random_numbers_keeps_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "SampledLoss")
    found = findings_of(tmp_path, SHORT, step=9, trouble=Trouble(4, "loss", 5))
    assert (found["hidden_state"], found["gradient"]["agrees"], found["gradient"]["differs"]) == (None, True, None)
    assert found["onset"]["loss_again"] == found["onset"]["loss"]
    assert {trial["comparable"] for trial in found["counterfactuals"]} == {True}


def test_an_onset_between_recorded_steps_is_measured_where_the_replay_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "RescaledLoss")
    config = config_of(SHORT | {"optimizer": {"name": "sgd", "lr": 0.02, "weight_decay": 0.0}, "telemetry.every": 5})
    recorded = Recorded(config.model_dump(mode="json"), *trained(config, tmp_path))
    run, source = run_and_source(recorded)
    expected = trouble_start(run, source)
    assert expected is not None
    assert expected.shown != SPOILED, "the spoiled step was not recorded"
    found = opened(recorded, run, source, tmp_path)
    assert found["trouble"] == {"step": SPOILED - 1, "kind": "loss", "shown": SPOILED}
    assert found["onset"]["step"] == SPOILED
    assert found["onset"]["yardstick"] == pytest.approx(found["onset"]["yardstick_before"], rel=0.5)


def test_a_cast_to_half_precision_inside_the_loss_is_named_with_its_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "HalfPrecisionLoss")
    found = findings_of(tmp_path, SHORT)
    first = found["first_nonfinite"]
    assert (found["step"], first["operation"], first["module"]) == (SPOILED, "_to_copy", "loss")
    assert (first["dtype"], first["inputs"]) == ("float16", ["float32"])


def test_class_labels_that_are_all_ignored_are_counted_and_not_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "Unlabelled", ModularCounting)
    changes = {"task": {"name": "modular_counting", "length": 12, "modulus": 3}, "optimizer.lr": 0.01, "train.steps": 20}
    found = findings_of(tmp_path, changes, trouble=Trouble(SPOILED, "fatal"))
    assert found["step"] == SPOILED
    classes = found["batch"]["classes"]
    assert (classes["smallest"], classes["largest"], classes["of"]) == (None, None, 3)
    assert classes["ignored"] == classes["count"] > 0
    before = perform_again(tmp_path, changes)["batch"]["classes"]
    assert (before["smallest"], before["largest"], before["ignored"]) == (0, 2, 0)
    assert trials(found)["batches_scaled"]["reason"] == "the batches hold tokens and classes, which have no size"
    assert found["onset"]["yardstick_before"] == pytest.approx(found["onset"]["loss_before"], rel=1e-3)


def perform_again(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The findings of the step before the spoiled one."""
    return findings_of(folder / "again", changes, step=SPOILED - 1)


def test_the_layers_of_a_usual_run_compute_their_form(tmp_path: Path) -> None:
    (form,) = findings_of(tmp_path, SHORT, step=9)["form"]
    assert (form["layer"], form["agrees"], form["reason"]) == (0, True, None)
    assert form["error"] < 1e-6
