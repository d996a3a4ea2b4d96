"""A small set of combinations of options that contains every pair of values. Most faults depend on only one or two options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Pair = tuple[tuple[int, Any], tuple[int, Any]]


def pairwise(*, indirect: Sequence[str] = (), **options: Sequence[Any]) -> pytest.MarkDecorator:
    """Replaces one `parametrize` per option, which would test all combinations."""
    rows = covering(list(options.values()))
    return pytest.mark.parametrize(
        list(options), rows, indirect=indirect, ids=["-".join(map(_label, options, row)) for row in rows]
    )


def covering(options: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Repeatedly choose the combination with the most new pairs until all pairs occur. The choice is deterministic."""
    pairs_of = {row: pairs(row) for row in product(*options)}
    missing = set().union(*pairs_of.values())
    chosen = []
    while missing:
        best = max(pairs_of, key=lambda row: len(missing & pairs_of[row]))
        chosen.append(best)
        missing -= pairs_of[best]
    return chosen


def pairs(row: Iterable[Any]) -> set[Pair]:
    return set(combinations(enumerate(row), 2))


def _label(name: str, option: Any) -> str:
    if isinstance(option, bool):
        return name if option else f"no_{name}"
    return str(option).removeprefix("torch.")
