"""Every layer trains, records, resumes bit for bit, forks, and is named in the alert if it diverges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.layers import LAYERS
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import NO_MAP, Form
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.checkpoint import load_checkpoint
from stablessm_core.training.train import Outcome, train
from stablessm_core.watch import recorder as recorder_module

NOWHERE = Path("/nonexistent")
SIZES: dict[str, dict[str, Any]] = {"dss": {"d_state": 4}, "s4": {"d_state": 4}, "s4d": {"d_state": 4}, "s5": {"d_state": 4}}


@pytest.fixture(autouse=True)
def _no_dropped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "PATIENCE", 100.0)


def config_of(name: str, **changes: Any) -> RunConfig:
    model = {
        "layer": {"name": name, **SIZES.get(name, {})},
        "d_model": 8,
        "n_layers": 2,
        "mlp_expansion": 0,
        **changes.pop("model", {}),
    }
    steps = changes.pop("train", {})
    return parse_config(
        {
            "task": {"name": "polynomial_memory", "length": 12},
            "model": model,
            "train": {"steps": 6, "batch_size": 3, "eval_every": 4, "device": "cpu", **steps},
            **changes,
        }
    )


def run_training(config: RunConfig, folder: Path, sink: MemorySink | None = None, **options: Any) -> tuple[Outcome, MemorySink]:
    sink = sink or MemorySink()
    return train(config, sink=sink, data_root=NOWHERE, checkpoint_dir=folder, **options), sink


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.slow
def test_every_layer_trains_records_all_announced_series_and_resumes_bit_for_bit(tmp_path: Path, name: str) -> None:
    config = config_of(name)
    outcome, straight = run_training(config, tmp_path / "straight")
    assert (outcome.status, outcome.result["telemetry_errors"]) == ("finished", 0)
    steps = iter(range(100))
    stopped, both = run_training(config, tmp_path / "stopped", should_stop=lambda: "drain" if next(steps) == 3 else None)
    assert stopped.status == "drained"
    torch.rand(10)
    run_training(config, tmp_path / "stopped", both, resume=both.checkpoints[-1][1])
    timing = {names.TRAIN_RATE, names.STEP_TIME, names.HOST_MEMORY}
    recorded = [s for s in straight.catalogue.values() if not s.derived and s.name not in timing]
    for series in recorded:
        (at, values), (again, others) = straight.series(series.name), both.series(series.name)
        assert len(at) > 0, series.name
        assert values.shape[-1] == series.width or values.ndim == 1, series.name
        assert np.array_equal(at, again), series.name
        assert np.array_equal(values, others, equal_nan=True), series.name
    ends = [load_checkpoint(sink.checkpoints[-1][1]).under("model") for sink in (straight, both)]
    assert all(torch.equal(tensor, ends[1][path]) for path, tensor in ends[0].items())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.slow
def test_a_planted_non_finite_number_is_reported_with_its_step_and_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stablessm_core.training import train as loop

    real = loop.train_step

    def planted(training: Any, batches: Any, step: int, lr_multiplier: float) -> None:
        if step == 3:
            record = training.probe.records[0].record
            tensor = next((p for p in (*record.rows, record.weight) if isinstance(p, torch.nn.Parameter)), None)
            tensor = next(iter(training.model.parameters())) if tensor is None else tensor
            with torch.no_grad():
                tensor.view(-1)[0] = float("nan")
        real(training, batches, step, lr_multiplier)

    monkeypatch.setattr(loop, "train_step", planted)
    outcome, sink = run_training(config_of(name), tmp_path)
    assert (outcome.status, outcome.step) == ("diverged", 3)
    assert outcome.divergence is not None
    first = sink.alerts[0]
    assert first.kind == "nonfinite_weight"
    if sink.catalogue["ssm/0/weight"].form["map"] not in ("fixed", "gate", "none"):  # type: ignore[index]
        assert (first.layer, first.eigenvalue) == (0, 0)
        assert first.tensor.startswith("blocks.0.ssm")


MAPPED = [name for name, section in LAYERS.items() if section.model_validate({"name": name}).time_of_map() is not None]


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.slow
def test_a_run_or_fork_with_another_map_starts_at_the_same_eigenvalues(tmp_path: Path, name: str) -> None:
    _, native = run_training(config_of(name), tmp_path / "native")
    form = Form.from_data(native.catalogue["ssm/0/weight"].form)  # type: ignore[arg-type]
    assert form.map not in NO_MAP
    other = "heavytail" if form.time == "continuous" else "best"
    _, changed = run_training(config_of(name, model={"reparameterization": {"name": other}}), tmp_path / "other")
    _, fork = run_training(
        config_of(name, model={"reparameterization": {"name": other}}, train={"steps": 8}),
        tmp_path / "fork",
        fork=native.checkpoints[-1][1],
    )
    start, same = (eigenvalues_at(sink, 1) for sink in (native, changed))
    np.testing.assert_allclose(same, start, rtol=2e-5, atol=2e-6)
    kept = load_checkpoint(native.checkpoints[-1][1])
    assert fork.catalogue["ssm/0/weight"].form["map"] == other  # type: ignore[index]
    assert kept.step == 6
    assert fork.series("ssm/0/weight")[0][0] == 7


def eigenvalues_at(sink: MemorySink, step: int) -> np.ndarray:
    spec = sink.catalogue["ssm/0/weight"]
    form = Form.from_data(spec.form)  # type: ignore[arg-type]
    found = {}
    for kind in form.inputs:
        at, values = sink.series(f"ssm/0/{kind}")
        row = np.atleast_1d(values[list(at).index(step)]).astype(np.float64)
        found[kind] = np.repeat(row, spec.width // len(row))
    return form.derive("boundary_distance", found)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.slow
def test_a_tiny_learning_rate_gives_tiny_relative_steps_although_the_batches_differ(tmp_path: Path, name: str) -> None:
    _, sink = run_training(config_of(name, optimizer={"lr": 1e-9}), tmp_path)
    assert sink.so_far.get("largest_relative_step", 0.0) < 1e-5
    form = Form.from_data(sink.catalogue["ssm/0/eigenvalue"].form)  # type: ignore[arg-type]
    unknown = form.map == "fixed" or (form.map == "gate" and name != "l2ru")
    assert ("ssm/0/relative_step" in sink.catalogue) == (not unknown)


def test_the_recorded_gates_of_a_short_sequence_belong_to_that_batch(tmp_path: Path) -> None:
    _, sink = run_training(config_of("mamba"), tmp_path)
    low, mean, high = (sink.series(f"ssm/0/gate_{kind}")[1] for kind in ("min", "mean", "max"))
    assert np.all((low > 0) & (low <= mean) & (mean <= high))
    ratio, gradient = sink.series("ssm/0/grad_over_weight")[1], sink.series("ssm/0/gradient")[1]
    assert np.isinf(ratio[0]).any()  # the first states start at the weight ln 1 = 0
    assert np.isfinite(gradient).all()


def test_a_fixed_decay_is_recorded_with_an_eigenvalue_and_no_gradient(tmp_path: Path) -> None:
    _, sink = run_training(config_of("retnet"), tmp_path)
    values = sink.series("ssm/0/weight")[1]
    assert np.array_equal(values, np.broadcast_to(values[0], values.shape))
    assert "ssm/0/grad_over_weight" not in sink.catalogue
