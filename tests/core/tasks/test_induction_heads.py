"""Induction heads match the generator of the H3 and Hyena papers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks.base import IGNORED
from tests.core.tasks.made import made

NAME = "induction_heads"


@pytest.mark.parametrize(
    ("length", "vocabulary", "answer", "triggers"), [(30, 20, 1, 1), (30, 20, 1, 5), (40, 10, 3, 6), (4, 4, 2, 3)]
)
def test_the_answer_follows_every_trigger(length: int, vocabulary: int, answer: int, triggers: int) -> None:
    task = made(NAME, length=length, vocabulary_size=vocabulary, induction_length=answer, triggers=triggers)
    x, y = task.batch(1, 300, 0, "cpu")
    assert x.shape == (300, length + answer)
    assert torch.equal(x[:, 1:], y[:, :-1])
    for row in torch.cat([x, y[:, -1:]], dim=1).tolist():
        assert set(row) <= set(range(vocabulary - 1))  # the no-op token never occurs
        places = [t for t, token in enumerate(row) if token == vocabulary - 2]
        assert places[-1] == length
        assert 2 <= len(places) <= triggers + 1
        assert all(row[t + 1 : t + 1 + answer] == row[length + 1 :] for t in places)


def published_places(rng: np.random.Generator, length: int, answer: int, triggers: int) -> tuple[int, ...]:
    """Positions of the triggers, drawn according to the description of the published generator."""
    count = 1 if rng.uniform() < 0.5 else triggers
    kept: list[int] = []
    for place in sorted(rng.integers(length - 1 - answer, size=count)):
        if not kept or place - kept[-1] > answer:
            kept.append(int(place))
    return tuple(kept)


def test_trigger_positions_have_the_distribution_of_the_published_generator() -> None:
    length, answer, triggers, count = 8, 2, 3, 30_000
    task = made(NAME, length=length, vocabulary_size=12, induction_length=answer, triggers=triggers)
    x, _ = task.batch(1, count, 0, "cpu")
    ours = Counter(tuple(t for t in range(length) if row[t] == 10) for row in x.tolist())
    rng = np.random.default_rng(0)
    expected = Counter(published_places(rng, length, answer, triggers) for _ in range(count))
    assert set(ours) == set(expected)
    for places, often in expected.items():
        assert ours[places] / count == pytest.approx(often / count, abs=0.01), places


def test_training_scores_all_positions_and_evaluation_scores_only_the_answer() -> None:
    task = made(NAME, induction_length=3)
    _, y = task.batch(1, 10, 0, "cpu")
    assert (y != IGNORED).all()
    whole = [y for _, y in task.evaluation_batches(100, "cpu")]
    assert sum(map(len, whole)) == 500
    for y in whole:
        assert (y[:, :-3] == IGNORED).all()
        assert (y[:, -3:] != IGNORED).all()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"induction_length": 29}, "task.induction_length"),
        ({"vocabulary_size": 3}, "task.vocabulary_size"),
        ({"triggers": 0}, "task.triggers"),
    ],
)
def test_the_error_for_incompatible_sizes_names_the_field(options: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": NAME} | options})
    assert refused.value.problems[0][0] == field
