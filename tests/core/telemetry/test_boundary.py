"""The side of the boundary, the channel that decides on overflow, and numbers that are caps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from stablessm_core.layers import DSS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.boundary import (
    count_sides,
    grow_steps,
    is_capped,
    largest_overflow_distance,
    overflow_distance,
    side_of_boundary,
)
from stablessm_core.telemetry.column_reader import LayerForm
from stablessm_core.telemetry.cross_step import CrossStepSeries
from stablessm_core.telemetry.detectors import Detectors, LayerRows, Rows, Setup, Values
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.stability import LN_LARGEST, overflow_budget, steps_left

CHANNELS = Form("direct", "continuous", "zoh", phase="half_plane", gate=True)
VARYING = Form("direct", "continuous", "zoh", gate=True)
GATES = {"gate_min": 0.001, "gate_mean": 0.01, "gate_max": 0.2}
SETTINGS = {"max_overflow_budget": 0.9}


def recorded(form: Form, weight: list[float], gates: dict[str, float] = GATES) -> dict[str, np.ndarray]:
    w = np.array(weight)
    return {kind: w if kind == "weight" else np.full(w.shape, gates.get(kind, 0.0)) for kind in form.inputs}


def test_the_largest_step_size_decides_outside_and_the_smallest_inside() -> None:
    distance = overflow_distance(CHANNELS, recorded(CHANNELS, [0.5, 0.0, -0.5]))
    np.testing.assert_allclose(distance, [-math.expm1(0.5 * 0.2), 0, -math.expm1(-0.5 * 0.001)], rtol=1e-12)


def test_a_form_that_an_earlier_version_stored_is_read_and_stored_as_before() -> None:
    stored = {"map": "direct", "time": "continuous", "rule": "zoh", "scale": 1.0, "a": 1.0, "b": 0.5, "dt": None}
    channels, varying = (Form.from_data(stored | more) for more in ({"phase": "half_plane", "gate": True}, {"gate": True}))
    assert (channels.channels, varying.channels) == (True, False)
    assert channels.data == stored | {"phase": "half_plane", "gate": True}
    assert varying.data == stored | {"gate": True}


def test_of_a_gate_that_varies_over_time_the_mean_decides_and_the_largest_is_a_bound() -> None:
    values = recorded(VARYING, [0.5, -0.5])
    np.testing.assert_array_equal(overflow_distance(VARYING, values), VARYING.derive("boundary_distance", values))
    np.testing.assert_allclose(
        largest_overflow_distance(VARYING, values), [-math.expm1(0.5 * 0.2), -math.expm1(-0.5 * 0.001)], rtol=1e-12
    )


@pytest.mark.parametrize("form", [Form.of_map("direct", "discrete"), Form.of_map("exp", "continuous")])
def test_without_a_gate_the_deciding_distance_is_the_recorded_one_bit_for_bit(form: Form) -> None:
    values = {"weight": np.array([-1.3, 0.2, 1.7]), "dt": np.array([0.1, 0.2, 0.3])}
    for found in (overflow_distance(form, values), largest_overflow_distance(form, values)):
        np.testing.assert_array_equal(found.view(np.uint64), form.derive("boundary_distance", values).view(np.uint64))


def test_the_state_of_a_dss_layer_grows_as_the_deciding_distance_says() -> None:
    torch.manual_seed(0)
    layer = DSS(4, 3, reparameterization=get_reparameterization("direct", time="continuous")).double()
    with torch.no_grad():
        layer.w[:] = torch.tensor([0.4, 0.2, -0.1])
        layer.log_dt[:] = torch.tensor([0.01, 0.02, 0.03, 0.3]).double().log()[:, None]
    sizes = {}
    for length in (200, 400):  # an impulse in every channel; the state is the impulse times lambda_bar^(length - 1)
        x = torch.zeros(1, length, 4, dtype=torch.float64)
        x[:, 0] = 1
        layer(x)
        assert layer.last_state is not None
        sizes[length] = layer.last_state[0].numpy()
    gates = dict(zip(("gate_min", "gate_mean", "gate_max"), layer.gates()["dt"][:, 0].tolist(), strict=True))
    grown = np.log(sizes[400] / sizes[200]) / 200
    distance = overflow_distance(CHANNELS, recorded(CHANNELS, layer.w.tolist(), gates))
    np.testing.assert_allclose(np.log1p(-distance)[:2], grown[:2], rtol=1e-6)
    np.testing.assert_allclose(np.log1p(-distance)[2], -0.1 * 0.01, rtol=1e-6)


def rows_of(form: Form, weight: list[float], *, lr: float = 0.1, gates: dict[str, float] = GATES) -> Rows:
    values = {kind: one[None].astype(np.float32) for kind, one in recorded(form, weight, gates).items()}
    distance = form.derive("boundary_distance", values)
    parts = [
        Values(one) for one in (np.ones_like(values["weight"]), values["weight"], distance, np.full_like(values["weight"], 1e10))
    ]
    layer = LayerRows(0, "ssm.w", *parts, form, values)
    return Rows(7, np.ones(1, np.float32), np.ones((1, 2), np.float32), [layer], lr=np.full(1, lr, np.float32))


def test_alerts_of_a_layer_with_a_step_size_per_channel_use_the_largest_one() -> None:
    setup = Setup(length=100, limits=(0.5,))
    (unstable,) = Detectors(["ssm.w"], setup, **SETTINGS).scan(rows_of(CHANNELS, [-0.5, 0.5]))
    budget = 100 * 0.5 * 0.2 / LN_LARGEST
    assert (unstable.kind, unstable.eigenvalue, unstable.series) == ("unstable_eigenvalue", 1, "ssm/0/boundary_distance_closest")
    assert f"|lambda_bar| is {math.exp(0.5 * 0.2):.4g} at the largest step size, above 1" in unstable.message
    assert f"its overflow budget at the largest step size is {budget:.3g} of 0.5 at length 100" in unstable.message
    assert unstable.value == pytest.approx(-math.expm1(0.1))
    # after n steps 100 (.5 + .1 n) .2 e^(.1 n) / 88.72 reaches .5
    count = next(n for n in range(100) if 100 * (0.5 + 0.1 * n) * 0.2 * math.exp(0.1 * n) >= LN_LARGEST / 2)
    assert f"outward by 0.1 and multiplies its step size by 1.105, it reaches this limit after about {count} steps" in (
        unstable.message
    )
    near = next(
        a for a in Detectors(["ssm.w"], setup, **SETTINGS).scan(rows_of(CHANNELS, [-0.5, 2.1])) if a.kind == "overflow_near"
    )
    assert "overflow budget at the largest step size is 0.473 of 0.5" in near.message
    assert near.value == pytest.approx(100 * 2.1 * 0.2 / LN_LARGEST, rel=1e-6)


def test_the_next_step_may_also_enlarge_the_step_size() -> None:
    setup = Setup(length=100, limits=(0.5,))
    rows = rows_of(CHANNELS, [0.9], lr=0.5)  # 100 x 1.4 x .2 = 28 is below 44.4, but 28 x e^.5 = 46.2 is not
    assert next(a.kind for a in Detectors(["ssm.w"], setup, **SETTINGS).scan(rows)) == "overflow_near"
    frozen = replace(setup, recurrent=0.0)
    assert [a.kind for a in Detectors(["ssm.w"], frozen, **SETTINGS).scan(rows)] == ["unstable_eigenvalue"]


def test_an_alert_of_a_gate_that_varies_says_which_gate_and_how_large_the_budget_can_be() -> None:
    (unstable,) = Detectors(["ssm.w"], Setup(length=100, limits=(0.5,)), **SETTINGS).scan(rows_of(VARYING, [0.5], lr=0.01))
    mean, bound = (100 * 0.5 * gate / LN_LARGEST for gate in (0.01, 0.2))
    assert f"at the mean gate is {mean:.3g} ({bound:.3g} if every gate were the largest of this step) of 0.5" in unstable.message
    count = math.ceil((LN_LARGEST / 2 / 100 / 0.01 - 0.5) / 0.01)
    assert f"and its gate does not change, it reaches this limit after about {count:,} steps" in unstable.message


def test_the_budget_of_a_run_follows_from_the_largest_step_size_and_its_distance_from_the_mean() -> None:
    layer = LayerForm(0, "ssm.w", CHANNELS, 2)
    catalogue = names.following_catalogue(0, 2, CHANNELS, length=100, every_eigenvalue=True)
    one = recorded(CHANNELS, [-0.5, 0.5])
    columns = {
        names.layer_series(0, kind): np.repeat(values[None, :1] if "gate" in kind else values[None], 3, 0).astype(np.float32)
        for kind, values in one.items()
    }
    columns |= {names.TRAIN_LOSS: np.ones((3, 1), np.float32)}
    _, _, found = CrossStepSeries([layer], catalogue, 1).read(1, columns)
    assert found["overflow_budget"] == pytest.approx(100 * 0.5 * 0.2 / LN_LARGEST, rel=1e-6)
    assert found["nearest_distance"] == pytest.approx(-math.expm1(0.5 * 0.01), rel=1e-6)


@pytest.mark.parametrize("form", [Form.of_map("direct", "continuous"), CHANNELS, replace(CHANNELS, phase=None)])
def test_the_steps_left_end_at_the_limit_if_the_step_size_grows_too(form: Form) -> None:
    values = {"weight": 0.3, "dt": 0.05, "phase_weight": 1.0, "gate_min": 0.01, "gate_mean": 0.05, "gate_max": 0.05}
    given = {kind: np.float64(values[kind]) for kind in form.inputs}
    left = float(steps_left(form, given, 0.2, 100, 0.5, 1.3))
    grown = grow_steps(form, given | {"weight": np.float64(0.3 + 0.2 * left)}, 1.3**left)
    assert overflow_budget(100, overflow_distance(form, grown)) == pytest.approx(0.5)
    held = float(steps_left(form, given, 0.2, 100, 0.5))
    assert (left == held) == (form.phase is None and form.gate), "only gates from the input do not grow"


def test_the_steps_left_with_the_bilinear_rule_follow_its_own_growth() -> None:
    form = Form("direct", "continuous", "bilinear", dt="dt", phase="imaginary")
    given = {"weight": np.float64(0.1), "dt": np.float64(0.1), "phase_weight": np.float64(3.0)}
    left = float(steps_left(form, given, 0.5, 100, 0.5))
    z = 0.1 * complex(0.1 + 0.5 * left, 3.0)
    assert 100 * math.log(abs((1 + z / 2) / (1 - z / 2))) / LN_LARGEST == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("distance", "side"),
    [
        (0.2, "inside"),
        (5e-324, "inside"),
        (0.0, "on"),
        (-0.0, "on"),
        (-1e-9, "outside"),
        (-math.inf, "outside"),
        (math.nan, "unknown"),
    ],
)
def test_an_eigenvalue_is_inside_on_or_outside_the_boundary(distance: float, side: str) -> None:
    assert side_of_boundary(distance) == side
    assert count_sides(np.array([[distance]]))._asdict()[side] == 1


def test_a_relu_map_at_negative_weights_is_on_the_boundary() -> None:
    form = Form.of_map("relu", "discrete")
    distance = form.derive("boundary_distance", {"weight": np.array([-2.0, -0.1, 0.0, 0.3])})
    assert count_sides(distance) == (1, 3, 0, 0)


def test_a_cap_is_recognised_in_both_precisions_and_infinity_and_large_numbers_are_no_caps() -> None:
    form = Form.of_map("direct", "continuous")
    wide = form.derive("boundary_distance", {"weight": np.array([5e3, 1.0]), "dt": np.array([1.0, 80.0])})
    assert [is_capped(one) for one in wide] == [True, False]
    assert [is_capped(1 - one) for one in wide] == [True, False]
    narrow = get_reparameterization("direct", time="continuous")
    distance = narrow.boundary_distance(torch.tensor([5e3, 1.0]), torch.tensor([1.0, 80.0]))
    assert [is_capped(one) for one in distance.tolist()] == [True, False]
    dt = torch.tensor([1e4, 87.0])
    assert [is_capped(one) for one in np.exp(np.minimum(dt.numpy(), 88))] == [True, False]
    assert not any(is_capped(one) for one in (math.inf, -math.inf, math.nan, 1e300, 3.4e38, 1.0))


def test_an_alert_prints_a_cap_as_a_lower_bound() -> None:
    form = Form.of_map("direct", "continuous")
    values = {"weight": np.float32([[5e3]]), "dt": np.float32([[1.0]])}
    parts = [
        Values(one) for one in (values["dt"], values["weight"], form.derive("boundary_distance", values), 1e15 * values["dt"])
    ]
    rows = Rows(1, np.ones(1, np.float32), np.ones((1, 2), np.float32), [LayerRows(0, "w", *parts, form, values)])
    alerts = Detectors(["w"], Setup(length=100, limits=(0.5,)), **SETTINGS).scan(rows)
    messages = {alert.kind: alert.message for alert in alerts}
    assert "|lambda_bar| is more than 1.7e+38, above 1" in messages["unstable_eigenvalue"]
    assert "overflow budget is more than 99.2 of 0.5" in messages["unstable_eigenvalue"]
    assert "|lambda_bar| is more than 1.7e+38" in messages["overflow_near"]
    assert "overflow budget is more than 99.2 of 0.5" in messages["overflow_near"]
