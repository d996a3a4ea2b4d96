"""Blocks keep every bit of every number and refuse damaged data; coarser levels agree with a direct computation."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm_core.telemetry.blocks import BUCKET, LEVELS, Block, LevelBuilder, decode, encode, encode_small, envelope, merge


@pytest.mark.parametrize("shape", [(1, 1), (3, 0), (64, 128), (256, 4, 7), (5, 13)])
def test_every_bit_pattern_survives_encoding_and_decoding(shape: tuple[int, ...]) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, shape, dtype=np.uint32)
    for code in (encode, encode_small):
        assert np.array_equal(decode(code(bits.view(np.float32)), shape).view(np.uint32), bits)
        assert np.array_equal(decode(code(bits.view(np.float32)), shape, slice(1, 4)).view(np.uint32), bits[1:4])


def test_encoding_shrinks_smooth_series_and_barely_enlarges_noise() -> None:
    smooth = np.linspace(0.5, 0.51, 64 * 128, dtype=np.float32).reshape(64, 128)
    noise = np.random.default_rng(0).integers(0, 2**32, (64, 128), dtype=np.uint32).view(np.float32)
    assert len(encode(smooth)) < 0.6 * smooth.nbytes
    assert len(encode_small(smooth)) < 0.4 * smooth.nbytes
    assert np.array_equal(decode(encode_small(smooth), smooth.shape), smooth)
    assert len(encode(noise)) <= noise.nbytes + 1


def test_big_endian_and_strided_input_is_encoded_by_value() -> None:
    values = np.arange(24, dtype=">f4").reshape(4, 6).T
    assert np.array_equal(decode(encode(values), (6, 4)), values)


def test_damaged_payloads_are_refused() -> None:
    payload = encode(np.zeros((4, 64), np.float32))
    for bad in (b"", payload[:-1], b"\x07" + payload[1:], payload[:1] + b"junk", payload + b"\x00"):
        with pytest.raises(ValueError, match="block"):
            decode(bad, (4, 64))
    for shape in ((4, 63), (4, 65), (-4, -64), (2**40, 2**40)):
        with pytest.raises(ValueError, match="block"):
            decode(payload, shape)


def test_a_payload_that_announces_more_bytes_than_its_shape_needs_is_refused_before_unpacking() -> None:
    bomb = bytes([2]) + zstandard.ZstdCompressor().compress(bytes(1 << 26))
    with pytest.raises(ValueError, match="67108864 bytes"):
        decode(bomb, (4, 4))


def test_a_bucket_counts_its_non_finite_values_and_stores_the_range_of_its_finite_values() -> None:
    values = np.array([[1, np.nan, -2, np.inf, 5, np.nan, -np.inf, np.nan]], np.float32)
    stats = envelope(values, 4)
    np.testing.assert_array_equal(stats[0, :, 0], np.float32([-2, 1, np.inf, 2]))
    np.testing.assert_array_equal(stats[0, :, 1], np.float32([5, 5, np.nan, 3]))
    np.testing.assert_array_equal(merge(stats, 2)[0, :, 0], np.float32([-2, 5, np.nan, 5]))


def test_last_step_returns_the_last_recorded_step_of_a_block() -> None:
    assert Block("g", 0, 1, 5, np.zeros((2, 4))).last_step == 16
    assert Block("g", 1, 1, 5 * BUCKET, np.zeros((2, 4, 2))).last_step == 1 + 5 * (2 * BUCKET - 1)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, 700), min_size=1, max_size=12), every=st.sampled_from([1, 7]), seed=st.integers(0, 99))
def test_summary_levels_do_not_depend_on_flush_boundaries(cuts: list[int], every: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((3, sum(cuts))).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.nan
    builder, at, blocks = LevelBuilder("g", every), 0, []
    for count in cuts:
        if rng.random() < 0.3:  # saves and restores the builder, as a checkpoint and a resume do
            state, builder = builder.state(), LevelBuilder("g", every)
            builder.restore(state)
        blocks += builder.feed(1 + at * every, values[:, at : at + count])
        at += count
    for level in range(1, LEVELS + 1):
        size = BUCKET**level
        own = [b for b in blocks if b.level == level]
        points = sum(b.point_count for b in own)
        expected = envelope(values[:, : points * size], size) if points else np.empty((3, 4, 0), np.float32)
        assert all(b.stride == every * size for b in own)
        assert [b.first_step for b in own] == [1 + 128 * i * every * size for i in range(len(own))]
        np.testing.assert_array_equal(np.concatenate([b.values for b in own], axis=-1) if own else expected, expected)
        assert points >= values.shape[1] // size - 127  # at most 127 points are still buffered, less than one block


def test_three_summary_levels_of_a_long_run_match_a_direct_computation() -> None:
    values = np.random.default_rng(1).standard_normal((1, 600_000)).astype(np.float32)
    builder, blocks = LevelBuilder("g", 1), []
    for at in range(0, values.shape[1], 5000):
        blocks += builder.feed(1 + at, values[:, at : at + 5000])
    (top,) = [b for b in blocks if b.level == 3]
    assert (top.first_step, top.stride, top.point_count, top.last_step) == (1, 4096, 128, 128 * 4096)
    np.testing.assert_array_equal(top.values, envelope(values[:, : 128 * 4096], 4096))


def test_missing_steps_end_the_current_block_of_each_level() -> None:
    builder = LevelBuilder("g", 1)
    assert builder.feed(1, np.zeros((2, 40), np.float32)) == []
    (short,) = builder.feed(101, np.ones((2, 16), np.float32))
    assert (short.level, short.first_step, short.point_count, short.last_step) == (1, 1, 2, 32)
    full = builder.feed(117, np.ones((2, 2032), np.float32))
    assert [(b.level, b.first_step, b.point_count) for b in full] == [(1, 101, 128)]


def test_blocks_of_very_wide_groups_stay_small() -> None:
    builder = LevelBuilder("g", 1)
    blocks = builder.feed(1, np.zeros((16_384, 16 * 16), np.float32))
    assert [b.point_count for b in blocks if b.level == 1] == [8, 8]
