"""The combinations that the scan's tests take are few and leave no pair out."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.scan.pairwise import covering, pairs


@given(st.lists(st.integers(1, 4).map(range), min_size=2, max_size=4))
def test_every_two_options_meet(options: list[range]) -> None:
    chosen, every = covering(options), list(product(*options))
    assert set(chosen) <= set(every)
    assert {pair for row in chosen for pair in pairs(row)} == {pair for row in every for pair in pairs(row)}


@pytest.mark.parametrize(("sizes", "most"), [((6, 4, 2, 2, 2, 2), 26), ((2, 2, 2, 2, 2), 8), ((4, 2, 2), 8)])
def test_they_are_few(sizes: tuple[int, ...], most: int) -> None:
    assert len(covering([range(size) for size in sizes])) <= most
