"""The combinations that the scan's tests use are few and contain every pair."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.scan.pairwise import covering, pairs


@given(st.lists(st.integers(1, 4).map(range), min_size=2, max_size=4))
@pytest.mark.slow
def test_the_covering_rows_contain_every_pair_of_options(options: list[range]) -> None:
    chosen, every = covering(options), list(product(*options))
    assert set(chosen) <= set(every)
    assert {pair for row in chosen for pair in pairs(row)} == {pair for row in every for pair in pairs(row)}


@pytest.mark.parametrize(("sizes", "most"), [((6, 4, 2, 2, 2, 2), 26), ((2, 2, 2, 2, 2), 8), ((4, 2, 2), 8)])
def test_the_number_of_covering_rows_is_small(sizes: tuple[int, ...], most: int) -> None:
    assert len(covering([range(size) for size in sizes])) <= most
