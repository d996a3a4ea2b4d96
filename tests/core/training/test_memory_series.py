"""A run records the memory function of its network at evaluations, if this costs at most 2 % of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.series import MEMORY
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.train import train


def trained(tmp_path: Path, task: dict[str, Any], **settings: Any) -> MemorySink:
    data = {"task": task, "model": {"d_model": 8, "d_state": 8, "n_layers": 1}, "train": {"device": "cpu"} | settings}
    sink = MemorySink()
    train(parse_config(data), sink=sink, data_root=tmp_path, checkpoint_dir=tmp_path)
    return sink


@pytest.mark.slow
def test_memory_is_recorded_at_evaluations_that_are_far_enough_apart(tmp_path: Path) -> None:
    sink = trained(tmp_path, {"name": "polynomial_memory", "length": 40}, steps=130, eval_every=50)
    step, memory = sink.series(MEMORY)
    assert step.tolist() == [50, 100], "the evaluation at step 130 comes 30 steps after another"
    assert memory.shape == (2, 40)
    assert np.isfinite(memory).all()
    assert (memory[-1] > 0).any()


@pytest.mark.slow
def test_memory_is_not_recorded_where_it_would_cost_too_much_or_has_no_meaning(tmp_path: Path) -> None:
    for task, settings in (
        ({"name": "polynomial_memory", "length": 40}, {"steps": 60, "eval_every": 20}),
        ({"name": "polynomial_memory", "length": 40}, {"steps": 40, "eval_every": 0}),
        ({"name": "copying", "noise_length": 5}, {"steps": 60, "eval_every": 0}),
    ):
        with pytest.raises(KeyError):
            trained(tmp_path, task, **settings).series(MEMORY)


@pytest.mark.slow
def test_training_has_the_same_bits_with_and_without_measurements_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"name": "polynomial_memory", "length": 40}
    with_memory = trained(tmp_path / "a", task, steps=110, eval_every=50).series("train/loss")[1]
    monkeypatch.setattr("stablessm_core.training.memory.LEAST_STEPS", 1000)
    without = trained(tmp_path / "b", task, steps=110, eval_every=50).series("train/loss")[1]
    assert with_memory.tobytes() == without.tobytes()
