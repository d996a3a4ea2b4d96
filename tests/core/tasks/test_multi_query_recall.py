"""Multi-query associative recall matches the generator of the Zoology paper."""

from __future__ import annotations

import numpy as np
import pytest

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks.base import IGNORED
from tests.core.tasks.made import made

NAME = "multi_query_recall"


@pytest.mark.parametrize("random_non_queries", [False, True])
@pytest.mark.parametrize(("length", "pairs", "vocabulary"), [(64, 8, 256), (4, 1, 6), (16, 4, 17), (64, 16, 8192)])
def test_every_key_occurs_twice_and_its_value_is_the_target_at_the_second_occurrence(
    length: int, pairs: int, vocabulary: int, random_non_queries: bool
) -> None:
    options = {"length": length, "pairs": pairs, "vocabulary_size": vocabulary, "random_non_queries": random_non_queries}
    x, y = made(NAME, **options).batch(1, 100, 0, "cpu")
    assert x.shape == y.shape == (100, length)
    for inputs, targets in zip(x.tolist(), y.tolist(), strict=True):
        keys, values = inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2]
        value_of = dict(zip(keys, values, strict=True))
        assert len(value_of) == len(set(values)) == pairs
        assert set(keys) <= set(range(1, vocabulary // 2))
        assert set(values) <= set(range(vocabulary // 2, vocabulary))
        queries = {t: target for t, target in enumerate(targets) if target != IGNORED}
        assert all(t >= 2 * pairs and t % 2 == 0 for t in queries)
        assert sorted(inputs[t] for t in queries) == sorted(keys)
        assert all(value_of[inputs[t]] == target for t, target in queries.items())
        if not random_non_queries:
            assert sum(inputs[2 * pairs :]) == sum(keys)


@pytest.mark.parametrize("power", [0.01, 1.0, 2.0])
@pytest.mark.slow
def test_query_positions_have_the_distribution_of_numpys_choice_without_replacement(power: float) -> None:
    """Compares each key and slot with `numpy.random.choice(replace=False, p=...)`, which the published generator uses."""
    pairs, slots, count = 4, 12, 8000
    task = made(NAME, length=2 * pairs + 2 * slots, pairs=pairs, vocabulary_size=64, power=power, random_non_queries=False)
    x, _ = task.batch(1, count, 0, "cpu")
    ours = np.array([[row.index(key, 2 * pairs) for key in row[0 : 2 * pairs : 2]] for row in x.tolist()])
    rng, weight = np.random.default_rng(0), np.arange(1, slots + 1) ** (power - 1)
    drawn = [rng.choice(slots, size=pairs, replace=False, p=weight / weight.sum()) for _ in range(count)]
    for key in range(pairs):
        found = np.bincount((ours[:, key] - 2 * pairs) // 2, minlength=slots) / count
        expected = np.bincount([row[key] for row in drawn], minlength=slots) / count
        np.testing.assert_allclose(found, expected, atol=0.025)


def test_only_the_queries_are_evaluated() -> None:
    task = made(NAME)
    assert task.facts == {"evaluation_sequences": 1000, "pairs": 8, "keys": 127, "values": 128}
    for _, y in task.evaluation_batches(300, "cpu"):
        assert ((y != IGNORED).sum(1) == 8).all()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"length": 63}, "task.length"),
        ({"length": 64, "pairs": 17}, "task.pairs"),
        ({"vocabulary_size": 64}, "task.vocabulary_size"),
        ({"power": 0.0}, "task.power"),
    ],
)
def test_the_error_for_incompatible_sizes_names_the_field(options: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": NAME} | options})
    assert refused.value.problems[0][0] == field
    assert refused.value.problems[0][2]
