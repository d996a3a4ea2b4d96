"""The alerts of a watched loop have the severity that its optimizer calls for, and are not about weights that nobody trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import stablessm
from stablessm_core.telemetry.detectors import Alert
from tests.core.outside.reading import read
from tests.core.outside.stand_ins import Mamba2Mixer, module

Make = Callable[[nn.Module], torch.optim.Optimizer]


def alerts_of(tmp_path: Path, losses: list[float], make: Make, *, clip: bool = False, given: bool = True) -> list[Alert]:
    """The alerts of a loop that reports these losses. given: True if `watch` receives the optimizer."""
    model = Mamba2Mixer(9)
    optimizer = make(model)
    with stablessm.watch(model, optimizer if given else None, mode="offline", dir=tmp_path) as run:
        for loss in losses:
            for p in model.parameters():
                p.grad = torch.full_like(p, 1e-6)
            if clip:
                run.clip_grad_norm_(model.parameters(), 1.0)
            run.loss(loss)
            optimizer.step()
    return [alert for alert in read(tmp_path).sink.alerts if alert.kind == "training_explodes"]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-6)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("make", [adamw, lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-6)], ids=["adamw", "rmsprop"])
def test_a_high_loss_must_last_under_an_optimizer_that_bounds_its_steps(tmp_path: Path, make: Make, given: bool) -> None:
    passing, lasting = [1.0] * 30 + [1e3] * 7 + [1.0] * 30, [1.0] * 30 + [1e3] * 10
    assert alerts_of(tmp_path / "passing", passing, make, given=given) == []
    (alert,) = alerts_of(tmp_path / "lasting", lasting, make, given=given)
    assert (alert.severity, alert.step) == ("warning", 38)


@pytest.mark.parametrize("given", [True, False])
def test_a_high_loss_is_critical_at_once_under_sgd_and_not_if_gradients_are_clipped(tmp_path: Path, given: bool) -> None:
    losses = [1.0] * 30 + [1e3] * 10
    (alert,) = alerts_of(tmp_path / "plain", losses, sgd, given=given)
    assert (alert.severity, alert.step) == ("critical", 31)
    (alert,) = alerts_of(tmp_path / "clipped", losses, sgd, clip=True, given=given)
    assert (alert.severity, alert.step) == ("warning", 38)


def test_a_high_loss_under_an_unknown_optimizer_is_a_warning_at_once(tmp_path: Path) -> None:
    class Odd(torch.optim.Optimizer):
        def step(self, closure: object = None) -> None:
            pass

    (alert,) = alerts_of(tmp_path, [1.0] * 30 + [1e3] * 10, lambda m: Odd(m.parameters(), {"lr": 1.0}))
    assert (alert.severity, alert.step) == ("warning", 31)


def test_a_copy_that_no_optimizer_trains_is_not_dead(tmp_path: Path) -> None:
    model = Mamba2Mixer(4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    both = nn.ModuleDict({"model": model, "average": average})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with stablessm.watch(both, optimizer, mode="offline", dir=tmp_path) as run:
        for step in range(220):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            if step >= 110:
                model.A_log.grad = torch.zeros_like(model.A_log)
            run.loss(1.0)
            optimizer.step()
            average.update_parameters(model)
    found = read(tmp_path).sink
    assert "ssm/1/weight" in found.catalogue
    dead = [(a.layer, a.step) for a in found.alerts if a.kind == "dead_eigenvalues"]
    assert dead == [(0, 210)], "the trained layer has stopped learning; its average never learns"


UNSTABLE, STEP = torch.full((3,), 0.3), torch.zeros(3)


@pytest.mark.parametrize(("model", "said"), [
    (module("Unheard", Lambda_re=UNSTABLE, Lambda_im=STEP, log_step=STEP), True),
    (module("S5SSM", Lambda=torch.complex(UNSTABLE, STEP), log_step=STEP), False),
])  # fmt: skip
def test_an_alert_about_an_eigenvalue_says_that_its_map_is_assumed(tmp_path: Path, model: nn.Module, said: bool) -> None:
    optimizer = sgd(model)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for _ in range(30):
            for p in model.parameters():
                p.grad = torch.full_like(p, 1e-3)
            run.loss(1.0)
            optimizer.step()
    about = [alert for alert in read(tmp_path).sink.alerts if alert.eigenvalue is not None]
    assert about
    assert all(("its map is assumed" in alert.message) == said for alert in about)
