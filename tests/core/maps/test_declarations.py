"""A map's declarations hold at many weights, or the map of an installed package is refused with weight and eigenvalue."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from stablessm_core.map import Array, Discrete, Interval, Map, by_time
from stablessm_core.maps import MAPS, check_map
from stablessm_core.maps.clip import ClipContinuous
from stablessm_core.maps.direct import DirectDiscrete
from stablessm_core.maps.relu import ReluDiscrete


class Bump(Discrete):
    """0.5 + height / (1 + (w - at)^2 / width^2): reaches 0.5 + height at one weight."""

    text = "0.5 + height / (1 + ((w - at) / width)^2)"
    at, height, width = 40.0, 0.7, 6.0

    def f(self, w: Array) -> Array:
        return 0.5 + self.height / (1 + ((w - self.at) / self.width) ** 2)

    def complement(self, w: Array) -> Array:
        return 1 - self.f(w)

    def distance(self, w: Array) -> Array:
        return 1 - self.xp.abs(self.f(w))

    def derivative(self, w: Array) -> Array:
        x = (w - self.at) / self.width
        return -2 * self.height * x / self.width / (1 + x * x) ** 2

    def gradient_scale(self, w: Array) -> Array:
        return self.xp.abs(self.derivative(w)) / self.distance(w) ** 2

    def inverse(self, lambda_: Array) -> Array:
        return self.at - self.width * self.xp.sqrt(self.xp.clip(self.height / (lambda_ - 0.5) - 1, 0, None))


class HonestBump(Bump):
    @property
    def reachable(self) -> Interval:
        return Interval(0.5, 1.2, closed_high=True)


class SmallBump(Bump):
    height = 0.45


class ShortBump(SmallBump):
    @property
    def reachable(self) -> Interval:
        return Interval(0.5, 0.6)


class WrongDistance(DirectDiscrete):
    def distance(self, w: Array) -> Array:
        return self.complement(w)  # forgets the absolute value, so that w = -3 has the distance 4


@pytest.mark.parametrize("name", MAPS)
def test_the_declarations_of_every_built_in_map_hold(name: str) -> None:
    assert check_map(name, MAPS[name]) is MAPS[name]


def test_a_guarded_map_that_crosses_the_boundary_is_refused_with_weight_and_eigenvalue() -> None:
    with pytest.raises(ValueError, match="declares guarded=True, but its discrete f") as refusal:
        check_map("bump", Map("bump", by_time(HonestBump), guarded=True))
    text = str(refusal.value)
    weight, eigenvalue = (float(text.split(key)[1].split(end)[0]) for key, end in (("f(", ")"), (" is ", ",")))
    assert float(HonestBump(np).f(np.array([weight]))[0]) == pytest.approx(eigenvalue, rel=1e-4)
    assert eigenvalue > 1
    assert text.endswith("allowed: |f(w)| <= 1 at every weight, or guarded=False")
    assert check_map("bump", Map("bump", by_time(HonestBump), guarded=False))


def test_a_continuous_map_that_grows_is_not_guarded() -> None:
    direct = MAPS["direct"].forms["continuous"]
    with pytest.raises(ValueError, match=r"continuous f\(1e-08\) is 1e-08, outside.*allowed: f\(w\) <= 0 at every weight"):
        check_map("grows", Map("grows", by_time(direct), guarded=True))


def test_a_map_with_a_hard_cut_off_on_the_boundary_is_not_guarded() -> None:
    with pytest.raises(ValueError, match=r"f\(-3\) is 1, exactly on the stability boundary, as at other weights near it"):
        check_map("relu", replace(MAPS["relu"], forms=by_time(ReluDiscrete), guarded=True))
    assert check_map("clip", Map("clip", by_time(ClipContinuous), guarded=False))


def test_eigenvalues_outside_the_declared_interval_are_refused() -> None:
    with pytest.raises(ValueError, match=r"discrete f\(.*\) is 0\.6\d*; allowed: \(0\.5, 0\.6\), which it declares as reachable"):
        check_map("bump", Map("bump", by_time(ShortBump), guarded=True))
    with pytest.raises(ValueError, match=r"is 1\.\d+; allowed: \(0, 1\), which it declares as reachable"):
        check_map("bump", Map("bump", by_time(Bump), guarded=False))
    assert check_map("bump", Map("bump", by_time(SmallBump), guarded=True))


def test_a_distance_that_is_not_the_distance_of_the_eigenvalue_is_refused() -> None:
    with pytest.raises(ValueError, match=r"boundary_distance\(w\) is not 1 - \|lambda_bar\| at w = -3\.4e\+38"):
        check_map("wrong", Map("wrong", by_time(WrongDistance), guarded=False))


def test_the_probe_has_no_limit_that_a_rounded_eigenvalue_breaks() -> None:
    """tanh(1e4) is exactly 1 in float64, although the map never reaches 1."""
    assert math.tanh(1e4) == 1
    assert check_map("tanh", MAPS["tanh"]).guarded
