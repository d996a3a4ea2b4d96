"""A fork continues from another run's checkpoint: bit for bit without changes, from the same weights with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.forking import ForkError
from stablessm_core.spec.paths import with_settings
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.checkpoint import load_checkpoint, save_checkpoint
from stablessm_core.training.train import Outcome, train

BASE: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 20},
    "model": {"n_layers": 2, "d_model": 6, "d_state": 5, "dropout": 0.1},
    "optimizer": {"lr": 0.02},
    "train": {"steps": 60, "batch_size": 4, "eval_every": 0, "checkpoint_every": 20, "device": "cpu"},
}
CLOCKED = (names.TRAIN_RATE, names.STEP_TIME, names.HOST_MEMORY)  # series that differ between any two runs
PARTED = 40  # step of the last checkpoint before the end


def configured(**changes: Any) -> RunConfig:
    return parse_config(with_settings(BASE, {path.replace("__", "."): value for path, value in changes.items()}))


def run_training(config: RunConfig, folder: Path, **options: Any) -> tuple[Outcome, MemorySink]:
    sink = MemorySink()
    return train(config, sink=sink, data_root=Path("/nonexistent"), checkpoint_dir=folder, **options), sink


@pytest.fixture(scope="module", params=["discrete", "continuous"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, MemorySink]:
    folder = tmp_path_factory.mktemp("original")
    _, sink = run_training(configured(model__reparameterization__time=request.param), folder)
    return request.param, folder / f"step-{PARTED:010d}.safetensors", sink


def forked(original: tuple[str, Path, MemorySink], folder: Path, **changes: Any) -> tuple[dict[str, Any], MemorySink]:
    time, path, _ = original
    facts: dict[str, Any] = {}
    config = configured(model__reparameterization__time=time, **changes)
    outcome, sink = run_training(config, folder, fork=path, on_ready=facts.update)
    assert outcome.status == "finished"
    return facts["fork"], sink


@pytest.mark.slow
def test_a_replay_repeats_the_same_bits_under_the_same_step_numbers(original: Any, tmp_path: Path) -> None:
    facts, sink = forked(original, tmp_path)
    assert facts == {"at_step": PARTED, "changed": "nothing (a replay)", "moments": "kept"}
    for name, series in sink.catalogue.items():
        if series.derived or name in CLOCKED or series.group in (names.EVAL, names.MEMORIES):
            continue
        steps, values = sink.series(name)
        before, all_values = original[2].series(name)
        assert steps.tolist() == list(range(PARTED + 1, 61)), name
        assert values.tobytes() == all_values[before > PARTED].tobytes(), name
    ends = [load_checkpoint(folder / "step-0000000060.safetensors") for folder in (original[1].parent, tmp_path)]
    for path, tensor in ends[0].tensors.items():
        if not path.startswith("levels/"):
            assert torch.equal(tensor, ends[1].tensors[path]), path


@pytest.mark.parametrize("name", ["direct", "softplus"])
@pytest.mark.slow
def test_a_fork_with_another_map_starts_with_the_eigenvalues_of_the_checkpoint(original: Any, tmp_path: Path, name: str) -> None:
    facts, sink = forked(original, tmp_path, model__reparameterization__name=name)
    assert "blocks.0.ssm.w, blocks.1.ssm.w start at 0" in facts["moments"]
    at = PARTED  # index of the first row after the checkpoint
    eigenvalues = np.stack([_eigenvalue(original[2], layer, at) for layer in (0, 1)])
    assert np.abs(np.stack([_eigenvalue(sink, layer, 0) for layer in (0, 1)]) - eigenvalues).max() <= 4 * 2.0**-24
    loss, before = sink.series(names.TRAIN_LOSS)[1][0, 0], original[2].series(names.TRAIN_LOSS)[1][at, 0]
    assert loss == pytest.approx(before, rel=1e-5)  # the forked model computes the same function of the same batch
    start = load_checkpoint(tmp_path / f"step-{PARTED:010d}.safetensors")  # the fork's own first checkpoint
    assert not start.tensors["optimizer/blocks.0.ssm.w/exp_avg"].any()
    assert start.tensors["optimizer/head.weight/exp_avg"].any()


def test_a_checkpoint_that_the_fork_cannot_continue_is_refused_with_the_reason(original: Any, tmp_path: Path) -> None:
    time, path, _ = original
    refused = [
        ({"train__steps": PARTED}, f"the checkpoint is of step {PARTED}; the fork has only {PARTED} steps"),
        ({"model__d_state": 6}, "model.d_state: cannot change in a fork"),
        ({"train__seed": 1}, "train.seed: cannot change in a fork"),
    ]
    for changes, sentence in refused:
        with pytest.raises(ForkError, match=sentence):
            run_training(configured(model__reparameterization__time=time, **changes), tmp_path, fork=path)
    checkpoint = load_checkpoint(path)
    # Weights of a `direct` model whose eigenvalues are inside the boundary, except for one.
    for layer in (0, 1):
        checkpoint.tensors[f"model/blocks.{layer}.ssm.w"].fill_(0.5 if time == "discrete" else -0.5)
    checkpoint.tensors["model/blocks.1.ssm.w"][3] = 1.25
    of_direct = configured(model__reparameterization={"name": "direct", "time": time}).model_dump(mode="json")
    outside, _ = save_checkpoint(tmp_path / "outside", PARTED, checkpoint.tensors, checkpoint.state | {"config": of_direct})
    reach = r"\[-1, 1\)" if time == "discrete" else r"\[-2, 0\)"
    said = rf"^eigenvalue 3 of layer 1 is 1\.25, which 'best' \({time} time\) cannot reach: it reaches {reach}$"
    with pytest.raises(ForkError, match=said):
        run_training(configured(model__reparameterization__time=time), tmp_path, fork=outside)


def _eigenvalue(sink: MemorySink, layer: int, row: int) -> np.ndarray:
    form = sink.catalogue[names.layer_series(layer, "weight")].form
    assert form is not None
    form = Form.from_data(form)
    recorded = {kind: sink.series(names.layer_series(layer, kind))[1][row].astype(np.float64) for kind in form.inputs}
    return form.derive("eigenvalue", recorded)
