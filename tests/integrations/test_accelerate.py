"""The tracker for accelerate records each step exactly, also steps that a scaler skips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.outside.reading import read
from tests.integrations.conftest import Lazily, code_of, loader, tiny_model, weights_of
from tests.integrations.reference import check_steps, received, recorded

accelerate = Lazily("accelerate")
adapter = Lazily("stablessm.integrations.accelerate")

pytestmark = pytest.mark.long


def test_the_code_of_the_page_records_every_step_as_the_optimizer_received_it(tmp_path: Path) -> None:
    with received() as (weights, gradients):
        exec(code_of("accelerate.md"), {"model": tiny_model(), "loader": loader(240)})
    found = read(tmp_path / "runs")
    check_steps(found, weights, gradients)
    assert len(weights) == 30
    assert [(end.status, end.reason) for end in found.ends] == [("finished", "")]
    opening = found.file.opening
    assert (opening["name"], opening["total_steps"], opening["config"]) == ("tiny mamba", 30, {"lr": 1e-3})
    assert found.sink.series("train/loss")[0].tolist() == list(range(1, 31))
    assert len(found.metrics["perplexity"]) == 60


def test_a_step_that_the_scaler_skips_is_recorded_as_skipped(tmp_path: Path) -> None:
    model = tiny_model()
    plain = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = accelerate.optimizer.AcceleratedOptimizer(plain, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    tracker = adapter.StableSSMTracker(model, optimizer)
    run = tracker.tracker
    skipped = []
    for step, batch in enumerate(loader(24), 1):
        loss = model(**batch).loss
        run.loss(loss)
        optimizer.scaler.scale(loss).backward()
        if step == 3:
            weights_of(model)[0].grad[0, 0] = float("inf")  # type: ignore[index]
        optimizer.step()
        skipped.append(float(optimizer.step_was_skipped))
        optimizer.zero_grad()
    tracker.finish()
    found = read(tmp_path / "runs")
    assert skipped == [0, 0, 1, 0, 0, 0]
    assert recorded(found, "train/skipped").tolist() == skipped
    assert found.sink.alerts == []


def test_without_a_model_only_numbers_are_reported(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(log_with=adapter.StableSSMTracker(project="p"))
    accelerator.init_trackers("p")
    accelerator.log({"loss": 1.5}, step=3)
    accelerator.end_training()
    found = read(tmp_path / "runs")
    assert found.metrics == {"loss": [(3, 1.5)]}
    assert found.file.opening["project"] == "p"


@pytest.mark.parametrize(("arguments", "message"), [
    ({"model": "a model"}, "optimizer is None; give both, or neither"),
    ({"steps": 5}, "StableSSMTracker has no argument 'steps'"),
])  # fmt: skip
def test_a_wrong_argument_raises_before_the_training(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        adapter.StableSSMTracker(**arguments)
