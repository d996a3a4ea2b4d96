"""The slope of a function: a difference counts only if its neighbours agree."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from stablessm_core.autopsy.slope import Slope, find_slope

EPSILON = 2.2e-16


def slope_of(function: Callable[[float], float], expected: float, *, rounding: float = EPSILON) -> Slope:
    return find_slope(function, expected, first=1e-6 / expected, shortest=1e-13, longest=1.0, rounding=rounding)


def in_float32(function: Callable[[float], float]) -> Callable[[float], float]:
    """The function with a loss that computes in float32: it moves in steps of 1e-7."""
    return lambda h: round(function(h) / 1.2e-7) * 1.2e-7


def stairs(h: float) -> float:
    """A rounded line: flat between its steps, with the slope 1 over many of them."""
    return 1 + math.floor(h / 1e-3 + 0.5) * 1e-3


@pytest.mark.parametrize("times", [1.0, 3.0, 10.0, 1e3, 1e8])
def test_a_smooth_function_has_its_slope_whatever_was_expected(times: float) -> None:
    found = slope_of(lambda h: 2 + math.sin(5 * h), 5 * times)
    assert found.value == pytest.approx(5, rel=0.01)


def test_the_slope_is_found_where_the_function_is_straight_only_very_near() -> None:
    found = slope_of(lambda h: 2.3 + 1e-4 * math.tanh(2e7 * h), 2000.0)
    assert found.value == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize("times", [1.0, 10.0])
def test_a_loss_that_computes_in_float32_has_a_slope_over_longer_distances(times: float) -> None:
    found = slope_of(in_float32(lambda h: 1 + h), times, rounding=1.2e-7 if times > 1 else EPSILON)
    assert found.value == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda h: 1 + 1e-3 * math.sin(1e20 * h), id="rounding decides everywhere"),
        pytest.param(lambda h: 1 + math.copysign(abs(h) ** 0.5, h), id="no slope at the point"),
        pytest.param(lambda _: 1.0, id="flat: it was rounded, or it does not depend on the weights"),
        pytest.param(lambda h: 1 + h + 1e-6 * math.tanh(1e8 * h), id="two plateaus"),
        pytest.param(lambda h: 1 + h + 1e-8 * math.sin(1e11 * h), id="a wobble that is too fast for its own plateau"),
        pytest.param(lambda h: 1 + max(h, 0.4 * h), id="a corner: the largest of several equal numbers"),
        pytest.param(lambda _: math.nan, id="not a number"),
    ],
)
def test_what_does_not_converge_has_no_slope(function: Callable[[float], float]) -> None:
    assert slope_of(function, 1000.0).value is None


def test_steps_over_which_the_expected_slope_shows_are_no_proof_against_it() -> None:
    assert slope_of(lambda h: stairs(h) + 0.01 * h, 1.0).value in (None, pytest.approx(1, rel=0.05))


def test_no_time_left_is_no_slope() -> None:
    found = find_slope(lambda h: h, 1.0, first=1e-3, shortest=1e-6, longest=1.0, rounding=0.0, may_go_on=lambda: False)
    assert found.value is None
