"""Merged payloads: one payload with the numbers of many blocks and the exact start of each block. This module uses no SQL.

Long blocks compress better than short blocks and need fewer database rows. But a resumed live stream and a run rolled back to a
checkpoint need the original flushes. So a merged payload lists its pieces: the event number and the number of points of each
original block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import zstandard

from stablessm_core.telemetry.blocks import MERGED, SMALL_EFFORT, encode_small
from stablessm_core.telemetry.scattered import event_pieces, scattered_places

MAX_PIECES = 1 << 16


@dataclass(frozen=True)
class Span:
    """The steps that a block covers: `point_count` points or buckets of `level` from `first_step` on."""

    level: int
    first_step: int
    stride: int
    point_count: int

    def joined(self, after: Span) -> Span | None:
        """One span that covers this span and `after`; None if they do not fit together.

        A single point of level 0 has no stride, so single points join at any constant distance.
        """
        stride = self.stride
        if self.level == 0 and self.point_count == 1:
            stride = after.stride if after.point_count > 1 else after.first_step - self.first_step
        fits = after.stride == stride or (self.level == 0 and after.point_count == 1)
        if stride < 1 or not fits or after.first_step != self.first_step + self.point_count * stride:
            return None
        return Span(self.level, self.first_step, stride, self.point_count + after.point_count)


def pack(values: np.ndarray, pieces: np.ndarray) -> bytes:
    """The payload of concatenated blocks. values: (columns, ..., points). pieces: see `pieces_of`."""
    if len(pieces) == 1:
        return encode_small(values)
    if int(pieces[:, 1].sum()) != values.shape[-1] or len(pieces) > MAX_PIECES:
        raise ValueError(f"{len(pieces)} pieces of {int(pieces[:, 1].sum())} points for {values.shape[-1]} points")
    table = np.ascontiguousarray(pieces, "<i8").copy()
    table[1:, 0] -= pieces[:-1, 0]  # event numbers grow slowly, so their differences compress well
    head = zstandard.ZstdCompressor(level=SMALL_EFFORT).compress(np.ascontiguousarray(table.T).tobytes())
    return bytes([MERGED]) + len(head).to_bytes(4, "little") + head + encode_small(values)


def pieces_of(payload: bytes, seq: int, point_count: int) -> np.ndarray:
    """Event number and number of points of each block in the payload, int64 (n, 2). An unmerged payload is one piece.

    seq, point_count: the event number and the number of points in the block's database row. Raises ValueError on a damaged table.
    """
    if (places := scattered_places(payload, point_count)) is not None:
        return event_pieces(places[1])
    if payload[:1] != bytes([MERGED]):
        return np.array([[seq, point_count]], np.int64)
    length = int.from_bytes(payload[1:5], "little")
    head = payload[5 : 5 + length]
    try:
        size = zstandard.frame_content_size(head)
        if len(head) != length or not 0 < size <= 16 * MAX_PIECES or size % 16:
            raise ValueError(f"block payload has {len(head)} bytes of pieces that announce {size}; it is damaged")
        table = np.frombuffer(zstandard.ZstdDecompressor().decompress(head, allow_extra_data=False), "<i8").reshape(2, -1).T
    except zstandard.ZstdError as error:
        raise ValueError(f"block payload has damaged pieces: {error}") from None
    pieces = np.column_stack([np.cumsum(table[:, 0]), table[:, 1]])
    if (pieces[:, 1] < 1).any() or int(pieces[:, 1].sum()) != point_count or pieces[-1, 0] != seq:
        raise ValueError(f"block payload has pieces of {int(pieces[:, 1].sum())} points; it holds {point_count}")
    return pieces


def cut(pieces: np.ndarray, points: int, *, whole: bool) -> np.ndarray:
    """The pieces of the first `points` points. The piece at the cut is shortened, or left out if `whole` is True."""
    ends = np.cumsum(pieces[:, 1])
    kept = pieces[ends <= points].copy()
    begun = int(kept[:, 1].sum())
    if whole or begun == points or len(kept) == len(pieces):
        return kept
    return np.concatenate([kept, [[pieces[len(kept), 0], points - begun]]])
