"""The quantities on which alerts and verdict depend: relative slope and step, overflow budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stablessm_core.maps import MAPS
from stablessm_core.telemetry.forms import GATES, Form
from stablessm_core.telemetry.stability import (
    budget_limit,
    gradient_size,
    layer_limits,
    loss_over_best,
    model_limit,
    overflow_budget,
    overflow_eigenvalue,
    overflow_length,
    predicted_distance,
    predicted_weight_step,
    relative_slope,
    relative_step,
    split_steps,
    steps_left,
    update_step,
)

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]


def eigenvalues_around(form: Form, w: np.ndarray, dt: float) -> tuple[np.ndarray, np.ndarray]:
    recorded = {"weight": w, "dt": np.full_like(w, dt)}
    return form.derive("eigenvalue", recorded), form.derive("boundary_distance", recorded)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_relative_slope_matches_the_effect_of_a_small_weight_change(name: str, time: str) -> None:
    form, h, dt = Form.of_map(name, time), 1e-7, 0.05
    w = np.array([0.55, 0.7, 0.93]) if time == "discrete" else np.array([-0.8, -0.5, -0.3])
    if name not in ("direct", "clip"):
        w = np.array([0.4, 1.3, 2.2])
    here, distance = eigenvalues_around(form, w, dt)
    there, _ = eigenvalues_around(form, w + h, dt)
    measured = np.abs(there - here) / distance / h
    assert relative_slope(form, {"weight": w, "dt": np.full_like(w, dt)}) == pytest.approx(measured, rel=2e-5)


def test_the_relative_step_is_1_at_the_boundary_distance_and_undefined_outside() -> None:
    lambda_ = np.array([[0.9, 1.0, 1.2, 0.5], [1.0, 1.1, 1.3, np.nan]])
    steps = relative_step(lambda_, 1 - np.abs(lambda_))
    assert steps[0, 0] == pytest.approx(1.0)
    assert steps[0, 1] == np.inf
    assert np.isnan(steps[0, 2:]).all()


def test_the_relative_step_of_a_gated_layer_is_the_effect_of_the_weights_alone() -> None:
    form = Form("exp", "continuous", "zoh", gate=True)
    weight, gates = np.array([[0.0, 0.0], [0.0, 0.1]]), np.array([[0.1, 0.1], [0.4, 0.4]])
    rows = {"weight": weight, "gate_min": gates / 2, "gate_mean": gates, "gate_max": 2 * gates}
    expected = abs(math.exp(-0.1 * math.exp(0.1)) - math.exp(-0.1)) / (1 - math.exp(-0.1))
    assert update_step(form, rows)[0] == pytest.approx([0.0, expected], rel=1e-12)
    assert update_step(form, {**rows, "weight": np.full((2, 2), np.nan)})[0] == pytest.approx([math.nan] * 2, nan_ok=True)


def test_the_relative_step_of_a_reported_decay_is_known_only_if_the_decay_does_not_depend_on_the_input() -> None:
    form, decay = Form("gate", "discrete", "none", gate=True), np.array([[0.1, 0.1], [0.2, 0.2]])
    constant = update_step(form, dict.fromkeys(GATES, decay))
    assert constant[0] == pytest.approx([(math.exp(-0.1) - math.exp(-0.2)) / (1 - math.exp(-0.1))] * 2)
    varying = update_step(form, {"gate_min": decay * [1, 0.9], "gate_mean": decay, "gate_max": decay * [1, 1.1]})
    assert varying[0] == pytest.approx([constant[0, 0], math.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("length", "eigenvalue"), [(64, 4.00), (100, 2.43), (400, 1.248), (784, 1.120), (1024, 1.0905), (16_384, 1.0054)]
)
def test_the_overflow_budget_is_1_where_float32_overflows(length: int, eigenvalue: float) -> None:
    assert overflow_eigenvalue(length) == pytest.approx(eigenvalue, rel=2e-3)
    assert overflow_budget(length, 1 - overflow_eigenvalue(length)) == pytest.approx(1.0)
    assert overflow_length(1 - overflow_eigenvalue(length)) == pytest.approx(length)
    assert np.isfinite(np.float32(overflow_eigenvalue(length)) ** np.float32(length * 0.99))


def test_an_eigenvalue_inside_the_boundary_overflows_at_no_length() -> None:
    assert overflow_length(0.01) == overflow_length(0.0) == np.inf
    assert overflow_budget(100, 0.0) == 0
    assert overflow_budget(100, 0.01) < 0


def test_an_activation_without_a_bound_halves_the_budget() -> None:
    assert [budget_limit(name) for name in ("tanh", "gelu", "silu", "relu", "identity")] == [1, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        ({}, [1]),
        ({"n_layers": 2, "activation": "gelu"}, [0.5, 0.5]),
        ({"layer": {"name": "stable_ssm", "activation": "tanh"}, "activation": "gelu"}, [1]),
        ({"layer": {"name": "stable_ssm", "activation": None}}, [1]),
        ({"layer": {"name": "stable_ssm", "activation": "relu"}, "n_layers": 2}, [0.5, 0.5]),
        ({"layers": ["stable_ssm", {"name": "lru"}, {"name": "stable_ssm", "activation": "silu"}, "rwkv4"]}, [1, 0.5, 0.5, 1]),
        ({"layer": {"name": "hyena", "inner": "stable_ssm"}}, [0.5]),
        ({"layer": {"name": "hyena", "inner": {"name": "stable_ssm", "activation": "tanh"}}}, [1]),
    ],
)  # fmt: skip
def test_each_layer_has_the_limit_of_its_own_activation(model: dict[str, Any], limits: list[float]) -> None:
    assert layer_limits(model) == limits
    assert model_limit(model) == min(limits)


def test_nothing_squares_the_states_of_a_bare_model_but_a_squared_error() -> None:
    bare = {"block": "bare", "activation": "identity", "n_layers": 2}
    assert layer_limits(bare, "classification") == layer_limits(bare, "next_token") == [1, 1]
    assert layer_limits(bare, "regression") == layer_limits(bare) == [0.5, 0.5]
    assert layer_limits(bare | {"block": "post_norm"}, "classification") == [0.5, 0.5]


def test_the_predicted_step_follows_the_optimizer() -> None:
    g = gradient_size(np.array([0.5, 2.0, np.inf]), np.array([-0.8, 0.5, 0.0]))
    assert g[:2] == pytest.approx([0.4, 1.0])
    assert np.isnan(g[2])  # infinity times 0: the gradient is unknown
    assert (predicted_weight_step("adamw", 0.1, g) == 0.1).all()
    assert predicted_weight_step("sgd", 0.1, g)[:2] == pytest.approx([0.04, 0.1])
    assert predicted_weight_step("sgd", 0.1, g, 0.9, np.array([0.2, -0.3, 0.0]))[:2] == pytest.approx([0.22, 0.37])
    assert predicted_weight_step("sgd", 0.1, 1.0, 0.9, 0.2, nesterov=True) == pytest.approx(0.37)
    with pytest.raises(ValueError, match="'lion'; allowed: adamw, sgd"):
        predicted_weight_step("lion", 0.1, g)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_step_of_sgd_is_longer_than_predicted(momentum: float) -> None:
    random = np.random.default_rng(3)
    velocity, previous = np.zeros(50), np.zeros(50)
    for _ in range(40):
        gradient = random.standard_normal(50) * 10 ** random.uniform(-3, 3, 50)
        velocity = momentum * velocity + gradient
        step = 0.01 * velocity
        bound = predicted_weight_step("sgd", 0.01, gradient, momentum, previous)
        assert (np.abs(step) <= bound * (1 + 1e-12)).all()
        previous = step


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_the_predicted_distance_is_the_smallest_of_all_weights_within_reach(name: str, time: str) -> None:
    form = Form.of_map(name, time)
    w = np.array([-2.0, -0.3, 0.0, 0.2, 0.9, 1.5])
    dt, step = np.full_like(w, 0.05), np.array([0.5, 0.1, 0.3, 0.4, 0.2, 2.0])
    worst = predicted_distance(form, {"weight": w, "dt": dt}, step)
    within = np.linspace(w - step, w + step, 2001)  # includes the weight 0 where it is within reach
    _, distance = eigenvalues_around(form, within, 0.05)
    assert (worst <= distance.min(axis=0) + 1e-12).all()
    assert worst == pytest.approx(distance.min(axis=0), abs=2e-6)


def test_a_prediction_from_nan_is_nan() -> None:
    form = Form.of_map("direct", "discrete")
    assert np.isnan(predicted_distance(form, {"weight": np.array([0.9, np.nan])}, np.array([np.nan, 0.1]))).all()
    assert predicted_distance(form, {"weight": np.array([0.9])}, np.inf) == -np.inf


def test_the_number_of_steps_until_float32_overflow_is_exact() -> None:
    form = Form.of_map("direct", "discrete")
    left = steps_left(form, {"weight": np.array([0.99, -1.113, 2.5, np.nan])}, 0.13, 100)
    assert left[:2] == pytest.approx([(overflow_eigenvalue(100) - 0.99) / 0.13, (overflow_eigenvalue(100) - 1.113) / 0.13])
    assert left[2] == 0
    assert np.isnan(left[3])
    assert steps_left(form, {"weight": np.array([0.99])}, 0.0, 100) == np.inf
    assert steps_left(Form.of_map("best", "discrete"), {"weight": np.array([0.1])}, 5.0, 100) == np.inf


def test_the_steps_left_in_continuous_time_end_exactly_at_the_budget() -> None:
    form, dt = Form.of_map("direct", "continuous"), np.array([0.05])
    left = steps_left(form, {"weight": np.array([-0.5]), "dt": dt}, 0.2, 100, 0.5)
    _, distance = eigenvalues_around(form, np.array([-0.5]) + 0.2 * left, 0.05)
    assert overflow_budget(100, distance) == pytest.approx(0.5)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_a_step_is_split_into_its_factors(name: str, time: str) -> None:
    form, lr = Form.of_map(name, time), np.array([0.01, 0.02, 0.03])
    w = np.array([[0.6, 0.8], [0.59, 0.81], [0.6, 0.8]]) * (1 if time == "discrete" or name not in ("direct", "clip") else -1)
    gradient = np.abs(np.diff(w, axis=0)) / lr[:2, None]  # gradient descent
    ratio = np.vstack([gradient / np.abs(w[:2]), [np.nan, np.nan]])
    split = split_steps(form, {"weight": w, "dt": np.full_like(w, 0.05)}, ratio, lr)
    assert split["normalisation"] == pytest.approx(np.ones((2, 2)))
    assert split["weight_step"] == pytest.approx(np.full((2, 2), 0.01))
    assert split["first_order"] == pytest.approx(split["relative_step"], rel=0.15)
    assert split["slope"] * split["lr"] * split["gradient"] * split["normalisation"] == pytest.approx(split["first_order"])


def test_the_normalisation_is_nan_without_a_finite_gradient() -> None:
    w = np.array([[1.92, 0.0], [2.51, 0.1]])  # one weight moved by momentum alone; one at 0, where the ratio is infinite
    split = split_steps(Form.of_map("direct", "discrete"), {"weight": w}, np.array([[0.0, np.inf], [0, 0]]), np.array([0.5, 0.5]))
    assert np.isnan(split["normalisation"]).all()
    assert np.isnan(split["relative_step"][0, 0])  # the eigenvalue was outside at the first step
    assert split["weight_step"] == pytest.approx(np.array([[0.59, 0.1]]))


def test_the_loss_is_compared_with_the_best_loss_so_far() -> None:
    ratio, best = loss_over_best(np.array([2.0, 4.0, np.nan, 1.0, np.inf, 30.0]))
    np.testing.assert_array_equal(ratio, [1, 2, np.nan, 1, np.inf, 30])
    again, best = loss_over_best(np.array([0.5, 0.0, 3.0, 0.0]), best)
    np.testing.assert_array_equal(again, [1, 1, np.inf, 1])
    assert best == 0
    assert np.isnan(loss_over_best(np.array([np.nan, -1.0, -0.5]))[0]).all()
    usual = np.array([2.0, 1e-320, 3.0, 1e-320, 7.0])
    for best in (np.inf, 1.5, 1e-321):  # an additional non-finite loss changes nothing
        beside, known = loss_over_best(np.append(usual, np.nan), best)
        np.testing.assert_array_equal(loss_over_best(usual, best)[0], beside[:-1])
        assert loss_over_best(usual, best)[1] == known
