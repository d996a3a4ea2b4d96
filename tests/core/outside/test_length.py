"""The length of the sequences, given to `watch`, fills the overflow budget of a watched loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stablessm
from tests.core.outside.reading import Recorded, read
from tests.core.outside.stand_ins import Mamba2Mixer, module


def s5(size: float) -> nn.Module:
    """An S5 layer of three eigenvalues, the largest of this size."""
    rates = torch.tensor([-1.0, -0.5, math.log(size)])
    return module("S5SSM", Lambda=torch.complex(rates, torch.ones(3)), log_step=torch.zeros(3))


def watched(directory: Path, model: nn.Module, **options: Any) -> Recorded:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with stablessm.watch(model, optimizer, mode="offline", dir=directory, **options) as run:
        for _ in range(5):
            for p in model.parameters():
                p.grad = torch.full_like(p, 1e-3)
            run.loss(1.0)
            optimizer.step()
    return read(directory)


def test_the_length_reaches_the_server_and_the_series(tmp_path: Path) -> None:
    found = watched(tmp_path, s5(1.31), length=400)
    assert found.file.opening["how"]["length"] == 400
    series = found.sink.catalogue["ssm/0/overflow_budget"]
    assert series.form is not None
    assert series.form["length"] == 400
    (alert,) = [a for a in found.sink.alerts if a.kind == "overflow_near"]
    assert alert.eigenvalue == 2
    assert f"overflow budget is {400 * math.log(1.31) / math.log(3.4028235e38):.3g} of 1 at length 400" in alert.message


def test_a_budget_below_the_limit_raises_no_alert(tmp_path: Path) -> None:
    found = watched(tmp_path, s5(1.05), length=400)
    assert "overflow_near" not in [a.kind for a in found.sink.alerts]
    assert [a for a in found.sink.alerts if a.kind == "unstable_eigenvalue"]


def test_without_a_length_no_budget_is_recorded(tmp_path: Path) -> None:
    found = watched(tmp_path, Mamba2Mixer(4))
    assert found.file.opening["how"]["length"] is None
    assert not any("overflow_budget" in name for name in found.sink.catalogue)


@pytest.mark.parametrize("length", [0, -3, 2.5, "200", True])
def test_a_wrong_length_is_refused_at_once(tmp_path: Path, length: Any) -> None:
    model = Mamba2Mixer(4)
    with pytest.raises((TypeError, ValueError), match="length is"):
        stablessm.watch(model, torch.optim.SGD(model.parameters(), lr=1.0), length=length, mode="offline", dir=tmp_path)


def test_the_numbers_of_the_training_do_not_change_with_the_length(tmp_path: Path) -> None:
    one, two = s5(1.31), s5(1.31)
    watched(tmp_path / "a", one, length=100)
    watched(tmp_path / "b", two)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        np.testing.assert_array_equal(torch.view_as_real(a.detach()) if a.is_complex() else a.detach(),
                                      torch.view_as_real(b.detach()) if b.is_complex() else b.detach())  # fmt: skip
