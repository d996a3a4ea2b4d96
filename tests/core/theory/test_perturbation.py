"""The perturbation error of a diagonal system in its three senses."""

from typing import Any

import numpy as np
import pytest

from stablessm_core.maps import formulas
from stablessm_core.theory import kernel_error, perturbation_error, polynomial_memory

RNG = np.random.default_rng(3)
LAMBDA = RNG.uniform(0.4, 0.97, (2, 6))
C = RNG.normal(size=(2, 6)) / 6
TARGET = polynomial_memory(np.arange(60))
BETAS = (0.0, 0.01, 0.1, 1.0)
MODES: tuple[Any, ...] = ("all_linf", "ball_l2", "recurrent_worst")


def _weights(name: str) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = formulas(name, "discrete", np).inverse(LAMBDA)
    return found


def test_the_error_is_the_mean_squared_error_for_white_input() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 60))
    h, squared = np.zeros((4000, 6)), 0.0
    for t in range(60):
        h = LAMBDA[0] * h + x[:, t : t + 1]
        wanted = x[:, t::-1] @ TARGET[: t + 1]
        squared += float(np.mean((h @ C[0] - wanted) ** 2))
    np.testing.assert_allclose(kernel_error("direct", LAMBDA[0], C[0], TARGET), squared / 60, rtol=0.03)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["direct", "exp", "best"])
def test_curves_start_at_the_error_without_noise_and_never_fall(name: str, mode: Any) -> None:
    w = _weights(name)
    found = perturbation_error(name, w, C, TARGET, mode=mode, betas=BETAS)
    assert found.error.shape == (4, 2)
    np.testing.assert_allclose(found.error[0], kernel_error(name, w, C, TARGET), rtol=1e-12)
    assert (np.diff(found.error, axis=0) > 0).all()
    again = perturbation_error(name, w[0], C[0], TARGET, mode="recurrent_worst", betas=BETAS)
    assert again.error.shape == (4,)


@pytest.mark.slow
def test_the_worst_case_lies_between_every_random_move_and_its_upper_bound() -> None:
    for name in ("direct", "softplus", "best"):
        w = _weights(name)
        found = perturbation_error(name, w, C, TARGET, mode="recurrent_worst", betas=BETAS)
        assert found.at_most is not None
        assert (found.error <= found.at_most * (1 + 1e-9)).all()
        moves = np.random.default_rng(1).standard_normal((3000, 2, 6))
        moves /= np.linalg.norm(moves, axis=-1, keepdims=True)
        for i, beta in enumerate(BETAS):
            drawn = kernel_error(name, w + beta * moves, C, TARGET).max(axis=0)
            assert (drawn <= found.error[i] * (1 + 1e-9)).all(), (name, beta)


def test_the_worst_case_of_one_weight_is_exact() -> None:
    w, c = np.array([0.9]), np.array([0.4])
    found = perturbation_error("direct", w, c, TARGET, mode="recurrent_worst", betas=(0.05,))
    grid = kernel_error("direct", np.linspace(0.85, 0.95, 1001)[:, None], np.full((1001, 1), 0.4), TARGET)
    np.testing.assert_allclose(found.error, grid.max(), rtol=1e-9)


def test_the_ball_of_all_weights_contains_the_ball_of_the_recurrent_weights() -> None:
    w = _weights("exp")
    all_ = perturbation_error("exp", w, C, TARGET, mode="ball_l2", betas=BETAS).error
    recurrent = perturbation_error("exp", w, C, TARGET, mode="recurrent_worst", betas=BETAS).error
    assert (all_ >= recurrent * 0.999).all()
    assert (all_[1:] > recurrent[1:]).any()


def test_direct_explodes_beyond_its_distance_to_the_boundary_and_exp_does_not() -> None:
    distance = 1 - LAMBDA.max()
    near, far = 0.5 * distance, 8 * distance
    direct = perturbation_error("direct", _weights("direct"), C, TARGET, mode="recurrent_worst", betas=(near, far))
    exp = perturbation_error("exp", _weights("exp"), C, TARGET, mode="recurrent_worst", betas=(near, far))
    assert direct.error[1].max() > 1e4 * direct.error[0].max()
    assert exp.error[1].max() < 100 * exp.error[0].max()


def test_continuous_time_with_step_size_1_gives_the_discrete_error_of_the_same_map() -> None:
    w = _weights("exp")
    discrete, continuous = (
        perturbation_error("exp", w, C, TARGET, mode="ball_l2", betas=BETAS, time=time).error
        for time in ("discrete", "continuous")
    )
    np.testing.assert_allclose(discrete, continuous, rtol=1e-6)


def test_equal_seeds_give_equal_results_and_other_seeds_other_draws() -> None:
    w = _weights("best")
    first, again, other = (
        perturbation_error("best", w, C, TARGET, mode="all_linf", betas=(0.1,), seed=seed).error for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_errors_that_overflow_are_infinite() -> None:
    found = perturbation_error("direct", [0.9], [1.0], np.ones(3000), mode="recurrent_worst", betas=(0.0, 1.0))
    assert np.isfinite(found.error[0])
    assert np.isinf(found.error[1])
    assert found.at_most is not None
    assert np.isinf(found.at_most[1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "l3"}, "all_linf, ball_l2, recurrent_worst"),
        ({"betas": (0.1, 0.1)}, "betas"),
        ({"c": [1.0]}, "d_state"),
        ({"target": []}, "length"),
        ({"draws": 0}, "draws"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"w": [0.5, 0.6], "c": [1.0, 1.0], "target": TARGET, "mode": "all_linf"} | changed
    with pytest.raises(ValueError, match=message):
        perturbation_error("direct", **arguments)
