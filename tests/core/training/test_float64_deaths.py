"""The repeat of a fatal step in float64 separates faults of our arithmetic from numbers that float32 cannot hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.float64_deaths import BATCH, config_of, repeated, table, trained
from stablessm_core.model import build_model
from stablessm_core.tasks.loading import get_task
from studies.systems import QUICK, models


@pytest.mark.parametrize(
    ("scale", "kind"),
    [(1.0, "arithmetic"), (1e21, "range"), (1e36, "range"), (float("nan"), "dynamics"), (float("inf"), "dynamics")],
)
def test_a_death_counts_as_arithmetic_only_if_every_true_number_fits_float32(scale: float, kind: str) -> None:
    config = config_of(models(QUICK, ["lru"])[0], lr=0.01, seed=0, steps=1)
    task = get_task(config.task, Path())
    weights = build_model(config, task).state_dict()
    weights["encoder.weight"] = weights["encoder.weight"] * scale
    found = repeated(config, task, weights, *task.batch(1, BATCH, 0, "cpu"))
    assert found["kind"] == kind
    if kind == "range":
        place, largest, limit = found["beyond"][0]
        assert place == "blocks.0.norm input"
        assert largest > limit


@pytest.mark.slow
def test_a_run_dies_at_the_step_whose_norm_squares_too_large_a_number() -> None:
    config = config_of(models(QUICK, ["mamba"])[0], lr=3.0, seed=0, steps=5)
    found = trained(config)
    assert (found["died"], found["first"], found["kind"]) == (3, "loss", "range")
    assert torch.tensor(found["loss64"]).isfinite()
    record = {"layer": "mamba", "map": "native", "lr": 3.0, "seed": 0, "steps": 5}
    assert list(table([record | found])) == [
        "| layer | map | lr 3 |",
        "| --- | --- | --- |",
        "| mamba | native | 0/1 (1 range) |",
        "",
        "1 runs, 1 deaths: 0 dynamics, 1 range, 0 arithmetic.",
    ]
