"""Figure 1: the exact error of a linear model, its gradient, and what noise does to it."""

from __future__ import annotations

import numpy as np
import pytest

from stablessm_core.theory.perturbation import BETAS
from studies.paper.kernels import TARGETS, TIME, Trained, crossing, error_of, perturbed_errors, train
from studies.paper.perturbed import nearest, perturbed
from studies.paper.registry import load
from studies.paper.report import dumps


def test_the_error_is_that_of_a_model_on_white_input() -> None:
    w, c = np.array([0.9, 0.5]), np.array([0.4, -0.2])
    kernel = 0.4 * 0.9**TIME - 0.2 * 0.5**TIME
    generator = np.random.default_rng(0)
    squares = []
    for _ in range(4000):
        x = generator.standard_normal(len(TIME))
        difference = np.convolve(x, kernel - TARGETS["polynomial"])[: len(TIME)]
        squares.append(np.mean(difference**2))
    assert np.mean(squares) == pytest.approx(float(error_of("direct", w, c, "polynomial")), rel=0.05)


@pytest.mark.parametrize("map_", ["direct", "softplus", "best"])
def test_training_learns_the_target(map_: str) -> None:
    start, model = (train(map_, "exponential", 4, 3, steps, rounds=1) for steps in (1, 300))
    assert (model.error < start.error / 10).all()
    np.testing.assert_allclose(error_of(map_, model.w, model.c, "exponential"), model.error)


def test_worst_case_noise_blows_up_direct_but_not_a_stable_map() -> None:
    errors = {}
    for map_ in ("direct", "softplus"):
        model = train(map_, "polynomial", 4, 2, 200, rounds=1)
        errors[map_] = perturbed_errors(model, "polynomial", "recurrent_worst")
        assert (np.diff(errors[map_], axis=0) >= 0).all()
        np.testing.assert_allclose(errors[map_][0], model.error)
    assert (errors["direct"][-1] > 1e20).all()
    assert (errors["softplus"][-1] < 1e3).all()


def test_a_crossing_is_the_first_size_at_which_the_wider_model_is_worse() -> None:
    narrow = np.ones((len(BETAS), 3))
    wide = np.full((len(BETAS), 3), 0.5)
    wide[4:, 0] = 2.0
    wide[:, 2] = 2.0
    found = crossing(narrow, wide)
    assert found[:2].tolist() == [BETAS[4], 2 * BETAS[-1]]
    assert np.isnan(found[2]), "the wider model is already worse without noise"
    assert BETAS[nearest(0.128)] == pytest.approx(0.128)


@pytest.mark.slow
def test_the_quick_figure_judges_nothing_and_repeats_its_bytes() -> None:
    first, second = (perturbed(load(), quick=True, seeds=2) for _ in range(2))
    assert dumps(first) == dumps(second)
    assert {one["verdict"] for one in first["verdicts"]} == {"cannot tell"}
    assert isinstance(train("best", "polynomial", 2, 1, 5, rounds=1), Trained)
