"""Definition 3.4, computed: which maps are stable, and with which g."""

import numpy as np
import pytest

from stablessm_core.theory import largest_g_of_best, stability_of_map

BETAS = (0.001, 0.03, 0.3, 1.0)


def test_the_maps_of_the_paper_are_stable_in_continuous_time_and_direct_and_relu_are_not() -> None:
    found = {name: stability_of_map(name, "continuous").stable for name in ("exp", "softplus", "best", "direct", "relu")}
    assert found == {"exp": True, "softplus": True, "best": True, "direct": False, "relu": False}


@pytest.mark.parametrize("name", ["exp", "softplus"])
def test_g_of_exp_and_softplus_is_e_to_the_beta_minus_1(name: str) -> None:
    np.testing.assert_allclose(stability_of_map(name, "continuous", BETAS).g, np.expm1(BETAS), rtol=1e-3)


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.5), (1.0, 0.1), (4.0, 2.0)])
def test_g_of_best_is_below_its_bound_and_of_the_same_size(a: float, b: float) -> None:
    g = stability_of_map("best", "continuous", BETAS, a=a, b=b).g
    valid = np.array([largest_g_of_best(beta, a=a, b=b) for beta in BETAS])
    assert (g <= valid).all()
    assert (g > 0.7 * valid).all()


def test_g_of_best_is_the_maximum_over_all_weights_of_its_formula() -> None:
    w = np.linspace(0, 20, 2_000_001)
    expected = [np.max((beta**2 + 2 * beta * w) / (w**2 + 0.5)) for beta in BETAS]
    np.testing.assert_allclose(stability_of_map("best", "continuous", BETAS).g, expected, rtol=1e-3)


def test_discrete_g_is_the_sum_over_steps_for_eigenvalues_of_both_signs() -> None:
    found = stability_of_map("tanh", "discrete", (0.2,))
    w = np.linspace(-2.5, 2.5, 101)
    k = np.arange(2500)
    largest = 0.0
    for shift in (-0.2, -0.1, 0.1, 0.2):
        before, after = np.tanh(w)[:, None] ** k, np.tanh(w + shift)[:, None] ** k
        largest = max(largest, float(np.max((1 - np.abs(np.tanh(w))) * np.abs(before - after).sum(axis=1))))
    assert found.stable
    assert 0.98 * found.g[0] < largest < 1.001 * found.g[0]


def test_discrete_best_touches_minus_1_unless_b_keeps_eigenvalues_positive() -> None:
    touching, positive = stability_of_map("best", "discrete"), stability_of_map("best", "discrete", b=1.0)
    assert not touching.stable
    assert touching.reason == "Noise of size 1e-06 moves an eigenvalue onto or across the boundary at -1."
    assert positive.stable
    assert np.isfinite(positive.g).all()


def test_sizes_that_are_not_positive_and_rising_are_refused() -> None:
    for betas in ((), (0.0, 1.0), (1.0, 0.5)):
        with pytest.raises(ValueError, match="betas"):
            stability_of_map("exp", "continuous", betas)
