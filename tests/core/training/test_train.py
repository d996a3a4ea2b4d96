"""A run trains, records each step, resumes bit for bit, and ends with the right outcome."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.sink import Flush, MemorySink
from stablessm_core.telemetry.stability import overflow_budget
from stablessm_core.training import run as run_module
from stablessm_core.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from stablessm_core.training.train import Outcome, pick_device, train
from stablessm_core.watch import recorder as recorder_module

pytestmark = [pytest.mark.spread, pytest.mark.slow]

NOWHERE = Path("/nonexistent")  # the tasks of this file need no data

SMALL: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 12},
    "model": {"n_layers": 2, "d_model": 6, "d_state": 5},
    "train": {"steps": 40, "batch_size": 4, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
}
# At this learning rate, `direct` is beyond the boundary after one step and overflows within a few steps.
DIVERGING = {"model.reparameterization.name": "direct", "task.length": 100, "optimizer.lr": 1.0, "train.steps": 150}


@pytest.fixture(autouse=True)
def _no_dropped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the recorder so patient that rows are not dropped when a busy machine pauses its thread for seconds."""
    monkeypatch.setattr(recorder_module, "PATIENCE", 100.0)


def small_config(changes: dict[str, Any] | None = None) -> RunConfig:
    data = copy.deepcopy(SMALL)
    for path, value in (changes or {}).items():
        at = data
        *sections, last = path.split(".")
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return parse_config(data)


def run_training(config: RunConfig, folder: Path, sink: MemorySink | None = None, **options: Any) -> tuple[Outcome, MemorySink]:
    sink = sink or MemorySink()
    return train(config, sink=sink, data_root=NOWHERE, checkpoint_dir=folder, **options), sink


def stop_at(step: int, answer: str) -> Callable[[], str | None]:
    calls = iter(range(1, 10**9))
    return lambda: answer if next(calls) == step else None


def losses(sink: MemorySink) -> np.ndarray:
    return sink.series(names.TRAIN_LOSS)[1][:, 0]


def test_a_run_learns_and_records_every_step(tmp_path: Path) -> None:
    environment: dict[str, Any] = {}
    config = small_config({"train.steps": 150, "train.batch_size": 16, "train.eval_every": 60, "train.checkpoint_every": 100})
    outcome, sink = run_training(config, tmp_path, on_ready=environment.update)
    assert (outcome.status, outcome.step, outcome.divergence) == ("finished", 150, None)
    assert losses(sink)[-20:].mean() < 0.2 * losses(sink)[:5].mean()
    for series in sink.catalogue.values():
        if not series.derived and series.group not in (names.EVAL, names.MEMORIES):
            steps, values = sink.series(series.name)
            assert np.array_equal(steps, np.arange(1, 151)), series.name
            assert np.isfinite(values).all(), series.name
    assert sink.series(names.EVAL_LOSS)[0].tolist() == [60, 120, 150]
    assert outcome.result["eval_loss"] == pytest.approx(sink.series(names.EVAL_LOSS)[1][-1, 0])
    assert outcome.result["train_loss"] == losses(sink)[-1]
    assert outcome.result.keys() == set(names.RESULTS) - set(names.BEST_RESULTS)
    assert (outcome.result["telemetry_dropped"], outcome.result["telemetry_errors"]) == (0, 0)
    assert [step for step, _, _ in sink.checkpoints] == [100, 150]
    assert [g["name"] for g in environment["parameter_groups"]] == ["recurrent", "matrices", "vectors"]
    assert environment["scan_backend"] == "cpu"
    assert environment["products"]["library"] in ("mm", "onednn")


@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_the_recorded_ratio_is_the_gradient_over_the_weight_before_clipping_and_update(tmp_path: Path, time: str) -> None:
    config = small_config(
        {"model.reparameterization": {"name": "exp", "time": time}, "optimizer.grad_clip": 1e-3, "train.steps": 1}
    )
    _, sink = run_training(config, tmp_path)
    task = get_task(config.task, NOWHERE)
    model = build_model(config, task)
    x, y = task.batch(1, 4, 0, "cpu")
    loss = task.loss(model(x), y)
    loss.backward()
    assert losses(sink)[0] == loss.item()
    total = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
    assert sink.series(names.GRAD_NORM)[1][0, 0] == pytest.approx(total, rel=1e-6)
    for i, block in enumerate(model.blocks):
        w = block.ssm.w
        assert np.array_equal(sink.series(names.layer_series(i, "grad_over_weight"))[1][0], (w.grad.abs() / w.abs()).detach())
        assert np.array_equal(sink.series(names.layer_series(i, "weight"))[1][0], w.detach())
        if time == "continuous":
            dt = sink.series(names.layer_series(i, "dt"))[1][0]
            np.testing.assert_allclose(dt, block.ssm.log_dt.detach().exp(), rtol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.dropout": 0.3, "optimizer.schedule": "cosine", "optimizer.warmup_steps": 5},
        {"model.reparameterization": {"name": "softplus", "time": "continuous"}, "optimizer.grad_clip": 0.1},
        {"train.precision": "bfloat16", "model.dropout": 0.1},
        {"task": {"name": "associative_recall", "length": 6}, "train.on_nonfinite": "rollback", "telemetry.every": 3},
        {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.nesterov": True, "optimizer.warmup_steps": 30},
        {"model": {"block": "bare", "d_state": 8, "reparameterization": {"name": "direct"}}, "optimizer.decay": "all"},
        {
            "task": {"name": "digits"},
            "train.batch_size": 200,
            "optimizer.schedule": "cosine_per_epoch",
            "model": {"block": "post_norm", "layer": {"name": "s4d", "d_state": 4, "real_start": -0.3}, "d_model": 6},
        },
    ],
    ids=["dropout-cosine", "continuous-clip", "bfloat16", "tokens-every-3", "sgd-momentum", "bare-decay", "post-norm-epochs"],
)
def test_a_resumed_run_has_the_same_bits_as_an_uninterrupted_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = small_config(changes | {"train.eval_every": 15})
    straight_outcome, straight = run_training(config, tmp_path / "straight")
    stopped_outcome, both = run_training(config, tmp_path / "stopped", should_stop=stop_at(17, "drain"))
    assert (stopped_outcome.status, stopped_outcome.step, both.checkpoints[-1][0]) == ("drained", 17, 17)
    torch.rand(100)  # changes the state of the random numbers before the resume
    resumed_outcome, _ = run_training(config, tmp_path / "stopped", both, resume=both.checkpoints[-1][1])
    assert resumed_outcome.status == straight_outcome.status == "finished"
    timing = {names.TRAIN_RATE, names.STEP_TIME, names.HOST_MEMORY}
    for series in straight.catalogue.values():
        if not series.derived and series.name not in timing:
            for a, b in zip(straight.series(series.name), both.series(series.name), strict=True):
                assert np.array_equal(a, b, equal_nan=True), series.name
    ends = [load_checkpoint(sink.checkpoints[-1][1]) for sink in (straight, both)]
    for path, tensor in ends[0].tensors.items():
        if not path.startswith("levels/scalars"):
            assert torch.equal(tensor.reshape(-1).view(torch.uint8), ends[1].tensors[path].reshape(-1).view(torch.uint8)), path


def test_a_run_resumed_after_its_last_step_still_reports_its_loss(tmp_path: Path) -> None:
    first, sink = run_training(small_config(), tmp_path)
    again, _ = run_training(small_config(), tmp_path, resume=sink.checkpoints[-1][1])
    assert again.result["train_loss"] == first.result["train_loss"]
    assert again.status == "finished"


def test_a_resumed_run_raises_the_same_alerts_as_an_uninterrupted_run(tmp_path: Path) -> None:
    config = small_config({"alerts.max_grad_over_weight": 1e-9})  # the ratio always exceeds this threshold
    _, straight = run_training(config, tmp_path / "straight")
    _, both = run_training(config, tmp_path / "stopped", should_stop=stop_at(17, "drain"))
    run_training(config, tmp_path / "stopped", both, resume=both.checkpoints[-1][1])
    assert straight.alerts != []
    assert both.alerts == straight.alerts, "the resumed run must not raise an alert again for an ongoing episode"


def test_evaluation_and_checkpoints_do_not_change_training(tmp_path: Path) -> None:
    bare, busy = {"model.dropout": 0.4}, {"model.dropout": 0.4, "train.eval_every": 3, "train.checkpoint_every": 5}
    assert np.array_equal(
        *(losses(run_training(small_config(changes), tmp_path / str(len(changes)))[1]) for changes in (bare, busy))
    )


def test_training_does_not_change_the_callers_random_number_generator(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run_training(small_config({"model.dropout": 0.4, "train.steps": 3}), tmp_path)
    assert torch.equal(torch.rand(3), expected)


class NoWaiting(TorchFunctionMode):
    """Refuses operations that would make the host wait for a device if the tensors were on one."""

    WAITING = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.__bool__)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (*self.WAITING, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.nonzero), func
        return func(*args, **(kwargs or {}))


class NoScalars(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_no_training_step_reads_a_number_back_from_the_device(tmp_path: Path, time: str) -> None:
    modes: list[Any] = []

    def watch_from_step_2_to_29() -> None:
        watch_from_step_2_to_29.step += 1  # type: ignore[attr-defined]
        if watch_from_step_2_to_29.step == 1:  # type: ignore[attr-defined]
            modes.extend((NoWaiting(), NoScalars()))
            for mode in modes:
                mode.__enter__()
        if watch_from_step_2_to_29.step == 29:  # type: ignore[attr-defined]
            for mode in reversed(modes):
                mode.__exit__(None, None, None)

    watch_from_step_2_to_29.step = 0  # type: ignore[attr-defined]
    map_ = {"name": "exp", "time": time}
    config = small_config({"train.steps": 30, "optimizer.grad_clip": 0.5, "model.dropout": 0.1, "model.reparameterization": map_})
    outcome, sink = run_training(config, tmp_path, should_stop=watch_from_step_2_to_29)
    assert watch_from_step_2_to_29.step == 30  # type: ignore[attr-defined]
    assert len(losses(sink)) == outcome.step == 30
    with pytest.raises(AssertionError), NoWaiting():
        torch.zeros(()).item()
    with pytest.raises(AssertionError), NoScalars():
        torch.zeros(()).item()


def test_a_diverging_run_records_every_step_up_to_its_fatal_step_and_ends_there(tmp_path: Path) -> None:
    outcome, sink = run_training(small_config(DIVERGING), tmp_path)
    assert outcome.status == "diverged"
    assert outcome.divergence is not None
    assert outcome.divergence["step"] == outcome.step == sink.step == len(losses(sink))
    assert 2 <= outcome.step < 100
    fatal = next(a for a in sink.alerts if a.kind.startswith("nonfinite"))
    assert (fatal.step, fatal.tensor, fatal.eigenvalue) == (
        outcome.step,
        outcome.divergence["tensor"],
        outcome.divergence["eigenvalue"],
    )
    assert outcome.divergence["value"] in ("NaN", "Infinity", "-Infinity")
    assert sink.checkpoints == []
    unstable = [a for a in sink.alerts if a.kind == "unstable_eigenvalue"]
    assert {a.layer for a in unstable} == {0, 1}
    assert min(a.step for a in unstable) < outcome.step
    # a different flush time does not change the run
    again, other = run_training(small_config(DIVERGING | {"train.checkpoint_every": 1}), tmp_path)
    assert (again.step, again.divergence) == (outcome.step, outcome.divergence)
    assert np.array_equal(losses(other), losses(sink), equal_nan=True)


def test_a_run_that_continues_after_divergence_raises_one_alert_per_kind(tmp_path: Path) -> None:
    outcome, sink = run_training(
        small_config(DIVERGING | {"train.on_nonfinite": "continue", "train.checkpoint_every": 20, "train.steps": 40}), tmp_path
    )
    assert (outcome.status, outcome.step, len(losses(sink))) == ("finished", 40, 40)
    kinds = [a.kind for a in sink.alerts if a.kind.startswith("nonfinite")]
    assert sorted(kinds) == sorted(set(kinds))
    assert "nonfinite_loss" in kinds
    assert np.isnan(losses(sink)[-1])
    assert math.isnan(outcome.result["train_loss"])
    assert [step for step, _, _ in sink.checkpoints] == [20, 40]


def test_a_rollback_lowers_the_learning_rates_and_repairs_the_run(tmp_path: Path) -> None:
    changes = {"train.on_nonfinite": "rollback", "train.rollback_lr_factor": 0.01, "train.checkpoint_every": 5}
    outcome, sink = run_training(small_config(DIVERGING | changes | {"train.steps": 60, "optimizer.warmup_steps": 60}), tmp_path)
    assert (outcome.status, outcome.step, outcome.result["rollbacks"]) == ("finished", 60, 1)
    ((to_step, reason),) = sink.rollbacks
    fatal = next(a for a in sink.alerts if a.kind.startswith("nonfinite"))
    assert 0 < to_step < fatal.step <= to_step + 5
    assert f"step {fatal.step}" in reason
    assert [a.step for a in sink.alerts if a.kind == "rolled_back"] == [fatal.step]
    steps, lr = sink.series(names.LR)
    assert np.array_equal(steps, np.arange(1, 61))
    np.testing.assert_allclose(lr[:, 0], steps / 60 * np.where(steps <= to_step, 1.0, 0.01), rtol=1e-6)
    assert np.isfinite(losses(sink)).all()
    # The rollback replaced its checkpoint at once, so that a run that resumes from it has the lower learning rate.
    assert [step for step, _, _ in sink.checkpoints].count(to_step) == 2
    assert load_checkpoint(sink.checkpoints[-1][1]).state["progress"]["lr_scale"] == 0.01


def test_a_rollback_during_the_first_steps_returns_to_the_initial_state(tmp_path: Path) -> None:
    changes = {"train.on_nonfinite": "rollback", "train.rollback_lr_factor": 0.9, "train.max_rollbacks": 2}
    outcome, sink = run_training(small_config(DIVERGING | changes), tmp_path)
    assert (outcome.status, outcome.result["rollbacks"]) == ("diverged", 2)
    assert [to for to, _ in sink.rollbacks] == [0, 0]
    _, lr = sink.series(names.LR)
    assert len(lr) == outcome.step
    assert lr[0, 0] == np.float32(0.81)


# The run overflows at step 42; a critical alert predicts the overflow at step 35.
DYING = {
    "model.reparameterization.name": "direct",
    "task.length": 100,
    "optimizer.lr": 0.2,
    "train.steps": 60,
    "train.checkpoint_every": 10,
    "train.rollback_lr_factor": 0.1,
}


def test_a_warning_can_stop_a_run_while_all_its_numbers_are_finite(tmp_path: Path) -> None:
    died, dead = run_training(small_config(DYING), tmp_path / "died")
    near = next(a for a in dead.alerts if a.kind == "overflow_near")
    assert (died.status, near.severity) == ("diverged", "critical")
    assert near.step < died.step
    outcome, sink = run_training(
        small_config(DYING | {"train.on_warning": "stop", "train.checkpoint_every": 7}), tmp_path / "stopped"
    )
    assert (outcome.status, outcome.step, outcome.divergence) == ("cancelled", near.step, None)
    assert f"train.on_warning at step {near.step}" in outcome.reason
    assert near.message.partition("; this lasted")[0] in outcome.reason
    assert np.array_equal(losses(sink), losses(dead)[: near.step])
    assert [(a.kind, a.step) for a in sink.alerts][-2:] == [("overflow_near", near.step), ("stopped_early", near.step)]
    assert max(step for step, _, _ in sink.checkpoints) < near.step


@pytest.mark.parametrize("layer", [{"layer": {"name": "stable_ssm", "activation": "tanh"}}, {"layers": ["stable_ssm"] * 2}])
def test_a_limit_that_does_not_apply_stops_no_run(tmp_path: Path, layer: dict[str, Any]) -> None:
    """A tanh layer given as a section, or in `layers`, may spend more than half of float32's range."""
    config = small_config(
        DYING | {"optimizer.lr": 0.1, "train.steps": 40, "train.on_warning": "stop"} | {f"model.{k}": v for k, v in layer.items()}
    )
    outcome, sink = run_training(config, tmp_path)
    weight = np.concatenate([sink.series(names.layer_series(i, "weight"))[1] for i in range(2)], axis=1)
    budget = overflow_budget(100, 1 - np.abs(weight)).max()
    assert 0.5 < budget < 0.9, "the run spends more than the share that ends a run without tanh, and lives"
    assert (outcome.status, outcome.reason) == ("finished", "")


@pytest.mark.parametrize("every", [0, 1])
def test_a_nonfinite_evaluation_raises_one_alert_and_the_run_finishes(tmp_path: Path, every: int) -> None:
    # The first update throws the eigenvalues so far out that evaluations overflow; the row of step 1 is still finite.
    config = small_config(
        DIVERGING
        | {
            "model.activation": "gelu",
            "optimizer.lr": 50.0,
            "train.steps": 1 + 2 * every,
            "train.eval_every": every,
            "train.on_nonfinite": "continue",
        }
    )
    outcome, sink = run_training(config, tmp_path)
    assert (outcome.status, math.isnan(outcome.result["eval_loss"])) == ("finished", True)
    assert every or math.isfinite(outcome.result["train_loss"])
    (alert,) = (a for a in sink.alerts if a.kind == "nonfinite_evaluation")
    assert (alert.severity, alert.step, alert.series, alert.lasted) == ("critical", 1, names.EVAL_LOSS, 1 + 2 * every)
    duration = "; this lasted for 3 evaluations, from step 1 to step 3"
    assert alert.message == "evaluation loss is nan, so this evaluation says nothing about the model" + duration * every


def test_a_warning_can_roll_a_run_back_before_its_numbers_become_non_finite(tmp_path: Path) -> None:
    outcome, sink = run_training(small_config(DYING | {"train.on_warning": "rollback"}), tmp_path)
    assert (outcome.status, outcome.step, outcome.result["rollbacks"]) == ("finished", 60, 1)
    near, back = (next(a for a in sink.alerts if a.kind == kind) for kind in ("overflow_near", "rolled_back"))
    assert [to for to, _ in sink.rollbacks] == [30]
    assert (near.step, back.step) == (35, 35)
    assert near.message in back.message
    assert np.isfinite(losses(sink)).all()
    steps, lr = sink.series(names.LR)
    np.testing.assert_allclose(lr[:, 0], np.where(steps <= 30, 0.2, 0.02), rtol=1e-6)


def test_a_warning_can_lower_the_learning_rate_from_its_own_step_on(tmp_path: Path) -> None:
    config = small_config(DYING | {"train.on_warning": "lower_lr", "train.max_rollbacks": 2, "model.dropout": 0.1})
    outcome, sink = run_training(config, tmp_path / "straight")
    assert (outcome.status, outcome.result["rollbacks"], sink.rollbacks) == ("finished", 2, [])
    lowered = [a for a in sink.alerts if a.kind == "lr_lowered"]
    near = next(a.step for a in sink.alerts if a.kind == "overflow_near")
    assert [a.step for a in lowered] == [near, near], "the warning still held after the first reduction of the learning rate"
    assert "learning rates x 0.1 from" in lowered[0].message
    steps, lr = sink.series(names.LR)
    assert np.array_equal(steps, np.arange(1, 61))
    np.testing.assert_allclose(lr[:, 0], np.where(steps < near, 0.2, 0.002), rtol=1e-6)
    assert np.isfinite(losses(sink)).all()
    # No bit depends on when the host learns of the warning, on where it continues from, or on a later stop.
    other = small_config(config.model_dump(mode="json") | {"train.checkpoint_every": 0})
    _, elsewhere = run_training(other, tmp_path / "elsewhere")
    both = MemorySink()
    run_training(config, tmp_path / "stopped", both, should_stop=lambda: "drain" if both.alerts and both.step >= near else None)
    again, _ = run_training(config, tmp_path / "stopped", both, resume=both.checkpoints[-1][1])
    assert again.status == "finished"
    for other_sink in (elsewhere, both):
        for name in (names.TRAIN_LOSS, names.LR, names.layer_series(0, "weight")):
            for a, b in zip(sink.series(name), other_sink.series(name), strict=True):
                assert np.array_equal(a, b), name


def test_warnings_after_the_last_allowed_rollback_change_nothing(tmp_path: Path) -> None:
    outcome, sink = run_training(small_config(DYING | {"train.on_warning": "rollback", "train.max_rollbacks": 0}), tmp_path)
    assert (outcome.status, outcome.step, sink.rollbacks) == ("diverged", 42, [])


def test_a_cancelled_run_stops_at_that_step_and_can_be_resumed(tmp_path: Path) -> None:
    outcome, sink = run_training(small_config(), tmp_path, should_stop=stop_at(7, "cancel"))
    assert (outcome.status, outcome.step, len(losses(sink))) == ("cancelled", 7, 7)
    assert outcome.result["eval_loss"] is None
    resumed, _ = run_training(small_config(), tmp_path, sink, resume=sink.checkpoints[-1][1])
    assert (resumed.status, len(losses(sink))) == ("finished", 40)
    # resuming a finished run returns its result again
    done, _ = run_training(small_config(), tmp_path, resume=sink.checkpoints[-1][1])
    assert (done.status, done.step, done.result["eval_loss"]) == ("finished", 40, resumed.result["eval_loss"])


def test_damaged_checkpoints_and_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    _, sink = run_training(small_config({"train.steps": 3}), tmp_path)
    path = sink.checkpoints[-1][1]
    with pytest.raises(CheckpointError, match=r"another model\.d_state, model\.dropout"):
        run_training(small_config({"model.d_state": 4, "model.dropout": 0.5}), tmp_path, resume=path)
    with pytest.raises(CheckpointError, match="only 2 steps"):
        run_training(small_config({"train.steps": 2}), tmp_path, resume=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        run_training(small_config(), tmp_path, resume=path)


def test_a_checkpoint_that_lacks_a_newer_configuration_field_can_be_resumed(tmp_path: Path) -> None:
    _, sink = run_training(small_config({"train.steps": 3}), tmp_path)
    old = load_checkpoint(sink.checkpoints[-1][1])
    for field in ("momentum", "nesterov"):
        del old.state["config"]["optimizer"][field]
    path, _ = save_checkpoint(tmp_path / "old", 3, old.tensors, old.state)
    assert run_training(small_config({"train.steps": 4}), tmp_path, resume=path)[0].status == "finished"
    with pytest.raises(CheckpointError, match=r"another optimizer\.momentum$"):
        run_training(small_config({"train.steps": 4, "optimizer.momentum": 0.5}), tmp_path, resume=path)


def test_a_failing_sink_never_stops_training_and_the_result_reports_its_errors(tmp_path: Path) -> None:
    class Failing(MemorySink):
        def open(self, series: list[Any]) -> None:
            raise ConnectionError("away")

        def write(self, flush: Flush) -> None:
            raise ConnectionError("away")

    outcome, _ = run_training(small_config({"train.eval_every": 10}), tmp_path, Failing())
    assert (outcome.status, outcome.step, outcome.result["telemetry_dropped"]) == ("finished", 40, 40)
    assert outcome.result["telemetry_errors"] >= 5
    diverged, _ = run_training(small_config(DIVERGING), tmp_path, Failing())
    assert diverged.status == "diverged"


def test_an_error_in_training_is_raised_after_all_earlier_steps_are_written(tmp_path: Path) -> None:
    def crash() -> None:
        crash.step += 1  # type: ignore[attr-defined]
        if crash.step == 9:  # type: ignore[attr-defined]
            raise MemoryError("out of memory")

    crash.step = 0  # type: ignore[attr-defined]
    sink = MemorySink()
    with pytest.raises(MemoryError):
        run_training(small_config(), tmp_path, sink, should_stop=crash)
    assert len(losses(sink)) == 9


def test_wide_layers_are_recorded_as_quantiles_and_extremes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "WIDE", 40)
    wide = {"model.d_state": 50, "model.reparameterization": {"name": "direct"}, "train.steps": 10}
    _, summary = run_training(small_config(wide), tmp_path)
    _, full = run_training(small_config(wide | {"telemetry.all_eigenvalues": True}), tmp_path)
    assert np.array_equal(losses(summary), losses(full))
    for layer in range(2):
        ratio = full.series(names.layer_series(layer, "grad_over_weight"))[1]
        weight = full.series(names.layer_series(layer, "weight"))[1]
        quantiles = summary.series(names.layer_series(layer, "weight_quantiles"))[1]
        assert np.array_equal(quantiles[:, [0, 4]], np.stack([weight.min(1), weight.max(1)], axis=1))
        at = summary.series(names.layer_series(layer, "grad_over_weight_largest_index"))[1].astype(int)
        largest = summary.series(names.layer_series(layer, "grad_over_weight_largest"))[1]
        assert np.array_equal(largest, np.sort(ratio)[:, : -names.EXTREMES - 1 : -1])
        assert np.array_equal(np.take_along_axis(ratio, at, 1), largest)
        near = summary.series(names.layer_series(layer, "boundary_distance_smallest"))[1]
        np.testing.assert_allclose(near, np.sort(1 - np.abs(weight))[:, : names.EXTREMES], atol=1e-6)


def test_the_divergence_of_a_wide_layer_names_the_eigenvalue_that_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, _ = run_training(small_config(DIVERGING | {"model.d_state": 50}), tmp_path)
    monkeypatch.setattr(names, "WIDE", 40)
    summary, _ = run_training(small_config(DIVERGING | {"model.d_state": 50}), tmp_path)
    assert full.divergence is not None
    assert summary.divergence is not None
    assert summary.divergence["eigenvalue"] is not None
    assert summary.divergence["step"] == full.divergence["step"]
    assert summary.divergence["tensor"] == full.divergence["tensor"]


def test_an_unavailable_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no usable CUDA device"):
        pick_device("cuda")
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_no_step_waits_for_the_device_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def guard() -> None:
        guard.step += 1  # type: ignore[attr-defined]
        torch.cuda.set_sync_debug_mode("error" if 3 <= guard.step < 199 else "default")  # type: ignore[attr-defined]

    guard.step = 0  # type: ignore[attr-defined]
    changes = {"train.device": "cuda", "train.steps": 200, "model.dropout": 0.1, "train.on_bad_batch": "skip"}
    config = small_config(changes | {"optimizer.grad_clip": 1.0})
    try:
        outcome, straight = run_training(config, tmp_path / "straight", should_stop=guard)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert outcome.status == "finished"
    _, both = run_training(config, tmp_path / "stopped", should_stop=stop_at(77, "drain"))
    run_training(config, tmp_path / "stopped", both, resume=both.checkpoints[-1][1])
    assert np.array_equal(losses(straight), losses(both))
    assert len(losses(straight)) == 200


def plant(monkeypatch: pytest.MonkeyPatch, numbers: dict[int, float], which: str = "x") -> None:
    """Put one number into the input ("x") or the target ("y") of the batches of these steps."""

    def get_damaged(*given: Any) -> Any:
        task = get_task(*given)
        whole = task.batch

        def batch(step: int, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
            pair = dict(zip("xy", (t.clone() for t in whole(step, *rest)), strict=True))
            if step in numbers:
                pair[which].view(-1)[7] = numbers[step]
            return pair["x"], pair["y"]

        monkeypatch.setattr(task, "batch", batch)
        return task

    monkeypatch.setattr(run_module, "get_task", get_damaged)


@pytest.mark.parametrize(("which", "tensor"), [("x", "batch.x"), ("y", "batch.y")])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_the_report_of_a_non_finite_batch_blames_the_batch_and_no_eigenvalue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, tensor: str, bad: float
) -> None:
    plant(monkeypatch, {20: bad}, which)
    outcome, sink = run_training(small_config(), tmp_path)
    assert (outcome.status, outcome.step) == ("diverged", 20)
    code = {"x": 1.0, "y": 2.0}[which]
    assert outcome.divergence == {"step": 20, "layer": None, "eigenvalue": None, "tensor": tensor, "value": str(code)}
    assert [(alert.kind, alert.step) for alert in sink.alerts] == [("nonfinite_batch", 20)]
    steps, flags = sink.series(names.BATCH_NONFINITE)
    assert steps.tolist() == list(range(1, 21))
    assert flags[:, 0].tolist() == [0.0] * 19 + [code]


def test_the_largest_numbers_of_a_batch_are_recorded_and_tokens_and_classes_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {2: -1e6, 3: math.inf, 4: math.nan}, "y")
    config = small_config({"train.steps": 4, "train.on_nonfinite": "continue"})
    task = get_task(config.task, NOWHERE)
    wanted = [task.batch(step, 4, 0, torch.device("cpu")) for step in (1, 2, 3, 4)]
    _, sink = run_training(config, tmp_path)
    monkeypatch.undo()
    assert sink.series(names.LARGEST_INPUT)[1][:, 0].tolist() == [float(x.abs().max()) for x, _ in wanted]
    largest = [float(wanted[0][1].abs().max()), 1e6, math.inf, math.nan]
    np.testing.assert_array_equal(sink.series(names.LARGEST_TARGET)[1][:, 0], np.array(largest, np.float32))
    _, sink = run_training(
        small_config({"task": {"name": "associative_recall", "length": 6}, "train.steps": 2}), tmp_path / "two"
    )
    assert not {names.LARGEST_INPUT, names.LARGEST_TARGET} & sink.catalogue.keys()


ROLLS_BACK = {"train.on_nonfinite": "rollback", "train.checkpoint_every": 5}


def test_a_bad_batch_is_not_trained_again_after_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {12: math.nan})
    outcome, sink = run_training(small_config(ROLLS_BACK), tmp_path)
    assert (outcome.status, outcome.step, outcome.result["rollbacks"], sink.rollbacks) == ("diverged", 12, 0, [])
    assert outcome.divergence is not None
    assert outcome.divergence["tensor"] == "batch.x"
    assert [(alert.kind, alert.step) for alert in sink.alerts] == [("nonfinite_batch", 12)]
    assert outcome.reason == (
        "the input, batch.x, of step 12 contains NaN or an infinity before the model computes anything; a rollback would train "
        'the same batch again (train.on_bad_batch "skip" leaves out such batches)'
    )


@pytest.mark.parametrize("on_nonfinite", ["stop", "rollback"])
def test_a_run_that_skips_bad_batches_records_their_steps_and_goes_on(
    on_nonfinite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {10: math.nan, 20: math.inf, 25: -math.inf})
    skips = {"train.on_bad_batch": "skip", "train.eval_every": 10, "train.on_nonfinite": on_nonfinite}
    outcome, sink = run_training(small_config(skips), tmp_path / "straight")
    assert (outcome.status, outcome.step, outcome.divergence, sink.rollbacks) == ("finished", 40, None, [])
    steps, weight = sink.series("ssm/0/weight")
    assert steps.tolist() == list(range(1, 41))
    unchanged = [int(step) for step, moved in zip(steps, np.diff(weight, axis=0).any(axis=1), strict=False) if not moved]
    assert unchanged == [10, 20, 25]
    flags = sink.series(names.BATCH_NONFINITE)[1][:, 0]
    assert np.flatnonzero(flags).tolist() == [9, 19, 24]
    assert np.isfinite(sink.series(names.EVAL_LOSS)[1]).all()
    # three bad batches in a row of 100 steps are one episode
    assert [(a.kind, a.severity, a.step, a.tensor) for a in sink.alerts if "batch" in a.kind] == [
        ("batch_skipped", "warning", 10, "batch.x")
    ]
    assert not [alert for alert in sink.alerts if alert.kind.startswith("nonfinite")]
    _, both = run_training(small_config(skips), tmp_path / "stopped", should_stop=stop_at(22, "drain"))
    run_training(small_config(skips), tmp_path / "stopped", both, resume=both.checkpoints[-1][1])
    assert np.array_equal(losses(both), losses(sink), equal_nan=True)
