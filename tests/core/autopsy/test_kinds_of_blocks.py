"""Runs with post-norm blocks and bare models die, are replayed, taken apart and forked like other runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablessm_core.autopsy.perform import perform
from stablessm_core.spec.forking import forked_config
from stablessm_core.telemetry import series as names
from tests.core.autopsy.runs import config_of, request_of, trained

pytestmark = [pytest.mark.spread, pytest.mark.slow]

BARE = {"model.block": "bare", "optimizer.lr": 0.3}


def findings_of(folder: Path, changes: dict[str, Any]) -> tuple[dict[str, Any], int]:
    config = config_of(changes)
    outcome, sink, environment = trained(config, folder)
    assert outcome.status == "diverged"
    return perform(request_of(config, outcome, sink, environment)), outcome.step


def test_the_state_of_a_bare_model_overflows_and_is_finite_in_float64(tmp_path: Path) -> None:
    findings, step = findings_of(tmp_path, BARE)
    assert (findings["refused"], findings["bits_equal"], findings["fatal"]) == (None, True, True)
    first = findings["first_nonfinite"]
    assert (first["operation"], first["module"], first["layer"]) == ("scan_states", "blocks.0.ssm", 0)
    assert (first["step"], first["index"][2]) == (step, first["eigenvalue"])
    assert findings["float64"]["finite"]
    assert [m["module"] for m in findings["modules"]] == ["blocks.0.ssm", "head", "loss"]
    lives = {trial["change"]: (trial["lives"], trial["reason"]) for trial in findings["counterfactuals"]}
    assert lives["unchanged"] == (False, None)
    assert lives["scaled_norm"] == (None, "the model has no norm that could be scaled")


@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_a_post_norm_run_is_repeated_and_its_instrumented_step_computes_the_loss_of_the_run(
    tmp_path: Path, activation: str
) -> None:
    findings, _ = findings_of(tmp_path, {"model.block": "post_norm", "model.activation": activation, "optimizer.lr": 0.3})
    assert (findings["refused"], findings["bits_equal"], findings["fatal"]) == (None, True, True)
    assert findings["instruments"]["agrees"]
    first = findings["first_nonfinite"]["operation"]
    assert first == ("scan_states" if activation == "tanh" else "native_layer_norm")
    assert findings["float64"]["finite"]


def test_a_bare_run_is_forked_with_the_same_bits_and_with_another_map(tmp_path: Path) -> None:
    changes = BARE | {"optimizer.lr": 0.001, "train.steps": 20, "train.checkpoint_every": 10}
    config = config_of(changes)
    _, sink, _ = trained(config, tmp_path / "original")
    path = next(path for step, path, _ in sink.checkpoints if step == 10)
    _, replayed, _ = trained(config, tmp_path / "replay", fork=path)
    steps, losses = sink.series(names.TRAIN_LOSS)
    assert np.array_equal(replayed.series(names.TRAIN_LOSS)[1], losses[steps > 10])
    other, differs = forked_config(config.model_dump(mode="json"), {"model.reparameterization.name": "best"})
    assert set(differs) == {"model.reparameterization.name"}
    outcome, forked, _ = trained(other, tmp_path / "best", fork=path)
    assert outcome.status == "finished"
    assert forked.series(names.TRAIN_LOSS)[1][0, 0] == pytest.approx(losses[10, 0], rel=1e-5), "the eigenvalues are the same"
