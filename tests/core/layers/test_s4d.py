"""S4D: the published kernels, a convolution that equals the scan, the initial weights of S4D-Lin and S4D-Inv."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from stablessm_core.layers import S4D
from stablessm_core.maps import MAPS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.layers import layers_text, starts_unstable
from stablessm_core.spec.layers.s4d import S4d

CONTINUOUS = [name for name, map_ in MAPS.items() if "continuous" in map_.forms]


def made(d_model: int = 3, d_state: int = 6, map_: str = "exp", **options: Any) -> S4D:
    torch.manual_seed(0)
    return S4D(d_model, d_state, reparameterization=get_reparameterization(map_, time="continuous"), **options)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("init", ["lin", "inv"])
@pytest.mark.parametrize(("length", "d_model", "d_state"), [(1, 3, 6), (2, 1, 2), (7, 5, 4), (333, 3, 6)])
def test_the_convolution_form_matches_the_scan_form(rule: str, init: str, length: int, d_model: int, d_state: int) -> None:
    layers = [made(d_model, d_state, rule=rule, init=init, form=form).double() for form in ("convolution", "scan")]
    x = torch.randn(2, length, d_model, dtype=torch.float64)
    convolved, scanned = (layer(x) for layer in layers)
    torch.testing.assert_close(convolved, scanned, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layers[0].last_state, layers[1].last_state, rtol=1e-10, atol=1e-10)


def test_the_convolution_and_scan_forms_agree_over_a_long_sequence() -> None:
    x = torch.randn(1, 4097, 2, dtype=torch.float64)
    convolved, scanned = (made(2, 4, form=form).double()(x) for form in ("convolution", "scan"))
    torch.testing.assert_close(convolved, scanned, rtol=1e-10, atol=1e-10)


KERNELS = {
    "zoh": [[0.0384885, 0.0397590, 0.0409796], [-0.4477434, -0.4937852, -0.4549984]],
    "bilinear": [[0.0384846, 0.0397543, 0.0409742], [-0.4410995, -0.4867705, -0.4540384]],
}


@pytest.mark.parametrize("map_", CONTINUOUS)
@pytest.mark.parametrize("form", ["convolution", "scan"])
@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_kernels_match_known_values(rule: str, form: str, map_: str) -> None:
    layer = made(2, 6, map_, rule=rule, form=form).double()
    layer.readout = nn.Identity()
    j = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)
    with torch.no_grad():
        layer.log_dt.copy_(torch.tensor([0.01, 0.1]).log())
        layer.C.copy_(torch.stack([j.sin(), j.cos()], -1))
        layer.D.zero_()
    impulse = torch.zeros(1, 3, 2, dtype=torch.float64)
    impulse[0, 0] = 1
    torch.testing.assert_close(layer(impulse)[0].T.detach(), torch.tensor(KERNELS[rule], dtype=torch.float64), rtol=0, atol=6e-7)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("form", ["convolution", "scan"])
@pytest.mark.slow
def test_gradients_are_exact(form: str, rule: str) -> None:
    layer = made(2, 4, form=form, rule=rule).double()
    x = torch.randn(2, 7, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(run, (x, *values))


def test_float32_outputs_match_float64_outputs() -> None:
    layer = made(8, 16)
    x = torch.randn(1, 2048, 8)
    convolved = layer(x)
    torch.testing.assert_close(convolved.double(), layer.double()(x.double()), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("init", "first"), [("lin", [0.0, math.pi, 2 * math.pi]), ("inv", [1283.4, 414.2])])
def test_initial_frequencies_match_the_published_values(init: str, first: list[float]) -> None:
    layer = made(2, 64, init=init)
    assert layer.A_imag.shape == (2, 32)
    assert layer.A_imag[1, : len(first)].tolist() == pytest.approx(first, abs=0.06)
    assert (layer.reparameterization(layer.w) == -0.5).all() or torch.allclose(
        layer.reparameterization(layer.w), torch.tensor(-0.5)
    )
    steps = made(2000, 2).log_dt
    assert math.log(1e-3) <= steps.min().item() <= math.log(1e-3) + 0.05
    assert math.log(1e-1) - 0.05 <= steps.max().item() <= math.log(1e-1)


@pytest.mark.parametrize(("map_", "start"), [("exp", -0.2), ("direct", -0.5), ("direct", 0.5), ("softplus", -3.0)])
def test_every_initial_eigenvalue_has_the_real_part_that_is_asked_for(map_: str, start: float) -> None:
    layer = made(map_=map_, real_start=start)
    rates = layer.reparameterization(layer.w)
    torch.testing.assert_close(rates, torch.full_like(rates, start), rtol=1e-6, atol=0)
    sizes, steps = layer._modes()[0].abs(), layer.log_dt.detach().exp().double()[:, None]
    torch.testing.assert_close(sizes.detach(), (start * steps).exp().expand(sizes.shape), rtol=1e-6, atol=0)


@pytest.mark.parametrize("map_", ["native", "exp", "softplus", "best", "clip", "relu", "heavytail", "sigmoid"])
def test_only_the_map_direct_may_start_outside_the_boundary(map_: str) -> None:
    model = {"layer": {"name": "s4d", "real_start": 0.5}, "reparameterization": {"name": map_, "b": 0.1}}
    with pytest.raises(ConfigError, match=f"model.reparameterization.name: is '{map_}'; allowed: .*(reaches 0.5|in continuous)"):
        parse_config({"task": {"name": "digits"}, "model": model})
    outside = parse_config({"task": {"name": "digits"}, "model": model | {"reparameterization": {"name": "direct"}}})
    stored = outside.model_dump(mode="json")
    assert (layers_text(stored), starts_unstable(stored)) == ("s4d (unstable start)", True)
    inside = parse_config({"task": {"name": "digits"}, "model": {"layer": "s4d"}}).model_dump(mode="json")
    assert (layers_text(inside), starts_unstable(inside)) == ("s4d", False)
    within = {"model": {"layers": ["lru", {"name": "hyena", "inner": model["layer"]}]}}
    assert (layers_text(within), starts_unstable(within)) == ("lru, hyena (unstable start)", True)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("map_", ["exp", "best"])
def test_the_record_watches_the_eigenvalues_of_the_recurrence(map_: str, rule: str) -> None:
    layer = made(map_=map_, rule=rule).double()
    (record,) = layer.records()
    modes = layer.w.shape[1]
    kinds = {
        "weight": layer.w.detach().flatten().numpy(),
        "dt": layer.log_dt.detach().exp().repeat_interleave(modes).numpy(),
        "phase_weight": layer.A_imag.detach().flatten().numpy(),
    }
    size, angle = (torch.tensor(record.form.derive(kind, kinds)) for kind in ("eigenvalue", "phase"))
    torch.testing.assert_close(torch.polar(size, angle), layer._modes()[0].detach().flatten())


def test_the_final_state_belongs_to_the_weights_of_the_forward_pass() -> None:
    layer, same = made(), made()
    x = torch.randn(2, 20, 3)
    layer(x), same(x)
    wanted = same.last_state
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2)  # the weights change before `last_state` is read
    assert wanted is not None
    torch.testing.assert_close(layer.last_state, wanted, rtol=0, atol=0)


def test_the_layer_has_the_published_number_of_parameters() -> None:
    assert S4d().parameters(64) == 64 * (64 + 64 + 2) + 2 * 64 * 64 + 2 * 64
    assert S4d(d_state=6).parameters(5) == sum(p.numel() for p in made(5, 6).parameters())


def test_invalid_options_are_refused() -> None:
    for wrong in ({"d_state": 5}, {"dt_min": 0.2}, {"init": "legs"}, {"rule": "euler"}):
        with pytest.raises(ValidationError):
            S4d.model_validate(wrong)
