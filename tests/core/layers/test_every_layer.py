"""Claims that hold for every layer. A new layer is covered as soon as it is registered."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.maps import MAPS
from stablessm_core.maps import formulas as formulas_of
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.layers import LAYERS
from stablessm_core.telemetry.forms import GATES, spread
from stablessm_core.watch.watchable import Record, Watchable, watched_records
from tests.core.layers.alerts import nonfinite_alerts

D_MODEL = 8
# Options by layer that make it small or choose another of its forms. Layers that are not listed use their defaults.
SMALL: dict[str, list[dict[str, Any]]] = {
    "stable_ssm": [{"d_state": 5, "activation": "tanh"}],
    "hyena": [
        {"inner": {"name": "stable_ssm", "d_state": 5, "activation": "identity"}},
        {"inner": {"name": "lru", "d_state": 5}},
    ],
    "mamba2": [{}, {"d_state": 3, "head_width": 2, "n_groups": 4}],
    "retnet": [{}, {"n_heads": 1, "expand": 3}],
    "gla": [{}, {"n_heads": 8}],
    "gated_deltanet": [{}, {"n_heads": 2, "head_width": 3, "expand": 1, "allow_neg_eigval": True}],
    "rwkv6": [{}, {"head_size": 2, "mix_rank": 3, "decay_rank": 2}],
    "s4": [{"d_state": 6}, {"d_state": 4, "kernel": "cauchy"}],
    "l2ru": [{}, {"init": "random", "train_gamma": True, "gamma": 2.0}],
    "lru": [{"d_state": 5}, {"d_state": 3, "r_min": 0.8, "r_max": 0.99, "max_phase": 0.5}],
    "s4d": [{"d_state": 6}, {"d_state": 4, "init": "inv", "rule": "bilinear"}],
    "s5": [{"d_state": 8}, {"d_state": 8, "blocks": 1, "rule": "bilinear", "activation": "half_glu2"}],
    "dss": [{"d_state": 3}, {"d_state": 3, "version": "softmax", "length": 40}],
}
CASES = [(name, options) for name in LAYERS for options in SMALL.get(name, [{}])]


def section_of(name: str, options: dict[str, Any]) -> LayerSection:
    return LAYERS[name].model_validate({"name": name, **options})


def time_of(section: LayerSection) -> str | None:
    # stable_ssm is the only layer whose map chooses between discrete and continuous time.
    return "discrete" if section.name == "stable_ssm" else section.map_time


def made(name: str, options: dict[str, Any], map_: str | None = None, seed: int = 0) -> Any:
    section = section_of(name, options)
    time = time_of(section)
    reparameterization = get_reparameterization(map_ or section.native, time=time) if time else None
    torch.manual_seed(seed)
    return build_layer(section, Surroundings(D_MODEL, reparameterization, index=1, n_layers=2))


def x_of(batch: int, length: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(batch, length, D_MODEL, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors(part)


def recorded(record: Record, gates: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The recorded values of one step by kind, each repeated to the record's width."""
    weight = (
        record.weight
        if record.weight is not None
        else torch.stack([row.reshape(len(row), -1).norm(dim=1) for row in record.rows]).sum(0)
    )
    of: dict[str, Tensor] = {"weight": weight}
    if record.log_dt is not None:
        of["dt"] = record.log_dt.exp()
    if record.phase is not None:
        of["phase_weight"] = record.phase
    if record.gate:
        of |= dict(zip(GATES, gates[record.gate], strict=True))
    return spread({kind: values.detach().double().flatten().numpy() for kind, values in of.items()}, record.width)


every_layer = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])


@every_layer
@pytest.mark.parametrize("length", [1, 2, 35])
@pytest.mark.slow
def test_single_steps_give_the_same_output_as_the_whole_sequence(name: str, options: dict[str, Any], length: int) -> None:
    layer = made(name, options).double()
    x = x_of(3, length, torch.float64)
    with torch.no_grad():
        whole = layer(x)
        state = start = layer.initial_state(3)
        steps = []
        for t in range(length):
            y, state = layer.step(x[:, t], state)
            steps.append(y)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-10, atol=1e-10)
    assert [(t.shape, t.dtype) for t in tensors(state)] == [(t.shape, t.dtype) for t in tensors(start)]


@every_layer
def test_the_section_reports_the_layers_number_of_parameters_and_eigenvalues(name: str, options: dict[str, Any]) -> None:
    section, layer = section_of(name, options), made(name, options)
    section.check(D_MODEL)
    assert section.parameters(D_MODEL) == sum(p.numel() for p in layer.parameters())
    assert section.eigenvalues(D_MODEL) == layer.records()[0].width
    assert section.activations(D_MODEL) >= 1
    assert all([section.title, section.equation, section.source, section.built_by])
    assert all(field.description for label, field in type(section).model_fields.items() if label != "name")
    assert {p.dtype for p in layer.parameters()} == {torch.float32}


@every_layer
def test_the_watched_records_of_every_layer_are_consistent(name: str, options: dict[str, Any]) -> None:
    layer = made(name, options)
    assert isinstance(layer, Watchable)
    assert layer.last_state is None
    layer(x_of(4, 9))
    watched = watched_records(nn.Sequential(layer))
    assert watched[0].first
    names = [w.record.name for w in watched]
    assert len(set(names)) == len(names)
    own = {id(p) for p in layer.parameters()}
    for w in watched:
        assert all(id(p) in own for p in [*w.record.parameters, *w.record.rows])
        numbers = recorded(w.record, layer.gates())
        for kind in w.form.derived:
            assert np.isfinite(w.form.derive(kind, numbers)).all(), kind
        assert w.form.from_data(w.form.data) == w.form
    assert layer.last_state.shape == (4, watched[0].width)
    assert not layer.last_state.requires_grad
    if watched[0].form.complex:
        assert (layer.last_state >= 0).all()
    layer(x_of(2, 5))
    assert layer.last_state.shape == (2, watched[0].width)


@every_layer
def test_gates_returns_minimum_mean_and_maximum_of_the_last_forward_pass(name: str, options: dict[str, Any]) -> None:
    layer = made(name, options)
    layer(x_of(4, 9))
    gates = layer.gates()
    used = {record.gate: record.gates for record in layer.records() if record.gate}
    assert {gate: tuple(values.shape) for gate, values in gates.items()} == {gate: (3, count) for gate, count in used.items()}
    for values in gates.values():
        assert not values.requires_grad
        low, mean, high = values
        assert (low <= mean * (1 + 1e-5) + 1e-12).all()
        assert (mean <= high * (1 + 1e-5) + 1e-12).all()


@every_layer
def test_the_same_seed_gives_the_same_bits(name: str, options: dict[str, Any]) -> None:
    results = []
    for _ in range(2):
        layer = made(name, options)
        y = layer(x_of(2, 33))
        gradients = torch.autograd.grad(y.square().sum(), list(layer.parameters()), allow_unused=True)
        assert all(g is not None and g.isfinite().all() for g in gradients)
        results.append([*layer.state_dict().values(), y, *gradients])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def summed_squares(layer: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The loss of one sequence (length, d_model)."""
    return functional_call(layer, weights, (x[None],)).square().sum()


AROUND = [{"name": "s4d", "d_state": 6}, {"name": "dss", "d_state": 3}, {"name": "l2ru"}, {"name": "s4", "kernel": "cauchy"}]
WITH_MIXERS = CASES + [("hyena", {"inner": inner}) for inner in AROUND]


@pytest.mark.parametrize("per", ["sequence", "replica"])
@pytest.mark.parametrize(("name", "options"), WITH_MIXERS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(WITH_MIXERS)])
def test_vmap_of_grad_gives_the_gradients_of_autograd_for_each_sequence_and_each_replica_of_the_weights(
    name: str, options: dict[str, Any], per: str
) -> None:
    layer = made(name, options).double()
    x = x_of(3, 9, torch.float64)
    weights = {key: value.detach() for key, value in layer.named_parameters()}
    given = {key: torch.stack([value, 1.01 * value, 0.99 * value]) for key, value in weights.items()}
    if per == "sequence":
        found = vmap(grad(lambda w, row: summed_squares(layer, w, row)), (None, 0))(weights, x)
    else:
        found = vmap(grad(lambda w, row: summed_squares(layer, w, row)))(given, x)
    for i, row in enumerate(x):
        leaves = {k: (weights[k] if per == "sequence" else given[k][i]).clone().requires_grad_() for k in weights}
        wanted = torch.autograd.grad(summed_squares(layer, leaves, row), list(leaves.values()))
        for key, gradient in zip(leaves, wanted, strict=True):
            scale = 1e-300 + gradient.abs().max().item()
            torch.testing.assert_close(
                found[key][i], gradient, rtol=0, atol=1e-9 * scale, msg=lambda text, key=key: f"{key}: {text}"
            )


MAPPED = [(name, options) for name, options in CASES if time_of(section_of(name, options))]


@pytest.mark.parametrize(("name", "options"), MAPPED, ids=[f"{n}-{i}" for i, (n, _) in enumerate(MAPPED)])
@pytest.mark.slow
def test_a_new_layer_computes_the_same_function_with_every_map_that_reaches_its_eigenvalues(
    name: str, options: dict[str, Any]
) -> None:
    section = section_of(name, options)
    time = time_of(section)
    assert time
    start = section.initial_range(D_MODEL) or (0.5, 0.99)
    layers = {}
    for map_, kind in MAPS.items():
        if time in kind.forms and all(map(formulas_of(map_, time, torch).reachable.contains, start)):
            layers[map_] = made(name, options, map_)
    assert {section.native, "exp", "direct"} <= layers.keys()
    x = x_of(2, 33)
    wanted = layers[section.native](x)
    for map_, layer in layers.items():
        torch.testing.assert_close(layer(x), wanted, rtol=2e-3, atol=2e-4, msg=lambda text, map_=map_: f"{map_}: {text}")
        record = layer.records()[0]
        lambda_ = get_reparameterization(map_, time=time)(record.weight.detach())
        low, high = (
            edge * (1 + sign * 1e-4) for edge, sign in zip(start, (-1, 1) if time == "discrete" else (1, -1), strict=True)
        )
        assert low - 1e-6 <= lambda_.min().item(), map_
        assert lambda_.max().item() <= high + 1e-6, map_


@every_layer
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.slow
def test_non_finite_input_raises_no_exception(name: str, options: dict[str, Any], bad: float) -> None:
    layer = made(name, options)
    x = x_of(2, 40)
    x[1, 17, 2] = bad
    y = layer(x)
    y.sum().backward()
    layer.step(x[:, 17], layer.initial_state(2))
    assert layer.last_state.shape[0] == 2
    torch.testing.assert_close(y[0], layer(x_of(2, 40))[0], rtol=1e-4, atol=1e-5)  # the other sequence is not affected


@every_layer
@pytest.mark.parametrize("length", [1, 33])
@pytest.mark.slow
def test_every_layer_works_in_float32_and_under_autocast(name: str, options: dict[str, Any], length: int) -> None:
    layer = made(name, options)
    for batch in (1, 3):
        y = layer(x_of(batch, length))
        assert y.shape == (batch, length, D_MODEL)
        assert y.dtype == torch.float32
        torch.testing.assert_close(
            y.double(), copy.deepcopy(layer).double()(x_of(batch, length, torch.float64)), rtol=2e-3, atol=2e-4
        )
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x_of(3, length))
        step, _ = layer.step(x_of(3, 1)[:, 0], layer.initial_state(3))
    assert low.isfinite().all()
    assert step.isfinite().all()
    assert all(t.dtype != torch.bfloat16 for t in tensors(layer.last_state))
    low.float().sum().backward()


@every_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_converting_a_layer_to_an_unsupported_dtype_names_the_layer_and_both_dtypes_and_changes_nothing(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer = made(name, options)
    before = copy.deepcopy(layer.state_dict())
    message = f"{type(layer).__name__} was to be converted to {dtype}; its parameters may be torch.float32 or torch.float64"
    for model in (layer, nn.Sequential(layer)):
        with pytest.raises(TypeError, match=message):
            model.to(dtype)
    for key, value in layer.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    assert layer.double().float()(x_of(2, 5)).dtype == torch.float32


STEPPED = [case for case in CASES if made(*case).records()[0].log_dt is not None]


@pytest.mark.parametrize(("name", "options"), STEPPED, ids=[f"{n}-{i}" for i, (n, _) in enumerate(STEPPED)])
@pytest.mark.parametrize("log_dt", [200.0, -200.0, 100.0, -100.0, float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("which", ["all", "one"])
def test_an_extreme_step_size_gives_finite_numbers_or_an_alert_that_names_the_layers_tensor_and_eigenvalue(
    name: str, options: dict[str, Any], log_dt: float, which: str
) -> None:
    layer = made(name, options)
    (record, *_) = layer.records()
    per_step = record.width // record.log_dt.numel()
    with torch.no_grad():
        record.log_dt.view(-1)[slice(None) if which == "all" else -1] = log_dt
    alerts = nonfinite_alerts(layer, x_of(2, 20))
    if log_dt < 0 and math.isfinite(log_dt):
        assert not alerts
    if alerts:
        fatal = alerts[0]
        assert fatal.tensor in ("ssm.state", "ssm.log_dt")
        if math.isfinite(log_dt) or math.isnan(log_dt):
            assert fatal.layer == 0
            assert fatal.eigenvalue >= (0 if which == "all" else record.width - per_step)
    assert alerts or all(p.grad.isfinite().all() for p in layer.parameters())


@every_layer
def test_a_copied_layer_and_a_layer_with_loaded_state_give_the_same_output(name: str, options: dict[str, Any]) -> None:
    layer = made(name, options)
    x = x_of(2, 12)
    layer(x).sum().backward()
    copied, loaded = copy.deepcopy(layer), made(name, options, seed=7)
    loaded.load_state_dict(layer.state_dict())
    torch.testing.assert_close(copied(x), layer(x), rtol=0, atol=0)
    torch.testing.assert_close(loaded(x), layer(x), rtol=0, atol=0)


@every_layer
def test_the_section_survives_a_round_trip_through_json(name: str, options: dict[str, Any]) -> None:
    section = section_of(name, options)
    assert LAYERS[name].model_validate_json(section.model_dump_json()) == section


@every_layer
@pytest.mark.parametrize("of_gradient", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nonfinite_recorded_parameter_or_gradient_is_named_with_layer_and_eigenvalue(
    name: str, options: dict[str, Any], value: float, of_gradient: bool
) -> None:
    for index, first in enumerate(made(name, options).records()):
        for part, tensor in enumerate((first.weight, first.log_dt, first.phase)):
            if not isinstance(tensor, nn.Parameter):
                continue
            layer = made(name, options)
            record = layer.records()[index]
            parameter = (record.weight, record.log_dt, record.phase)[part]
            path = next(path for path, p in layer.named_parameters() if p is parameter)
            at = parameter.numel() - 1
            if of_gradient:
                alert = nonfinite_alerts(layer, x_of(2, 9), lambda: parameter.grad.view(-1)[at].fill_(value))[0]  # noqa: B023
            else:
                with torch.no_grad():
                    parameter.view(-1)[at] = value
                alert = nonfinite_alerts(layer, x_of(2, 9))[0]
            wanted = "nonfinite_gradient" if of_gradient else "nonfinite_weight"
            assert (alert.kind, alert.tensor, alert.layer) == (wanted, f"ssm.{path}" + ".grad" * of_gradient, 0)
            assert alert.eigenvalue is not None
            assert alert.eigenvalue * parameter.numel() // record.width == at, (path, alert)
