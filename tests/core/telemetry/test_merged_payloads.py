"""Merged payloads keep every bit of their blocks, record where each block began, and are cut at exactly the right point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm_core.telemetry.blocks import MERGED, decode, encode
from stablessm_core.telemetry.merged_payloads import Span, cut, pack, pieces_of

# (difference to the previous event number, number of points) of each piece
numbers = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=20)


def _pieces(drawn: list[tuple[int, int]]) -> np.ndarray:
    return np.array([[sum(d for d, _ in drawn[: i + 1]), count] for i, (_, count) in enumerate(drawn)], np.int64)


@settings(deadline=None)
@given(numbers, st.integers(1, 5), st.sampled_from([(), (4,)]), st.integers(0, 2**32 - 1))
def test_numbers_and_pieces_survive_packing_bit_for_bit(
    drawn: list[tuple[int, int]], columns: int, middle: tuple[int, ...], seed: int
) -> None:
    pieces = _pieces(drawn)
    shape = (columns, *middle, int(pieces[:, 1].sum()))
    bits = np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)  # includes all kinds of NaNs and infinities
    payload = pack(bits.view(np.float32), pieces)
    assert np.array_equal(decode(payload, shape).view(np.uint32), bits)
    assert np.array_equal(decode(payload, shape, slice(1, 2)).view(np.uint32), bits[1:2])
    assert np.array_equal(pieces_of(payload, int(pieces[-1, 0]), shape[-1]), pieces)


@given(numbers, st.integers(0, 200), st.booleans())
def test_a_cut_keeps_only_the_points_before_the_cut(drawn: list[tuple[int, int]], points: int, whole: bool) -> None:
    pieces = _pieces(drawn)
    owners = np.repeat(pieces[:, 0], pieces[:, 1])
    kept = cut(pieces, points, whole=whole)
    left = np.repeat(kept[:, 0], kept[:, 1])
    assert np.array_equal(left, owners[: len(left)])
    if whole:  # pieces are never split, and the payload has no space for the next piece
        assert len(left) <= points
        assert len(kept) == len(pieces) or len(left) + pieces[len(kept), 1] > points
    else:
        assert len(left) == min(points, len(owners))


def test_a_block_that_was_never_merged_has_exactly_one_piece() -> None:
    assert pieces_of(encode(np.zeros((2, 5), np.float32)), 7, 5).tolist() == [[7, 5]]
    assert pieces_of(pack(np.zeros((2, 5), np.float32), np.array([[7, 5]])), 7, 5).tolist() == [[7, 5]]


@pytest.mark.parametrize(
    ("first", "after", "joined"),
    [
        (Span(0, 1, 3, 4), Span(0, 13, 3, 2), Span(0, 1, 3, 6)),
        (Span(0, 1, 3, 4), Span(0, 13, 1, 1), Span(0, 1, 3, 5)),  # a single point fits any stride
        (Span(0, 10, 1, 1), Span(0, 13, 3, 4), Span(0, 10, 3, 5)),
        (Span(0, 500, 1, 1), Span(0, 1000, 1, 1), Span(0, 500, 500, 2)),  # single evaluations
        (Span(0, 500, 500, 2), Span(0, 1600, 1, 1), None),
        (Span(0, 1, 3, 4), Span(0, 12, 3, 2), None),
        (Span(0, 1, 3, 4), Span(0, 16, 3, 2), None),  # a gap
        (Span(0, 1, 3, 4), Span(0, 13, 1, 2), None),
        (Span(0, 5, 1, 1), Span(0, 5, 1, 1), None),
        (Span(1, 1, 16, 1), Span(1, 17, 16, 8), Span(1, 1, 16, 9)),
        (Span(1, 1, 16, 1), Span(1, 33, 32, 1), None),  # buckets of different lengths do not join
    ],
)
def test_two_blocks_join_if_the_second_continues_the_first(first: Span, after: Span, joined: Span | None) -> None:
    assert first.joined(after) == joined


def test_damaged_pieces_are_refused() -> None:
    payload = pack(np.zeros((2, 6), np.float32), np.array([[3, 2], [4, 4]]))
    for bad in (payload[:7], payload[:5] + b"junk" + payload[9:], bytes([MERGED, 255, 255, 255, 255]) + payload[5:]):
        with pytest.raises(ValueError, match="block payload"):
            pieces_of(bad, 4, 6)
    for seq, count in ((5, 6), (4, 7)):
        with pytest.raises(ValueError, match="block payload"):
            pieces_of(payload, seq, count)
    inner = bytes([MERGED]) + (0).to_bytes(4, "little") + payload
    for bad in (payload[:5], bytes([MERGED]), inner):
        with pytest.raises(ValueError, match="block payload"):
            decode(bad, (2, 6))
    with pytest.raises(ValueError, match="pieces of 5 points for 6 points"):
        pack(np.zeros((2, 6), np.float32), np.array([[3, 2], [4, 3]]))
