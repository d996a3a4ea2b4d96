"""A module that can be evaluated confirms its eigenvalues once, or contradicts them; nothing of the program changes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from stablessm_core.outside.confirm import confirm
from stablessm_core.outside.eigenvalues import UNCONFIRMED
from stablessm_core.outside.modules import find_layers
from tests.core.outside.stand_ins import module


class Kernel(nn.Module):
    """Convolution kernels 2 Re(c lambda_bar^l), whose rate is e^w unless `rate` is another function."""

    def __init__(self, rate: Any = torch.exp, rule: str = "zoh", **settings: Any) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.randn(2, 3, 2))
        self.log_A_real, self.A_imag = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(2, 3))
        self.log_dt = nn.Parameter(torch.randn(2))
        self.register_buffer("calls", torch.zeros(()))
        vars(self).update(settings)
        self._rate, self._rule = rate, rule

    def forward(self, seq_len: int) -> Tensor:
        self.calls += 1
        torch.rand(3), random.random(), np.random.rand()
        z = torch.exp(self.log_dt)[:, None] * (-self._rate(self.log_A_real) + 1j * self.A_imag)
        bar = torch.exp(z) if self._rule == "zoh" else (1 + z / 2) / (1 - z / 2)
        powers = bar[..., None] ** torch.arange(seq_len)
        return 2 * (torch.view_as_complex(self.c)[..., None] * powers).real.sum(1)


class Unit(nn.Module):
    """A linear recurrent unit with the names of a Linear Recurrent Unit; it takes (batch, length, features)."""

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.nu_log, self.theta_log = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))
        self.B = nn.Parameter(torch.randn(5, 3, dtype=torch.complex64))
        self._power = power

    def forward(self, x: Tensor) -> Tensor:
        bar = torch.exp(-torch.exp(self.nu_log) * self._power + 1j * torch.exp(self.theta_log))
        h, out = torch.zeros(5, dtype=bar.dtype), []
        for t in range(x.shape[1]):
            h = bar * h + self.B.to(bar.dtype) @ x[0, t].to(bar.dtype)
            out.append(h.real)
        return torch.stack(out)[None]


@pytest.mark.parametrize("made", [Kernel(), Unit(), Kernel(parameterization="natural"), Kernel(nonlinearity=torch.tanh)])
def test_a_module_that_computes_the_recorded_eigenvalues_is_confirmed(made: nn.Module) -> None:
    found = find_layers(nn.Sequential(made))
    assert found.sentences == []
    assert [layer.eigenvalues.note for layer in found.layers] == [None]


@pytest.mark.parametrize("made", [
    Kernel(softplus), Kernel(lambda w: -w), Kernel(lambda w: 1 / (w * w + 0.1)), Kernel(rule="bilinear"), Unit(power=2.0),
])  # fmt: skip
def test_a_module_that_computes_others_is_not_watched_and_one_sentence_says_so(made: nn.Module) -> None:
    found = find_layers(nn.Sequential(made))
    assert found.layers == []
    (sentence,) = found.sentences
    assert "it computes |lambda| " in sentence
    assert "Declare its map" in sentence


@pytest.mark.parametrize(("name", "settings"), [("S4DKernel", {}), ("STABLESSMKernel", {"parameterization": "best"})])
def test_a_known_class_is_held_to_its_word(name: str, settings: dict[str, Any]) -> None:
    made = type(name, (Kernel,), {})(lambda w: w.abs() + 0.2, **settings)
    found = find_layers(made)
    assert (found.layers, "it is not watched" in found.sentences[0]) == ([], True)


def test_neither_the_module_nor_any_random_number_changes() -> None:
    made, heard = Kernel(), []
    made.register_forward_hook(lambda *_: heard.append(1))
    before = {name: value.clone() for name, value in made.state_dict().items()}
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    find_layers(nn.Sequential(made))
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert (heard, made.training, all(p.requires_grad for p in made.parameters())) == ([], True, True)


def test_many_layers_of_one_class_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = Kernel.forward
    monkeypatch.setattr(Kernel, "forward", lambda self, seq_len: seen.append(1) or real(self, seq_len))
    found = find_layers(nn.Sequential(*(Kernel() for _ in range(20))))
    assert len(found.layers) == 20
    assert len(seen) == 2


class Broken(Kernel):
    def forward(self, seq_len: int) -> Tensor:
        raise SystemError("no kernel here")


class Held(Kernel):
    def __init__(self) -> None:
        super().__init__()
        self.program = [open(__file__)]  # noqa: SIM115 - an object that must not be copied


@pytest.mark.parametrize("make", [Broken, Held, lambda: module("Odd", log_A_real=torch.randn(2, 3), log_dt=torch.randn(2))])
def test_a_module_that_cannot_be_evaluated_stays_unconfirmed_without_a_word(make: Any) -> None:
    found = find_layers(nn.Sequential(make()))
    assert [layer.eigenvalues.note for layer in found.layers] == [UNCONFIRMED]
    assert found.sentences == []


def test_a_module_without_numbers_says_nothing() -> None:
    (layer,) = find_layers(Kernel()).layers
    assert confirm(Kernel().to("meta"), layer.eigenvalues).same is None
