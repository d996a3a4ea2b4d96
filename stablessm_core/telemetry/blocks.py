"""Blocks: how recorded numbers travel and rest. Pure numpy, no torch, no SQL.

A raw block (level 0) is float32 `(columns, count)` of one group for `count` recorded steps `first_step + i * stride`.
A level-k block holds buckets of BUCKET**k recorded steps as float32 `(columns, 4, count)`: min, max, last, non-finite count,
the min and max over finite values only (NaN when a bucket has none). Level blocks also carry the derived columns.
Payload bytes: eigenvalue-major, byte-shuffled, zstd; one leading byte names the codec. A payload merged out of several blocks
(see stablessm_core.telemetry.merged) says in front where each of them began.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
import zstandard

BUCKET = 16  # recorded points per bucket, per level: 16, 256, 4096
LEVELS = 3
BLOCK_POINTS = 128  # buckets per level block, fewer where that would pass BLOCK_BYTES; raw blocks are cut at flushes
BLOCK_BYTES = 1 << 20
AT_ONCE = 256  # recorded points that wait until they become buckets together: a call costs more than sixteen numbers
RAW, ZSTD_SHUFFLE, MERGED, ZSTD_DELTA = 0, 2, 3, 4
SMALL_EFFORT = 9  # zstd's level: slow to write, as fast to read
MAX_DECODED_BYTES = 1 << 28
STATS = ("min", "max", "last", "nonfinite")


@dataclass(frozen=True)
class Block:
    """Numbers of one group over equally spaced steps; `values` is (columns, points), or (columns, 4, points) above level 0."""

    group: str
    level: int
    first_step: int
    stride: int  # steps between two points (level 0) or two buckets
    values: np.ndarray

    @property
    def point_count(self) -> int:
        return int(self.values.shape[-1])

    @property
    def last_step(self) -> int:
        """Last recorded step covered."""
        return self.first_step + self.point_count * self.stride - self.stride // int(BUCKET**self.level)


def encode(values: np.ndarray) -> bytes:
    """Payload of a float32 array, any shape; every bit pattern survives (NaN payloads, -0.0, infinities)."""
    return _packed(np.ascontiguousarray(values, dtype="<f4").view("<u4"), ZSTD_SHUFFLE, 1)


def encode_small(values: np.ndarray) -> bytes:
    """The same in less room, for numbers that will rest: differences along the last axis, as integers, and zstd takes its time.

    Neighbouring floats of a weight are close as integers, too: 1.5 instead of 1.9 bytes each; ratios are noise either way.
    """
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    steps = bits.copy()
    steps[..., 1:] -= bits[..., :-1]
    signed = steps.view("<i4")
    return _packed(((signed << 1) ^ (signed >> 31)).view("<u4"), ZSTD_DELTA, SMALL_EFFORT, otherwise=bits)


def _packed(bits: np.ndarray, codec: int, effort: int, otherwise: np.ndarray | None = None) -> bytes:
    # byte-shuffled and compressed, or as they are where that is no longer
    planes = _shuffled(bits)
    packed = _own.compressor(effort).compress(planes.tobytes())
    if len(packed) < planes.size:
        return bytes([codec]) + packed
    return bytes([RAW]) + (bits if otherwise is None else otherwise).tobytes()


class _Own(threading.local):
    """Of each thread its compressors, by effort: a new one costs as much as a small block."""

    def __init__(self) -> None:
        self._made: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, effort: int) -> zstandard.ZstdCompressor:
        if effort not in self._made:
            self._made[effort] = zstandard.ZstdCompressor(level=effort)
        return self._made[effort]


_own = _Own()


def _shuffled(bits: np.ndarray) -> np.ndarray:
    # uint32 of any shape -> (4, size) bytes, the lowest first; plane by plane is three times as fast as numpy's transposition
    numbers = np.ascontiguousarray(bits).view(np.uint8).reshape(-1, 4)
    planes = np.empty((4, len(numbers)), np.uint8)
    for i in range(4):
        planes[i] = numbers[:, i]
    return planes


def _unshuffled(planes: np.ndarray) -> np.ndarray:
    bits = np.empty(planes.shape[1], "<u4")
    numbers = bits.view(np.uint8).reshape(-1, 4)
    for i in range(4):
        numbers[:, i] = planes[i]
    return bits


def decode(payload: bytes, shape: tuple[int, ...], columns: slice = slice(None)) -> np.ndarray:
    """Inverse of encode; raises ValueError on anything that is not exactly `shape` float32 numbers.

    `columns`: which of the first axis to give back; the bytes of the others are not put together.
    """
    size = 4 * math.prod(shape)
    if not payload or min(shape, default=0) < 0 or size > MAX_DECODED_BYTES:
        raise ValueError(
            f"block payload of {len(payload)} bytes for shape {shape}; allowed is 1 byte to {MAX_DECODED_BYTES} decoded"
        )
    codec, body = payload[0], payload[1:]
    if codec == MERGED:
        codec, body = _after_pieces(payload)
    if codec in (ZSTD_SHUFFLE, ZSTD_DELTA):
        try:
            if zstandard.frame_content_size(body) != size:  # before anything of the announced size is allocated
                raise ValueError(f"block payload holds {zstandard.frame_content_size(body)} bytes; shape {shape} needs {size}")
            data = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"block payload is damaged: {error}") from None
    elif codec == RAW:
        data = body
    else:
        raise ValueError(f"block codec is {codec}; allowed are {RAW}, {ZSTD_SHUFFLE}, {MERGED} and {ZSTD_DELTA}")
    if len(data) != size:
        raise ValueError(f"block payload holds {len(data)} bytes; shape {shape} needs {size}")
    if codec == RAW:
        return np.frombuffer(data, "<f4").reshape(shape)[columns]
    planes = np.frombuffer(data, np.uint8).reshape(4, shape[0], math.prod(shape[1:]))[:, columns]
    bits = _unshuffled(planes.reshape(4, -1)).reshape(planes.shape[1], *shape[1:])
    if codec == ZSTD_DELTA:
        bits = np.cumsum((bits >> 1) ^ (0 - (bits & 1)), axis=-1, dtype=np.uint32)
    return bits.view("<f4")


def _after_pieces(payload: bytes) -> tuple[int, bytes]:
    # codec and body of the numbers in a merged payload: MERGED, length of the pieces (4 bytes), pieces, payload of the numbers
    at = 5 + int.from_bytes(payload[1:5], "little")
    if len(payload) <= at or payload[at] == MERGED:
        raise ValueError(f"block payload of {len(payload)} bytes ends inside its pieces, or holds a merged one again")
    return payload[at], payload[at + 1 :]


def envelope(values: np.ndarray, size: int) -> np.ndarray:
    """(columns, count) -> (columns, 4, buckets): min, max, last, non-finite count of each `size` points (last one shorter)."""
    columns, count = values.shape
    starts = np.arange(0, count, size)
    finite = np.isfinite(values)
    out = np.empty((columns, 4, len(starts)), np.float32)
    out[:, 2] = values[:, np.minimum(starts + size, count) - 1]
    if finite.all():
        out[:, 3] = 0
        if count % size == 0 and abs(values.strides[0]) < abs(values.strides[1]):  # step by step: all columns at once
            whole = values.reshape(columns, -1, size)
            out[:, 0], out[:, 1] = whole.min(axis=2), whole.max(axis=2)
        else:
            out[:, 0] = np.minimum.reduceat(values, starts, axis=1)
            out[:, 1] = np.maximum.reduceat(values, starts, axis=1)
        return out
    out[:, 0] = np.minimum.reduceat(np.where(finite, values, np.inf), starts, axis=1)
    out[:, 1] = np.maximum.reduceat(np.where(finite, values, -np.inf), starts, axis=1)
    out[:, 3] = np.add.reduceat(~finite, starts, axis=1, dtype=np.int64)
    out[:, :2][np.isinf(out[:, :2])] = np.nan
    return out


def merge(stats: np.ndarray, size: int) -> np.ndarray:
    """(columns, 4, count) of buckets -> the same of `size` times longer buckets (the last one may be shorter)."""
    count = stats.shape[-1]
    starts = np.arange(0, count, size)
    out = np.empty((*stats.shape[:2], len(starts)), np.float32)
    out[:, 0] = np.fmin.reduceat(stats[:, 0], starts, axis=1)
    out[:, 1] = np.fmax.reduceat(stats[:, 1], starts, axis=1)
    out[:, 2] = stats[:, 2, np.minimum(starts + size, count) - 1]
    out[:, 3] = np.add.reduceat(stats[:, 3], starts, axis=1)
    return out


class LevelBuilder:
    """Turns a group's raw points into level blocks as they come: `feed` returns the blocks that are complete.

    A level covers a prefix of the recorded steps; its tail, less than one block, is in the levels below it (raw at the least).
    """

    def __init__(self, group: str, stride: int) -> None:
        self.group, self.stride = group, stride
        self._next: int | None = None  # the step that `feed` goes on with
        self._restart(None)

    def feed(self, first_step: int, values: np.ndarray) -> list[Block]:
        """`values` (columns, count): the group's recorded and derived columns from `first_step` on, `stride` steps apart.

        They are kept as they are, so nobody may write into them any more. Steps missing since the last call (dropped telemetry)
        end every level there in short blocks and begin new ones.
        """
        blocks: list[Block] = []
        if first_step != self._next:
            blocks += self._settle()
            for level in range(1, LEVELS + 1):
                blocks += self._cut(level, 1)
            self._restart(first_step)
        count = values.shape[-1]
        self._next = first_step + count * self.stride
        self._unmerged[0].append(values)
        self._waiting += count
        if self._waiting >= min(AT_ONCE, BUCKET * (_points(len(values)) - self._uncut_buckets)):
            blocks += self._settle()
        return blocks

    def state(self) -> dict[str, np.ndarray]:
        """Everything not yet in a block, as arrays; `restore` continues from it exactly (checkpoints carry it)."""
        self._settle()  # completes no block: `feed` waits no longer than that
        next_step = -1 if self._next is None else self._next
        arrays = {"position": np.array([next_step, *self._cut_to], np.int64)}
        for level in range(LEVELS + 1):
            if self._unmerged[level]:
                arrays[f"unmerged/{level}"] = np.ascontiguousarray(np.concatenate(self._unmerged[level], axis=-1))
            if self._uncut[level]:
                arrays[f"uncut/{level}"] = np.concatenate(self._uncut[level], axis=-1)
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Inverse of `state`."""
        position = [int(p) for p in arrays["position"]]
        self._next = None if position[0] < 0 else position[0]
        self._cut_to = position[1:]
        for level in range(LEVELS + 1):
            self._unmerged[level] = [arrays[f"unmerged/{level}"]] if f"unmerged/{level}" in arrays else []
            self._uncut[level] = [arrays[f"uncut/{level}"]] if f"uncut/{level}" in arrays else []
        self._waiting, self._uncut_buckets = _length(self._unmerged[0]), _length(self._uncut[1])

    def _restart(self, first_step: int | None) -> None:
        self._next = first_step
        self._unmerged: list[list[np.ndarray]] = [[] for _ in range(LEVELS + 1)]  # points that fill no bucket of level + 1 yet
        self._uncut: list[list[np.ndarray]] = [[] for _ in range(LEVELS + 1)]  # buckets that fill no block of their level yet
        self._cut_to = [first_step or 0] * (LEVELS + 1)  # first step of the uncut buckets
        self._waiting = self._uncut_buckets = 0  # raw points that wait; buckets of level 1 beside them

    def _settle(self) -> list[Block]:
        """Merge what waits; the blocks that are complete."""
        blocks = self._take(0)
        self._waiting, self._uncut_buckets = _length(self._unmerged[0]), _length(self._uncut[1])
        return blocks

    def _take(self, level: int) -> list[Block]:
        # of the points of this level, raw ones at level 0, else stats, whole buckets of level + 1 are merged; the rest waits
        whole = _length(self._unmerged[level]) // BUCKET * BUCKET
        if whole == 0:
            return []
        data = np.concatenate(self._unmerged[level], axis=-1)
        self._unmerged[level] = [data[..., whole:].copy(order="K")] if data.shape[-1] > whole else []
        stats = (merge if level else envelope)(data[..., :whole], BUCKET)
        self._uncut[level + 1].append(stats)
        blocks = self._cut(level + 1, _points(len(stats)))
        if level + 1 < LEVELS:
            self._unmerged[level + 1].append(stats)
            blocks += self._take(level + 1)
        return blocks

    def _cut(self, level: int, at_least: int) -> list[Block]:
        # blocks of `at_least` buckets each; with 1, everything there is in one block
        waiting = _length(self._uncut[level])
        if waiting < at_least:
            return []
        data = np.concatenate(self._uncut[level], axis=-1)
        points = at_least if at_least > 1 else waiting
        span = self.stride * BUCKET**level
        blocks = []
        for at in range(0, waiting - points + 1, points):
            part = np.ascontiguousarray(data[..., at : at + points])
            blocks.append(Block(self.group, level, self._cut_to[level] + at * span, span, part))
        done = len(blocks) * points
        self._uncut[level] = [data[..., done:].copy()] if waiting > done else []
        self._cut_to[level] += done * span
        return blocks


def _points(columns: int) -> int:
    """Buckets of a level block."""
    return max(8, min(BLOCK_POINTS, BLOCK_BYTES // (16 * columns)))


def _length(parts: list[np.ndarray]) -> int:
    return sum(part.shape[-1] for part in parts)
