"""An autopsy replays a run bit for bit, and measures the planted cause of its death."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.autopsy.perform import perform
from stablessm_core.autopsy.request import MEASURED, AutopsyRequest, RecordedRow, SavedState, Trouble
from stablessm_core.spec.forking import forked_config
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from stablessm_core.telemetry.nonfinite import json_safe
from tests.core.autopsy.faulty_tasks import SPOILED
from tests.core.autopsy.runs import config_of, request_of, trained

pytestmark = [pytest.mark.spread, pytest.mark.slow]

SHORT = {"task.length": 20, "train.steps": 30, "optimizer.lr": 0.01, "model.reparameterization.name": "best"}
GELU = {"model.activation": "gelu", "optimizer.lr": 0.1}


def request_for(folder: Path, changes: Mapping[str, Any] | None = None, **given: Any) -> AutopsyRequest:
    """The request for a run that has been trained with these changes of its configuration."""
    config = config_of(changes)
    return request_of(config, *trained(config, folder), **given)


def plant(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    monkeypatch.setattr(PolynomialMemory, "trained_by", f"tests.core.autopsy.faulty_tasks:{task}")


def trials(findings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trial["change"]: trial for trial in findings["counterfactuals"]}


def test_an_overflowing_state_is_named_with_its_eigenvalue_and_is_finite_in_float64(tmp_path: Path) -> None:
    request = request_for(tmp_path)
    findings = perform(request)
    assert (findings["refused"], findings["bits_equal"], findings["fatal"], findings["from_step"]) == (None, True, True, 0)
    first = findings["first_nonfinite"]
    assert (first["pass"], first["operation"], first["module"]) == ("forward", "scan_states", "blocks.0.ssm")
    assert (first["layer"], first["value"], first["step"]) == (0, "-Infinity", request.step)
    assert first["index"][2] == first["eigenvalue"]
    assert first["largest_input"] < 1e3
    assert findings["float64"]["finite"]
    assert findings["float64"]["largest"] > float(np.finfo(np.float32).max)
    assert findings["float64"]["loss"] == pytest.approx(findings["loss"], rel=1e-3)
    assert findings["float64"]["narrow"] == []
    assert findings["instruments"]["agrees"]
    assert json.loads(json.dumps(json_safe(findings)))["step"] == request.step


def test_a_norm_that_squares_is_where_the_death_shows(tmp_path: Path) -> None:
    findings = perform(request_for(tmp_path, GELU | {"model.n_layers": 2}))
    first = findings["first_nonfinite"]
    assert (first["operation"], first["module"].rpartition(".")[2]) == ("native_layer_norm", "norm")
    assert first["largest_input"] > 1.8e19
    assert findings["float64"]["finite"]
    modules = findings["modules"]
    before = modules[: next(i for i, m in enumerate(modules) if m["module"] == first["module"])]
    assert [m["nonfinite"] for m in before] == [0] * len(before)
    assert [m["pass"] for m in modules] == ["forward"] * (len(modules) - 1) + ["loss"]
    assert all(m["largest_float64"] is not None for m in modules)


def test_a_real_explosion_is_not_finite_in_float64(tmp_path: Path) -> None:
    changes = {"optimizer.lr": 3.0, "model.activation": "identity", "task.length": 1000, "train.batch_size": 4}
    findings = perform(request_for(tmp_path, changes))
    assert findings["fatal"]
    assert not findings["float64"]["finite"]
    assert findings["float64"]["first_nonfinite"]["operation"] == "scan_states"


@pytest.mark.parametrize(("task", "stage", "module"), [("NanInLoss", "loss", "loss"), ("NanInBackward", "backward", "loss")])
def test_a_nan_of_the_loss_function_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, stage: str, module: str
) -> None:
    plant(monkeypatch, task)
    request = request_for(tmp_path, SHORT)
    findings = perform(request)
    assert request.step == SPOILED
    first = findings["first_nonfinite"]
    assert (first["pass"], first["module"], first["layer"]) == (stage, module, None)
    assert math.isfinite(findings["loss"]) == (stage == "backward")
    assert findings["batch"]["nonfinite"] == 0
    assert not findings["float64"]["finite"]
    assert trials(findings)["batch_left_out"]["lives"]


def test_a_batch_with_nan_is_named_and_the_run_lives_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "NanBatch")
    findings = perform(request_for(tmp_path, SHORT, trouble=Trouble(SPOILED, "batch")))
    assert findings["step"] == SPOILED
    first = findings["first_nonfinite"]
    assert (first["operation"], first["tensor"], first["index"]) == ("batch", "input (16, 20, 1)", [2, 3, 0])
    assert findings["batch"].pop("classes") is None
    assert findings["batch"] == pytest.approx(
        {
            "largest_input": 1000.0, "usual_input": 3.2, "largest_target": findings["batch"]["usual_target"],
            "usual_target": findings["batch"]["usual_target"], "nonfinite_input": 1, "nonfinite_target": 0, "nonfinite": 1,
        },
        rel=0.5,
    )  # fmt: skip
    tried = trials(findings)
    assert [tried[change]["lives"] for change in ("batch_left_out", "recurrence_frozen", "tenth_of_rate")] == [True, False, False]
    assert [one["change"] for one in findings["counterfactuals"]][:2] == ["unchanged", "batch_left_out"]
    assert tried["batch_left_out"]["until"] == tried["batch_left_out"]["step"] == SPOILED + 20
    assert len(tried["batch_left_out"]["loss"]) == 20  # steps SPOILED + 1 to SPOILED + 20
    assert tried["batches_scaled"]["lives"] is None  # NaN has no size
    died = {trial["step"] for trial in tried.values() if trial["lives"] is False}
    assert died == {SPOILED}


def test_weights_that_an_update_made_infinite_are_traced_to_that_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "HugeLoss")
    request = request_for(tmp_path, SHORT | {"optimizer.name": "sgd", "optimizer.lr": 1000.0})
    assert request.step == 2
    first = perform(request)["first_nonfinite"]
    assert (first["step"], first["pass"]) == (1, "update")
    assert first["value"] in ("Infinity", "-Infinity")
    assert first["operation"] == "_fused_sgd_"
    assert "." in first["tensor"]


def test_changes_before_the_crossing_tell_what_the_last_checkpoint_cannot(tmp_path: Path) -> None:
    late = request_for(tmp_path, {"train.checkpoint_every": 1})
    saved = tuple(state for state in late.checkpoints if state.path.exists())
    late = dataclasses.replace(late, checkpoints=saved)
    tried = trials(perform(late))  # the trouble is only known as the fatal step
    assert not tried["recurrence_frozen"]["lives"]
    early = dataclasses.replace(late, trouble=Trouble(1, "crossing"))
    tried = trials(perform(early))
    assert {change: trial["from_step"] for change, trial in tried.items() if trial["from_step"]} == {
        "scaled_norm": late.step - 1  # before, such norms change nothing but rounding
    }
    for change in ("recurrence_frozen", "tenth_of_rate", "other_map"):
        assert tried[change]["lives"], change
    assert tried["other_map"]["settings"] == {"model.reparameterization.name": "best"}
    assert tried["recurrence_frozen"]["settings"] == {"optimizer.recurrent_lr": 0.0}
    control = tried["unchanged"]
    assert (control["lives"], control["step"]) == (False, late.step)
    assert control["loss"] == [late.rows[step].loss for step in control["steps"]]
    assert tried["recurrence_frozen"]["until"] == min(60, max(late.step + 20, 2 * late.step))


def test_a_norm_that_scales_first_saves_a_run_that_only_the_norm_kills(tmp_path: Path) -> None:
    tried = trials(perform(request_for(tmp_path, GELU | {"model.n_layers": 2})))
    assert tried["scaled_norm"]["step"] > tried["unchanged"]["step"]


REPEATED: list[dict[str, Any]] = [
    {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "model.n_layers": 2, "optimizer.grad_clip": 1.0},
    {"model.dropout": 0.2, "train.precision": "bfloat16", "telemetry.every": 7, "optimizer.schedule": "cosine"},
    {"model.layer": "mamba", "model.mlp_expansion": 0, "train.execution": "eager", "optimizer.warmup_steps": 3},
    {"train.fused": "on", "optimizer.recurrent_lr": 0.003},
]


@pytest.mark.parametrize("changes", REPEATED, ids=[", ".join(changes) for changes in REPEATED])
def test_a_step_that_is_not_fatal_is_repeated_bit_for_bit_from_a_checkpoint(tmp_path: Path, changes: dict[str, Any]) -> None:
    reparameterization = {"model.reparameterization": {"name": "native" if "model.layer" in changes else "best", "time": None}}
    small = {"model.d_state": 64} if "model.layer" in changes else {}
    request = request_for(tmp_path, {**SHORT, **reparameterization, **small, "train.checkpoint_every": 10, **changes}, step=27)
    findings = perform(request)
    assert (findings["refused"], findings["from_step"], findings["fatal"]) == (None, 20, False)
    assert (findings["first_nonfinite"], findings["counterfactuals"]) == (None, [])
    assert findings["instruments"]["agrees"]
    assert findings["float64"]["finite"]
    assert findings["float64"]["loss"] == pytest.approx(findings["loss"], rel=0.05 if "train.precision" in changes else 1e-4)


def test_a_run_whose_rates_were_lowered_or_rolled_back_is_repeated(tmp_path: Path) -> None:
    for on_warning in ("lower_lr", "rollback"):
        config = config_of({"train.on_warning": on_warning, "train.max_rollbacks": 2, "train.checkpoint_every": 10})
        outcome, sink, environment = trained(config, tmp_path / on_warning)
        lowered = tuple(alert.step for alert in sink.alerts if alert.kind == "lr_lowered")
        assert outcome.result["rollbacks"] >= 1
        findings = perform(request_of(config, outcome, sink, environment, lowered=lowered))
        assert (findings["refused"], findings["bits_equal"]) == (None, True)


def test_a_fork_is_repeated_from_the_checkpoint_that_it_began_with(tmp_path: Path) -> None:
    config = config_of({"train.checkpoint_every": 10})
    _, sink, _ = trained(config, tmp_path / "original")
    origin = SavedState(*sink.checkpoints[-2])
    copy = tmp_path / "origin.safetensors"
    fork, _ = forked_config(config.model_dump(mode="json"), {"optimizer.lr": 0.25})
    outcome, sink, environment = trained(fork, tmp_path / "fork", fork=origin.path)
    origin.path.rename(copy)
    request = request_of(fork, outcome, sink, environment, checkpoints=(), origin=origin._replace(path=copy))
    findings = perform(request)
    assert (findings["refused"], findings["from_step"], findings["fatal"]) == (None, origin.step, True)
    refused = perform(dataclasses.replace(request, origin=origin))["refused"]
    assert "cannot be repeated from its beginning" in refused
    assert str(origin.path) in refused


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> AutopsyRequest:
    """The request for a run that died, with checkpoints."""
    return request_for(tmp_path_factory.mktemp("dead"), {"train.checkpoint_every": 10})


def test_other_bits_than_recorded_give_no_result(dead: AutopsyRequest) -> None:
    wrong = dict(dead.rows)
    recorded = wrong[9]
    wrong[9] = RecordedRow(float(np.nextafter(np.float32(recorded.loss), np.float32(9))), recorded.grad_norm)
    findings = perform(dataclasses.replace(dead, rows=wrong, checkpoints=()))
    assert findings["bits_equal"] is False
    assert "the loss of step 9 was recorded as" in findings["refused"]
    assert {findings[name] for name in MEASURED} == {None}


def test_another_torch_version_is_named_only_if_the_bits_differ(dead: AutopsyRequest) -> None:
    other = dataclasses.replace(dead, environment={**dead.environment, "versions": {"torch": "1.13.0"}})
    assert perform(other)["refused"] is None
    wrong = {step: RecordedRow(row.loss, 2 * row.grad_norm) for step, row in dead.rows.items()}
    refused = perform(dataclasses.replace(other, rows=wrong))["refused"]
    assert "gradient norm of step 31" in refused
    assert f"trained with PyTorch 1.13.0; this is PyTorch {torch.__version__}" in refused


def test_a_damaged_or_missing_checkpoint_is_replaced_by_an_older_state(dead: AutopsyRequest, tmp_path: Path) -> None:
    newest, *_ = dead.checkpoints
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(newest.path.read_bytes()[:-1] + b"\x7f")
    states = (newest._replace(path=damaged), SavedState(20, tmp_path / "missing.safetensors"))
    findings = perform(dataclasses.replace(dead, checkpoints=states))
    assert (findings["refused"], findings["from_step"]) == (None, 0)
    assert "is damaged" in findings["notes"][0]
    assert "does not exist" in findings["notes"][1]


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"step": 0}, "Step 0 is not a step of this run, which has the steps 1 to 60"),
    ({"step": 61}, "Step 61 is not a step of this run"),
    ({"seconds": 0.0}, "There was no time left after 0 of the"),
    ({"memory": 1000}, "would need about"),
    ({"rows": {}}, "was recorded, so nothing can be compared"),
    ({"environment": {"device": "cuda:0"}}, "The run was trained on cuda:0"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSALS, ids=[reason for _, reason in REFUSALS])
def test_a_refusal_names_its_reason(dead: AutopsyRequest, changes: dict[str, Any], reason: str) -> None:
    if "environment" in changes and torch.cuda.is_available():
        pytest.skip("this machine has the device")
    findings = perform(dataclasses.replace(dead, **changes))
    assert reason in findings["refused"]
    assert findings["float64"] is None


def test_an_autopsy_can_be_stopped(dead: AutopsyRequest) -> None:
    assert perform(dead, should_stop=lambda: True)["refused"] == "The autopsy was stopped before it ended."


def test_changes_that_find_no_time_are_not_judged(dead: AutopsyRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(range(10**6))

    def run_out() -> bool:  # the limit is passed while the changes are tried
        if next(asked) == 8:
            monkeypatch.setattr("stablessm_core.autopsy.deadline.Deadline.left", lambda _: -1.0)
        return False

    findings = perform(dead, should_stop=run_out)
    assert findings["first_nonfinite"] is not None
    assert findings["counterfactuals"][-1]["reason"] == "no time left"
    assert findings["counterfactuals"][-1]["lives"] is None


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("NotReproducible", "is not reproducible: asked twice for the batch of step"),
        ("Gone", "cannot be built here: AttributeError"),
    ],
)
def test_a_task_that_cannot_be_repeated_is_refused(
    dead: AutopsyRequest, monkeypatch: pytest.MonkeyPatch, task: str, reason: str
) -> None:
    plant(monkeypatch, task)
    assert reason in perform(dead)["refused"]


def test_an_autopsy_leaves_random_states_threads_and_files_as_they_are(dead: AutopsyRequest) -> None:
    files = {path: path.read_bytes() for state in dead.checkpoints if (path := state.path).exists()}
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    other = 1 if threads > 1 else 2
    torch.set_num_threads(other)  # the run was trained with another number of threads
    try:
        assert perform(dataclasses.replace(dead, step=2))["refused"] is None
        assert torch.get_num_threads() == other
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(before, torch.get_rng_state())
    assert files == {path: path.read_bytes() for path in files}


def test_a_run_that_skips_a_bad_batch_is_repeated_beyond_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "NanBatch")
    request = request_for(tmp_path, SHORT | {"train.on_bad_batch": "skip"})
    findings = [perform(dataclasses.replace(request, step=step)) for step in (SPOILED, 20)]
    assert [(found["refused"], found["fatal"], found["first_nonfinite"]) for found in findings] == [(None, False, None)] * 2
    assert [found["batch"]["nonfinite"] for found in findings] == [1, 0]


def test_a_state_before_the_trouble_that_is_too_far_back_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(tmp_path, {"train.checkpoint_every": 10}, trouble=Trouble(5, "loss"), seconds=20.0)
    monkeypatch.setattr("stablessm_core.autopsy.replay.JUDGED_AFTER", -1.0)
    monkeypatch.setattr("stablessm_core.autopsy.replay.PATIENCE", 0.0)
    findings = perform(request)
    assert (findings["from_step"], findings["counterfactuals"]) == (30, [])
    assert findings["notes"][0] == "The state before the trouble is too far back for the time that is left."
