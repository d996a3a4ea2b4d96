"""Copying and selective copying match their definitions in the literature."""

from __future__ import annotations

import pytest
import torch

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks.base import IGNORED
from tests.core.tasks.made import made

SIZES = [(100, 10, 10), (1, 1, 4), (7, 3, 5), (64, 8, 16)]


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize(("noise", "memorized", "vocabulary"), SIZES)
def test_the_targets_at_the_markers_are_the_tokens_read_before(
    noise: int, memorized: int, vocabulary: int, variable: bool
) -> None:
    task = made("copying", noise_length=noise, memorized=memorized, vocabulary_size=vocabulary, variable=variable)
    x, y = task.batch(1, 200, 0, "cpu")
    assert x.shape == y.shape == (200, noise + 2 * memorized)
    for inputs, targets in zip(x.tolist(), y.tolist(), strict=True):
        reading, repeating = inputs[: noise + memorized], inputs[noise + memorized :]
        tokens = [token for token in reading if token != 0]
        assert repeating == [vocabulary - 1] * memorized
        assert targets == [IGNORED] * (noise + memorized) + tokens
        assert set(tokens) <= set(range(1, vocabulary - 1))
        if not variable:
            assert reading == tokens + [0] * noise


def test_the_defaults_match_the_published_task() -> None:
    task = made("copying")
    assert (task.length, task.vocabulary) == (120, 10)
    (x, _) = next(iter(task.evaluation_batches(10_000, "cpu")))
    assert len(x) == 1000


def test_tokens_and_their_positions_are_drawn_uniformly() -> None:
    x, y = made("copying", noise_length=15, memorized=5, vocabulary_size=6, variable=True).batch(1, 20_000, 0, "cpu")
    often = (x[:, :20] != 0).float().mean(0)
    torch.testing.assert_close(often, torch.full((20,), 0.25), atol=0.015, rtol=0)
    for places in y[:, -5:].unbind(1):
        share = places.bincount(minlength=6) / len(places)
        torch.testing.assert_close(share, torch.tensor([0, 0.25, 0.25, 0.25, 0.25, 0]), atol=0.015, rtol=0)
    pairs = (x[:, :20] != 0).float()
    both = (pairs[:, :, None] * pairs[:, None]).mean(0)[~torch.eye(20, dtype=torch.bool)]
    torch.testing.assert_close(both, torch.full((380,), 5 / 20 * 4 / 19), atol=0.015, rtol=0)


@pytest.mark.parametrize("options", [{"noise_length": 0}, {"memorized": 0}, {"memorized": 4097}, {"vocabulary_size": 3}])
def test_the_error_for_a_size_beyond_the_limits_names_its_field(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": "copying"} | options})
    assert refused.value.problems[0][0] == f"task.{next(iter(options))}"
