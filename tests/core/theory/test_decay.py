"""The fitted decay of a memory function: exponential, polynomial, or "cannot tell"."""

import numpy as np
import pytest

from stablessm_core.theory import fit_decay, memory_function, polynomial_memory

T = np.arange(300.0)


def test_an_exponential_memory_gets_its_rate_although_it_oscillates() -> None:
    for memory in (2 * 0.9**T, 2 * 0.9**T * np.abs(np.cos(1.3 * T))):
        found = fit_decay(memory)
        assert found.kind == "exponential"
        assert found.exponential.decay == pytest.approx(-np.log(0.9), rel=0.05)


def test_a_polynomial_memory_gets_its_power() -> None:
    found = fit_decay(polynomial_memory(T))
    assert found.kind == "polynomial"
    assert (found.polynomial.decay, found.polynomial.amplitude) == pytest.approx((1.1, 1.0))
    assert found.lags == (0, 299)


def test_many_modes_imitate_polynomial_memory_and_a_single_mode_does_not() -> None:
    rates = np.geomspace(1e-3, 3, 40)
    modes, weight = np.exp(-rates), rates**1.1 * np.exp(-rates)
    assert fit_decay(memory_function(modes, weight, np.ones(40), 300)).kind == "polynomial"
    assert fit_decay(memory_function([0.97], [1.0], [1.0], 300)).kind == "exponential"


def test_memory_between_both_laws_or_with_little_decay_gives_cannot_tell() -> None:
    between, constant = fit_decay(np.exp(-(T**0.35))), fit_decay(0.999**T)
    assert (between.kind, constant.kind) == ("cannot tell", "cannot tell")
    assert "too close" in between.reason
    assert "factor of 1.3 only" in constant.reason


def test_memory_that_is_not_finite_or_too_short_gives_cannot_tell() -> None:
    lost = fit_decay(np.where(T == 7, np.nan, 0.9**T))
    assert (lost.kind, lost.reason) == ("cannot tell", "Memory is not finite at lag 7.")
    assert fit_decay(0.001**T).kind == "cannot tell"
    assert fit_decay(np.zeros(50)).kind == "cannot tell"
    assert fit_decay(np.zeros(0)).kind == "cannot tell"


def test_rounding_error_below_the_floor_does_not_bend_the_fit() -> None:
    noise = 1e-8 * np.abs(np.random.default_rng(0).standard_normal(300))
    found = fit_decay(0.8**T + noise)
    assert found.kind == "exponential"
    assert found.lags[1] < 70


def test_memory_of_another_shape_or_sign_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        fit_decay(np.ones((2, 3)))
    with pytest.raises(ValueError, match="negative"):
        fit_decay([1.0, -0.5])
