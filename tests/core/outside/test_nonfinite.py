"""A non-finite number is named exactly: layer, eigenvalue and step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import stablessm
from stablessm_core.telemetry.detectors import Alert
from tests.core.outside.reading import read
from tests.core.outside.stand_ins import Mamba2Mixer, MambaMixer

NAN, INF = float("nan"), float("inf")


def plant(tmp_path: Path, model: nn.Module, parameter: torch.Tensor, at: int, step: int, value: float) -> Alert:
    """The first critical alert of a run in which the gradient of one number is `value` at one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for i in range(1, step + 1):
            if i == step:
                parameter.grad.view(-1)[at] = value
            run.loss(1.0)
            optimizer.step()
    return next(alert for alert in read(tmp_path).sink.alerts if alert.severity == "critical")


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("step", [1, 777])
@pytest.mark.parametrize("at", [0, 3, 8])  # A_log is exactly 0 at 0 and 5 at the start
def test_a_bad_gradient_is_named_by_layer_eigenvalue_and_step(at: int, step: int, value: float, tmp_path: Path) -> None:
    model = nn.Sequential(MambaMixer(3, 5), Mamba2Mixer(9), MambaMixer(3, 5))
    alert = plant(tmp_path, model, model[1].A_log, at, step, value)
    assert (alert.kind, alert.layer, alert.eigenvalue, alert.step) == ("nonfinite_gradient", 1, at, step)
    assert alert.tensor == "1.A_log.grad"


@pytest.mark.parametrize("step", [1, 20])
@pytest.mark.parametrize("at", [0, 4321])  # the weights at 0, 16, 32, ... are exactly 0
def test_a_bad_gradient_of_a_wide_layer_is_named_too(at: int, step: int, tmp_path: Path) -> None:
    model = nn.Sequential(MambaMixer(3, 5), MambaMixer(400, 16))
    alert = plant(tmp_path, model, model[1].A_log, at, step, NAN)
    assert (alert.kind, alert.layer, alert.eigenvalue, alert.step) == ("nonfinite_gradient", 1, at, step)


def test_a_bad_gradient_of_a_step_size_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(Mamba2Mixer(9))
    alert = plant(tmp_path, model, model[0].dt_bias, 4, 3, NAN)
    assert (alert.kind, alert.eigenvalue, alert.step, alert.tensor) == ("nonfinite_gradient", 4, 3, "0.dt_bias.grad")


def test_a_bad_weight_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(Mamba2Mixer(9))
    with torch.no_grad():
        model[0].A_log[6] = NAN
    alert = plant(tmp_path, model, model[0].A_log, 0, 1, 0.0)
    assert (alert.kind, alert.eigenvalue, alert.step) == ("nonfinite_weight", 6, 1)


def test_weights_of_zero_raise_no_alert(tmp_path: Path) -> None:
    model = nn.Sequential(MambaMixer(3, 5), MambaMixer(400, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-8)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path):
        for _ in range(30):
            optimizer.step()
    assert read(tmp_path).sink.alerts == []
