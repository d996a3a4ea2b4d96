"""A run goes on from another's checkpoint: with the same settings bit for bit, with others from the same weights on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.config import RunConfig, parse_config, with_settings
from stablessm_core.forking import ForkError
from stablessm_core.forms import Form
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.recorder import MemorySink
from stablessm_core.training.checkpoint import load_checkpoint, save_checkpoint
from stablessm_core.training.train import Outcome, train

BASE: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 20},
    "model": {"n_layers": 2, "d_model": 6, "d_state": 5, "dropout": 0.1},
    "optimizer": {"lr": 0.02},
    "train": {"steps": 60, "batch_size": 4, "eval_every": 0, "checkpoint_every": 20, "device": "cpu"},
}
CLOCKED = (names.TRAIN_RATE, names.STEP_TIME, names.HOST_MEMORY)  # no two runs have the same
PARTED = 40  # the last checkpoint before the end


def configured(**changes: Any) -> RunConfig:
    return parse_config(with_settings(BASE, {path.replace("__", "."): value for path, value in changes.items()}))


def go(config: RunConfig, folder: Path, **options: Any) -> tuple[Outcome, MemorySink]:
    sink = MemorySink()
    return train(config, sink=sink, data_root=Path("/nonexistent"), checkpoint_dir=folder, **options), sink


@pytest.fixture(scope="module", params=["discrete", "continuous"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, MemorySink]:
    folder = tmp_path_factory.mktemp("original")
    _, sink = go(configured(model__reparameterization__time=request.param), folder)
    return request.param, folder / f"step-{PARTED:010d}.safetensors", sink


def forked(original: tuple[str, Path, MemorySink], folder: Path, **changes: Any) -> tuple[dict[str, Any], MemorySink]:
    time, path, _ = original
    facts: dict[str, Any] = {}
    config = configured(model__reparameterization__time=time, **changes)
    outcome, sink = go(config, folder, fork=path, on_ready=facts.update)
    assert outcome.status == "finished"
    return facts["fork"], sink


def test_a_replay_repeats_the_very_bits_under_the_same_step_numbers(original: Any, tmp_path: Path) -> None:
    facts, sink = forked(original, tmp_path)
    assert facts == {"at_step": PARTED, "changed": "nothing (a replay)", "moments": "kept"}
    for name, series in sink.catalogue.items():
        if series.derived or name in CLOCKED or series.group == names.EVAL:
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
def test_under_another_map_every_eigenvalue_begins_where_it_was(original: Any, tmp_path: Path, name: str) -> None:
    facts, sink = forked(original, tmp_path, model__reparameterization__name=name)
    assert "blocks.0.ssm.w, blocks.1.ssm.w begin anew" in facts["moments"]
    at = PARTED  # the row after it
    eigenvalues = np.stack([_eigenvalue(original[2], layer, at) for layer in (0, 1)])
    assert np.abs(np.stack([_eigenvalue(sink, layer, 0) for layer in (0, 1)]) - eigenvalues).max() <= 4 * 2.0**-24
    loss, before = sink.series(names.TRAIN_LOSS)[1][0, 0], original[2].series(names.TRAIN_LOSS)[1][at, 0]
    assert loss == pytest.approx(before, rel=1e-5)  # the same function of the same batch
    start = load_checkpoint(tmp_path / f"step-{PARTED:010d}.safetensors")  # the fork's own first checkpoint
    assert not start.tensors["optimizer/blocks.0.ssm.w/exp_avg"].any()
    assert start.tensors["optimizer/head.weight/exp_avg"].any()


def test_a_checkpoint_that_the_fork_cannot_go_on_from_is_refused_in_a_sentence(original: Any, tmp_path: Path) -> None:
    time, path, _ = original
    refused = [
        ({"train__steps": PARTED}, f"the checkpoint is of step {PARTED}; the fork has only {PARTED} steps"),
        ({"model__d_state": 6}, "model.d_state: cannot change in a fork"),
        ({"train__seed": 1}, "train.seed: cannot change in a fork"),
    ]
    for changes, sentence in refused:
        with pytest.raises(ForkError, match=sentence):
            go(configured(model__reparameterization__time=time, **changes), tmp_path, fork=path)
    checkpoint = load_checkpoint(path)
    for layer in (0, 1):  # as `direct` would have them: inside, but for one
        checkpoint.tensors[f"model/blocks.{layer}.ssm.w"].fill_(0.5 if time == "discrete" else -0.5)
    checkpoint.tensors["model/blocks.1.ssm.w"][3] = 1.25
    of_direct = configured(model__reparameterization={"name": "direct", "time": time}).model_dump(mode="json")
    outside, _ = save_checkpoint(tmp_path / "outside", PARTED, checkpoint.tensors, checkpoint.state | {"config": of_direct})
    reach = r"\[-1, 1\)" if time == "discrete" else r"\[-2, 0\)"
    said = rf"^eigenvalue 3 of layer 1 is 1\.25, which 'best' \({time} time\) cannot reach: it reaches {reach}$"
    with pytest.raises(ForkError, match=said):
        go(configured(model__reparameterization__time=time), tmp_path, fork=outside)


def _eigenvalue(sink: MemorySink, layer: int, row: int) -> np.ndarray:
    form = sink.catalogue[names.layer_series(layer, "weight")].form
    assert form is not None
    form = Form.from_data(form)
    recorded = {kind: sink.series(names.layer_series(layer, kind))[1][row].astype(np.float64) for kind in form.inputs}
    return form.derive("eigenvalue", recorded)
