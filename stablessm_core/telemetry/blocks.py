"""Blocks, the units in which recorded values are sent and stored. This module uses neither torch nor SQL.

A raw block (level 0) holds float32 `(columns, count)`: the values of one group at `count` steps `first_step + i * stride`.
A level block (level k >= 1) holds `count` buckets of BUCKET**k recorded steps each, as float32 `(columns, 4, count)`: min, max,
last, non-finite count. Min and max include only the finite values (NaN if a bucket has no finite value). Level blocks also
hold the derived columns.
A payload is the array, one eigenvalue after the other, byte-shuffled and compressed with zstd. Its first byte names the codec.
A payload that was merged from several blocks (see stablessm_core.telemetry.merged_payloads) starts with a table of the blocks.
The payload of points at any steps (see stablessm_core.telemetry.scattered) starts with a table of their steps.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
import zstandard

BUCKET = 16  # buckets are merged by this factor at each level: a bucket covers 16, 256 or 4096 recorded points
LEVELS = 3
BLOCK_POINTS = 128  # maximum number of buckets in a level block; each flush ends a raw block
BLOCK_BYTES = 1 << 20  # maximum size of a level block's array, unless 8 buckets are larger
AT_ONCE = 256  # number of recorded points that one call turns into buckets; a call for only 16 points would be mostly overhead
RAW, ZSTD_SHUFFLE, MERGED, ZSTD_DELTA, SCATTERED = 0, 2, 3, 4, 5
SMALL_EFFORT = 9  # zstd compression level of `encode_small`; compression is slower than in `encode`, decompression is not
MAX_DECODED_BYTES = 1 << 28
STATS = ("min", "max", "last", "nonfinite")


@dataclass(frozen=True)
class Block:
    """Values of one group at equally spaced steps: (columns, points) at level 0, (columns, 4, points) at higher levels."""

    group: str
    level: int
    first_step: int
    stride: int  # training steps between two points (level 0) or between two buckets (higher levels)
    values: np.ndarray

    @property
    def point_count(self) -> int:
        return int(self.values.shape[-1])

    @property
    def last_step(self) -> int:
        """The last recorded step that the block covers."""
        return self.first_step + self.point_count * self.stride - self.stride // int(BUCKET**self.level)

    @property
    def nbytes(self) -> int:
        """The size of the values, in bytes."""
        return int(self.values.nbytes)


@dataclass(frozen=True)
class PackedBlock:
    """A block with its encoded values, which `decode` reads."""

    group: str
    level: int
    first_step: int
    stride: int
    columns: int
    point_count: int
    payload: bytes

    @property
    def last_step(self) -> int:
        """The last recorded step that the block covers."""
        return self.first_step + self.point_count * self.stride - self.stride // int(BUCKET**self.level)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return (self.columns, len(STATS), self.point_count) if self.level else (self.columns, self.point_count)

    @property
    def nbytes(self) -> int:
        """The size of the values, in bytes."""
        return 4 * math.prod(self.shape)

    @property
    def values(self) -> np.ndarray:
        """The numbers as float32."""
        return self.decoded(slice(None))

    def decoded(self, columns: slice) -> np.ndarray:
        """The numbers of these columns as float32."""
        return decode(self.payload, self.shape, columns)


def packed(block: Block | PackedBlock) -> PackedBlock:
    """The block with encoded values."""
    if isinstance(block, PackedBlock):
        return block
    values = block.values
    return PackedBlock(block.group, block.level, block.first_step, block.stride, len(values), values.shape[-1], encode(values))


def encode(values: np.ndarray) -> bytes:
    """The payload of a float32 array of any shape. Every bit pattern is kept (NaN payloads, -0.0, infinities)."""
    return _packed(np.ascontiguousarray(values, dtype="<f4").view("<u4"), ZSTD_SHUFFLE, 1)


def encode_small(values: np.ndarray) -> bytes:
    """A payload for long-term storage, smaller than that of `encode`, but slower to make.

    It holds integer differences along the last axis. Consecutive values of a weight have similar bit patterns, so their
    differences compress to 1.5 bytes per value, and the values themselves would need 1.9 bytes. Gradient ratios are noise, and
    their payloads do not become smaller.
    """
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    steps = bits.copy()
    steps[..., 1:] -= bits[..., :-1]
    signed = steps.view("<i4")
    return _packed(((signed << 1) ^ (signed >> 31)).view("<u4"), ZSTD_DELTA, SMALL_EFFORT, otherwise=bits)


def _packed(bits: np.ndarray, codec: int, effort: int, otherwise: np.ndarray | None = None) -> bytes:
    # byte-shuffled and compressed, or raw if compression saves nothing
    planes = _shuffled(bits)
    packed = _compressors.get(effort).compress(planes.tobytes())
    if len(packed) < planes.size:
        return bytes([codec]) + packed
    return bytes([RAW]) + (bits if otherwise is None else otherwise).tobytes()


class _Compressors(threading.local):
    """The compressors of each thread, by compression level. Making a compressor takes as long as compressing a small block."""

    def __init__(self) -> None:
        self._made: dict[int, zstandard.ZstdCompressor] = {}

    def get(self, effort: int) -> zstandard.ZstdCompressor:
        if effort not in self._made:
            self._made[effort] = zstandard.ZstdCompressor(level=effort)
        return self._made[effort]


_compressors = _Compressors()


def _shuffled(bits: np.ndarray) -> np.ndarray:
    # uint32 of any shape -> (4, size) bytes, lowest byte first; copying each byte plane is three times as fast as a transpose
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
    """The array of a payload. Raises ValueError unless the payload holds exactly `shape` float32 numbers.

    columns: the part of the first axis to return; the other columns are not unshuffled.
    """
    size = 4 * math.prod(shape)
    if not payload or min(shape, default=0) < 0 or size > MAX_DECODED_BYTES:
        raise ValueError(
            f"block payload of {len(payload)} bytes for shape {shape}; allowed: 1 byte to {MAX_DECODED_BYTES} decoded"
        )
    codec, body = payload[0], payload[1:]
    if codec in (MERGED, SCATTERED):
        codec, body = _after_table(payload)
    if codec in (ZSTD_SHUFFLE, ZSTD_DELTA):
        try:
            if zstandard.frame_content_size(body) != size:  # check the size before memory of that size is allocated
                raise ValueError(f"block payload holds {zstandard.frame_content_size(body)} bytes; shape {shape} needs {size}")
            data = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"block payload is damaged: {error}") from None
    elif codec == RAW:
        data = body
    else:
        raise ValueError(f"block codec is {codec}; allowed: {RAW}, {ZSTD_SHUFFLE}, {MERGED}, {ZSTD_DELTA} and {SCATTERED}")
    if len(data) != size:
        raise ValueError(f"block payload holds {len(data)} bytes; shape {shape} needs {size}")
    if codec == RAW:
        return np.frombuffer(data, "<f4").reshape(shape)[columns]
    planes = np.frombuffer(data, np.uint8).reshape(4, shape[0], math.prod(shape[1:]))[:, columns]
    bits = _unshuffled(planes.reshape(4, -1)).reshape(planes.shape[1], *shape[1:])
    if codec == ZSTD_DELTA:
        bits = np.cumsum((bits >> 1) ^ (0 - (bits & 1)), axis=-1, dtype=np.uint32)
    return bits.view("<f4")


def _after_table(payload: bytes) -> tuple[int, bytes]:
    # a merged payload consists of MERGED, the length of the table of pieces (4 bytes), that table, and the payload of the numbers
    # a scattered payload consists of SCATTERED, and the same parts with a table of steps
    at = 5 + int.from_bytes(payload[1:5], "little")
    if len(payload) <= at or payload[at] in (MERGED, SCATTERED):
        raise ValueError(f"block payload of {len(payload)} bytes ends inside its table, or holds another payload with a table")
    return payload[at], payload[at + 1 :]


def envelope(values: np.ndarray, size: int) -> np.ndarray:
    """Min, max, last and non-finite count of buckets of `size` points (the last may have fewer), (columns, 4, buckets)."""
    columns, count = values.shape
    starts = np.arange(0, count, size)
    finite = np.isfinite(values)
    out = np.empty((columns, 4, len(starts)), np.float32)
    out[:, 2] = values[:, np.minimum(starts + size, count) - 1]
    if finite.all():
        out[:, 3] = 0
        if count % size == 0 and abs(values.strides[0]) < abs(
            values.strides[1]
        ):  # the numbers of each step are adjacent in memory, so reduce all columns together
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
    """Merge every `size` buckets into one (the last may merge fewer buckets). stats and the result are (columns, 4, count)."""
    count = stats.shape[-1]
    starts = np.arange(0, count, size)
    out = np.empty((*stats.shape[:2], len(starts)), np.float32)
    out[:, 0] = np.fmin.reduceat(stats[:, 0], starts, axis=1)
    out[:, 1] = np.fmax.reduceat(stats[:, 1], starts, axis=1)
    out[:, 2] = stats[:, 2, np.minimum(starts + size, count) - 1]
    out[:, 3] = np.add.reduceat(stats[:, 3], starts, axis=1)
    return out


class LevelBuilder:
    """Turns a group's raw points, as they arrive, into level blocks. `feed` returns the completed blocks.

    Each level covers the recorded steps up to the end of its last block. The later steps, fewer than a block of this level
    covers, are only in lower levels or in raw blocks.
    """

    def __init__(self, group: str, stride: int) -> None:
        self.group, self.stride = group, stride
        self._next: int | None = None  # the first step that the next `feed` must begin with
        self._restart(None)

    def feed(self, first_step: int, values: np.ndarray) -> list[Block]:
        """Add points and return the blocks that they complete.

        values: the group's recorded and derived columns from `first_step` on, `stride` steps apart, (columns, count).

        The builder keeps the array, so the caller must not modify it afterwards. If steps are missing since the last call
        (dropped telemetry), every level ends there with a short block and starts again.
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
        """The points and buckets that are not in a block yet, as arrays for a checkpoint, from which `restore` continues."""
        self._settle()  # completes no block, because `feed` would already have returned a complete block
        next_step = -1 if self._next is None else self._next
        arrays = {"position": np.array([next_step, *self._cut_to], np.int64)}
        for level in range(LEVELS + 1):
            if self._unmerged[level]:
                arrays[f"unmerged/{level}"] = np.ascontiguousarray(np.concatenate(self._unmerged[level], axis=-1))
            if self._uncut[level]:
                arrays[f"uncut/{level}"] = np.concatenate(self._uncut[level], axis=-1)
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Continue from `state()`."""
        position = [int(p) for p in arrays["position"]]
        self._next = None if position[0] < 0 else position[0]
        self._cut_to = position[1:]
        for level in range(LEVELS + 1):
            self._unmerged[level] = [arrays[f"unmerged/{level}"]] if f"unmerged/{level}" in arrays else []
            self._uncut[level] = [arrays[f"uncut/{level}"]] if f"uncut/{level}" in arrays else []
        self._waiting, self._uncut_buckets = _length(self._unmerged[0]), _length(self._uncut[1])

    def _restart(self, first_step: int | None) -> None:
        self._next = first_step
        self._unmerged: list[list[np.ndarray]] = [[] for _ in range(LEVELS + 1)]  # points not yet in a bucket of the next level
        self._uncut: list[list[np.ndarray]] = [[] for _ in range(LEVELS + 1)]  # per level: buckets that are not in a block yet
        self._cut_to = [first_step or 0] * (LEVELS + 1)  # per level: the first step that is not in a block yet
        self._waiting = self._uncut_buckets = 0  # raw points not yet in a bucket; level-1 buckets not yet in a block

    def _settle(self) -> list[Block]:
        """Turn the waiting points into buckets, and return the blocks that these buckets complete."""
        blocks = self._take(0)
        self._waiting, self._uncut_buckets = _length(self._unmerged[0]), _length(self._uncut[1])
        return blocks

    def _take(self, level: int) -> list[Block]:
        # merge the points of this level (raw at level 0, otherwise statistics) into full buckets of the next level; keep the rest
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
        # cut the buckets into blocks of `at_least` buckets each; 1 means one block with all buckets
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
    """The number of buckets in a level block of a group with this many columns."""
    return max(8, min(BLOCK_POINTS, BLOCK_BYTES // (16 * columns)))


def _length(parts: list[np.ndarray]) -> int:
    return sum(part.shape[-1] for part in parts)
