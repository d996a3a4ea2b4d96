"""Quantities derived from recorded weights match the layer's recurrence in float32, even where a guarded map reaches the
boundary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablessm_core.maps import MAPS, formulas
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.telemetry.forms import Form

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]
EDGES = [0.0, -17.3, -17.4, -16.6, 16.6, 16.7, 9.0, 9.1, -9.1, 5_000.0, 1e4, -1e4, 1.0, -1.0]


def derived(name: str, time: str, kind: str, w: np.ndarray, dt: float = 1e-3) -> np.ndarray:
    recorded = {"weight": w, "dt": np.full_like(w, dt)}
    return Form.of_map(name, time).derive(kind, {k: v.astype(np.float64) for k, v in recorded.items()})


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_boundary_distance_is_zero_exactly_where_the_eigenvalues_modulus_is_one(name: str, time: str) -> None:
    w = np.concatenate([np.linspace(-40, 40, 80_001), EDGES]).astype(np.float32)
    run = get_reparameterization(name, time=time).lambda_bar(torch.from_numpy(w), torch.full((len(w),), 1e-3)).numpy()
    distance, eigenvalue = derived(name, time, "boundary_distance", w), derived(name, time, "eigenvalue", w)
    differing = (distance == 0) != (np.abs(run) == 1)
    # At the boundary the last bit of an exponential decides, which depends on the processor: allow one float32 step below 1.
    exact = formulas(name, time, np).boundary_distance(w.astype(np.float64), np.float64(1e-3))
    assert np.all(np.abs(exact[differing]) < 1.2e-7)
    assert differing.sum() < 200
    np.testing.assert_array_equal(np.abs(eigenvalue) == 1, distance == 0)
    finite = np.abs(run) < 1e30
    np.testing.assert_allclose(eigenvalue[finite], run[finite], rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize(("name", "w"), [("exp", -19.0), ("softplus", -19.0), ("sigmoid", 19.0), ("tanh", 9.6), ("tanh", -9.6)])
def test_a_large_weight_of_a_guarded_map_gives_a_modulus_of_one_in_float32(name: str, w: float) -> None:
    weight = np.array([w, w / 2], np.float32)
    assert get_reparameterization(name)(torch.from_numpy(weight)).abs().tolist()[0] == 1.0
    distance = derived(name, "discrete", "boundary_distance", weight)
    assert distance[0] == 0
    assert 0 < distance[1] < 1e-2
    assert abs(derived(name, "discrete", "eigenvalue", weight)[0]) == 1


def test_the_distance_of_a_gated_layer_has_no_cancellation_error_near_the_boundary() -> None:
    form = Form("gate", "discrete", "none", gate=True)
    decay = np.array([1e-12, 1e-9])
    np.testing.assert_allclose(form.derive("boundary_distance", {"gate_mean": decay}), decay, rtol=1e-8)


def test_the_closest_approach_is_the_smallest_distance_over_the_range_of_the_gate() -> None:
    form = Form("direct", "continuous", "zoh", gate=True)
    gates = {"gate_min": np.full(3, 0.001), "gate_mean": np.full(3, 0.05), "gate_max": np.full(3, 1.0)}
    closest = form.derive("boundary_distance_closest", gates | {"weight": np.array([0.5, 0.0, -0.5])})  # outside, on, inside
    np.testing.assert_allclose(closest, [1 - np.exp(0.5), 0, 1 - np.exp(-0.0005)], rtol=1e-12)


def test_an_infinite_gate_does_not_hide_the_closest_approach() -> None:
    form = Form("direct", "continuous", "zoh", gate=True)
    gates = {"gate_min": np.array([0.001]), "gate_mean": np.array([np.inf]), "gate_max": np.array([np.inf])}
    assert form.derive("boundary_distance_closest", gates | {"weight": np.array([0.0])}) == 0
    assert np.isnan(form.derive("boundary_distance_closest", gates | {"weight": np.array([np.nan])}))
