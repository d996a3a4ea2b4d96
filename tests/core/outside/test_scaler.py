"""A gradient scaler that skips step after step is an alert, and half precision is recorded as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stablessm
from stablessm_core.telemetry.detectors.alert import Watch
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values
from stablessm_core.telemetry.detectors.steps_skipped import detect
from tests.core.outside.reading import Recorded, read
from tests.core.outside.stand_ins import Mamba2Mixer


def train(tmp_path: Path, skips: range, steps: int = 40) -> Recorded:
    """A loop with a scaler whose gradients are infinite at the steps in `skips`."""
    model = Mamba2Mixer(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = model.A_log.square().sum() * (float("inf") if step in skips else 1.0)
            run.loss(loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return read(tmp_path)


def test_ten_skipped_steps_in_a_row_are_a_warning_that_says_since_when_no_weight_has_changed(tmp_path: Path) -> None:
    found = train(tmp_path, range(16, 31))
    alerts = found.sink.alerts
    assert [(a.kind, a.severity, a.step, a.series) for a in alerts] == [("steps_skipped", "warning", 25, "train/skipped")]
    assert "10 steps in a row, from step 16 on; no recorded weight has changed since step 15" in alerts[0].message
    skipped, scale = (found.sink.series(name)[1][:, 0] for name in ("train/skipped", "train/scale"))
    assert skipped.sum() == 15
    assert scale[14] == 2**40
    assert scale[30] == 2**25


def test_a_run_whose_scaler_skips_every_step_is_critical_and_one_that_looks_for_its_factor_is_quiet(tmp_path: Path) -> None:
    every = [a for a in train(tmp_path / "every", range(1, 99)).sink.alerts if a.kind == "steps_skipped"]
    assert [(a.severity, a.step) for a in every] == [("warning", 10), ("critical", 20)]
    assert "no recorded weight has changed since the start" in every[1].message
    assert [a for a in train(tmp_path / "start", range(1, 9)).sink.alerts if a.kind == "steps_skipped"] == []


@pytest.mark.parametrize("size", [1, 3, 40])
def test_flushes_of_any_size_give_the_same_alert_and_a_weight_that_moved_is_not_called_unchanged(size: int) -> None:
    weights = np.repeat(np.arange(40.0) // 6, 2).reshape(40, 2).astype(np.float32)  # moves at every sixth step
    skipped, watch = np.ones(40, np.float32), Watch(parameters=["w"])
    found: list[Any] = []
    for at in range(0, 40, size):
        part = weights[at : at + size]
        nothing = Values(np.empty((len(part), 0), np.float32))
        layer = LayerRows(0, "w", nothing, Values(part), nothing, nothing)
        norms = np.zeros((len(part), 2), np.float32)
        rows = Rows(at + 1, np.zeros(len(part), np.float32), norms, [layer], skipped=skipped[at : at + size])
        for condition in detect(rows, watch):
            found += [condition.alert(int(row)) for row in np.flatnonzero(condition.holds)]
    assert [alert.step for alert in found] == list(range(10, 41))
    assert not any("no recorded weight" in alert.message for alert in found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inside", [True, False])
def test_autocast_is_the_precision_of_the_run(tmp_path: Path, dtype: torch.dtype, inside: bool) -> None:
    model = nn.Sequential(Mamba2Mixer(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for _ in range(3):
            with torch.autocast("cpu", dtype=dtype):
                loss = model(torch.ones(2, 3)).float().square().mean()
                if inside:
                    run.loss(loss.item())
            if not inside:
                run.loss(loss)
            loss.backward()
            optimizer.step()
    assert read(tmp_path).file.opening["how"]["precision"] == str(dtype).removeprefix("torch.")


def test_without_autocast_the_precision_is_that_of_the_parameters(tmp_path: Path) -> None:
    model = Mamba2Mixer(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stablessm.watch(model, None, mode="offline", dir=tmp_path) as run:
        loss = model(torch.ones(2, 3)).square().mean()
        run.loss(loss)
        loss.backward()
        optimizer.step()
    how = read(tmp_path).file.opening["how"]
    assert (how["precision"], how["optimizer"]) == ("float32", "sgd")
