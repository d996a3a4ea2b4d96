"""A layer whose form does not match its recurrence is refused by name. The forms of this repository's layers all match."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.form_probe import FormError, form_error, probe_form
from stablessm_core.layers.gla import GatedLinearAttention
from stablessm_core.layers.lru import LRU
from stablessm_core.layers.mamba import MambaBlock
from stablessm_core.layers.retnet import MultiScaleRetention
from stablessm_core.layers.s4d import S4D
from stablessm_core.layers.stable_ssm import StableSSM
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers import LAYERS
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record
from tests.core.layers.test_every_layer import D_MODEL, SMALL, every_layer, made, x_of

EXP = get_reparameterization("exp", time="discrete")
RATE = get_reparameterization("exp", time="continuous")


class Turning(WatchedLayer):
    """h_t = f(w) e^{i theta} h_{t-1} + x_t, one complex eigenvalue per feature; theta itself is trained."""

    phase = "radians"

    def __init__(self, d_model: int) -> None:
        super().__init__(EXP)
        self.w = nn.Parameter(EXP.inverse(torch.linspace(0.5, 0.9, d_model)).float())
        self.theta = nn.Parameter(torch.linspace(0.1, 3.0, d_model))

    def forward(self, x: Tensor) -> Tensor:
        h = linear_scan(self._lambda(), x.to(torch.complex64), backend=self.scan_backend)
        self.watch(h[:, -1].detach().abs())
        return h.real

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self._lambda() * state + x_t
        return h.real, h

    def initial_state(self, batch: int) -> Tensor:
        return self.w.new_zeros(batch, len(self.w), dtype=torch.complex64)

    def records(self) -> list[Record]:
        return [Record(replace(EXP.form, phase=self.phase), self.w, phase=self.theta)]

    def _lambda(self) -> Tensor:
        return torch.polar(self.reparameterization(self.w), self.theta)


@every_layer
def test_the_form_of_every_layer_matches_its_recurrence(name: str, options: dict[str, Any]) -> None:
    assert probe_form(made(name, options), name, D_MODEL) == ""


def test_a_layer_without_single_steps_reports_why_it_is_not_probed() -> None:
    for options in ({"d_state": 3, "version": "softmax"}, {"inner": {"name": "dss", "version": "softmax"}}):
        name = "hyena" if "inner" in options else "dss"
        assert "no single steps" in probe_form(made(name, options), name, D_MODEL)
    others = [made(name, SMALL.get(name, [{}])[0]) for name in LAYERS]
    assert not [layer for layer in others if layer.not_probed]


def test_a_record_with_the_wrong_form_of_a_trained_angle_is_refused_by_name() -> None:
    layer = Turning(4)
    assert probe_form(layer, "turning", 4) == ""
    layer.phase = "angle"
    message = r"layer 'turning'.*Record 'eigenvalues', eigenvalue 0: by the form \(map 'exp', discrete time.*phase 'angle'\)"
    with pytest.raises(FormError, match=message):
        probe_form(layer, "turning", 4)


class WrongMap(StableSSM):
    def records(self) -> list[Record]:
        return [replace(super().records()[0], form=Form.of_map("sigmoid", "discrete"))]


class WrongRule(S4D):
    def records(self) -> list[Record]:
        return [replace(record := super().records()[0], form=replace(record.form, rule="bilinear"))]


class NoStepSize(S4D):
    def _modes(self) -> tuple[Tensor, Tensor]:
        lambda_bar, gain = super()._modes()
        return lambda_bar ** (1 / self.log_dt.double().exp()[:, None]), gain


class Real(LRU):
    def records(self) -> list[Record]:
        return [Record(self.reparameterization.form, self.w)]


class OtherOrder(LRU):
    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, h = super().step(x_t, state)
        return y, h.flip(1)


class OtherGate(GatedLinearAttention):
    def watch(self, last_state: Tensor, **gates: Tensor) -> None:
        super().watch(last_state, **{name: values / 16 for name, values in gates.items()})


class ForgottenScale(MambaBlock):
    def records(self) -> list[Record]:
        first, *others = super().records()
        return [replace(first, form=replace(first.form, scale=8.0)), *others]


class OtherDecay(MultiScaleRetention):
    def records(self) -> list[Record]:
        return [replace(super().records()[0], weight=2 * self.decay)]


@pytest.mark.parametrize(
    "layer",
    [
        WrongMap(4, 5, reparameterization="exp"),
        WrongRule(4, 64, reparameterization=RATE),
        NoStepSize(4, 6, reparameterization=RATE),
        Real(4, 5, reparameterization=EXP),
        OtherOrder(4, 5, reparameterization=EXP),
        OtherGate(4, 2),
        ForgottenScale(4, 3),
        OtherDecay(4, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_form_that_does_not_match_the_recurrence_is_refused(layer: WatchedLayer) -> None:
    with pytest.raises(FormError, match="does not match its recurrence"):
        probe_form(layer, "planted", 4)


@every_layer
def test_the_probe_changes_neither_the_layer_nor_the_random_number_generator(name: str, options: dict[str, Any]) -> None:
    layer = made(name, options)
    layer(x_of(2, 5))
    before, state, drawn = copy.deepcopy(layer.state_dict()), layer.last_state, torch.get_rng_state()
    gates = layer.gates()
    probe_form(layer, name, D_MODEL)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    assert torch.equal(layer.last_state, state)
    assert all(torch.equal(values, gates[gate]) for gate, values in layer.gates().items())
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert not hasattr(layer, "scan_backend") or layer.scan_backend == "auto"


class Bounded(Turning):
    """Departs from its form as soon as training has made an eigenvalue larger than 0.95."""

    def _lambda(self) -> Tensor:
        return torch.polar(self.reparameterization(self.w).clamp(max=0.95), self.theta)


def test_a_layer_that_departs_from_its_form_with_trained_weights_is_measured() -> None:
    layer = Bounded(4)
    assert probe_form(layer, "bounded", 4) == ""
    assert form_error(layer, 4) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-4))
    with torch.no_grad():
        layer.w[3] = EXP.inverse(torch.tensor(0.999))
    assert form_error(layer, 4) == (pytest.approx(0.049, rel=0.01), pytest.approx(0, abs=1e-4))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
@every_layer
def test_what_rounding_explains_is_no_departure(name: str, options: dict[str, Any], scale: float) -> None:
    """With weights as an exploding run has them."""
    layer = made(name, options)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(scale)
    if scale == 1:
        assert layer.not_probed or form_error(layer, D_MODEL) == (pytest.approx(0, abs=1e-4), pytest.approx(0, abs=1e-2))
    found = form_error(layer, D_MODEL)
    assert isinstance(found, str) or found[0] - found[1] < 1e-3


@pytest.mark.parametrize("map_", ["direct", "tanh", "exp"])
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("hyena",)])
def test_a_negative_weight_has_the_recorded_eigenvalue_with_every_map(name: str, map_: str) -> None:
    """A map such as `direct` then turns a complex eigenvalue by half a circle."""
    options = SMALL.get(name, [{}])[0]
    try:
        layer = made(name, options, map_)
    except ValueError:
        pytest.skip("this layer cannot have this map")
    with torch.no_grad():
        for record in layer.records():
            if isinstance(record.weight, nn.Parameter):
                record.weight.neg_()
    found = form_error(layer, D_MODEL)
    assert isinstance(found, str) or found[0] - found[1] < 1e-3
