"""Modular counting: the running count of ones modulo m, evaluated on sequences longer than those of training."""

from __future__ import annotations

import pytest
import torch

from stablessm_core.scan import linear_scan
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks.base import IGNORED
from tests.core.tasks.made import made


@pytest.mark.parametrize("modulus", [2, 3, 5, 64])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_target_is_the_number_of_ones_so_far_modulo_m(length: int, modulus: int) -> None:
    task = made("modular_counting", length=length, modulus=modulus)
    x, y = task.batch(1, 100, 0, "cpu")
    assert (task.vocabulary, task.output_size, x.shape) == (2, modulus, (100, length))
    for bits, counts in zip(x.tolist(), y.tolist(), strict=True):
        assert counts == [bits[: t + 1].count(1) % modulus for t in range(length)]


def test_evaluation_scores_only_positions_beyond_the_training_length() -> None:
    task = made("modular_counting", length=40, modulus=3)
    (x, y) = next(iter(task.evaluation_batches(10_000, "cpu")))
    assert x.shape == y.shape == (1000, 80)
    assert bool((y[:, :40] == IGNORED).all())
    assert torch.equal(y[:, 40:], (x.cumsum(1) % 3)[:, 40:])
    assert task.facts == {"evaluation_sequences": 1000, "modulus": 3, "evaluation_length": 80}


def test_bits_are_fair_and_all_targets_are_equally_likely() -> None:
    x, y = made("modular_counting", length=100, modulus=5).batch(1, 5000, 0, "cpu")
    assert x.float().mean().item() == pytest.approx(0.5, abs=0.005)
    share = y[:, -1].bincount(minlength=5) / len(y)
    torch.testing.assert_close(share, torch.full((5,), 0.2), atol=0.03, rtol=0)


def test_an_eigenvalue_that_the_input_switches_to_minus_one_solves_parity() -> None:
    task = made("modular_counting")
    x, y = next(iter(task.evaluation_batches(10_000, "cpu")))
    sign = 1.0 - 2.0 * x[..., None]
    first = torch.zeros(len(x), 80, 1)
    h = linear_scan(sign, first, h0=torch.ones(len(x), 1))
    output = torch.cat([h, -h], 2)
    accuracy = task.accuracy(output, y)
    assert accuracy is not None
    assert accuracy.item() == 1


@pytest.mark.parametrize("options", [{"length": 0}, {"length": 65_537}, {"modulus": 1}, {"modulus": 1001}])
def test_the_error_for_a_size_beyond_the_limits_names_its_field(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": "modular_counting"} | options})
    assert refused.value.problems[0][0] == f"task.{next(iter(options))}"
