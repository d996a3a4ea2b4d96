"""The messages in which a run is recorded, and their bytes, on the way to the server and in a file.

The bytes are the length of the head (4 bytes, little-endian), the head (JSON with kind, fields, shapes and sizes), and the
payloads of the blocks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stablessm_core.telemetry.blocks import Block, PackedBlock, packed
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.limits import MAX_BLOCK_POINTS, MAX_COLUMNS, MAX_RECORD_SERIES
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush

# the fact with which a program says that it computes the built-in alerts itself, so that the server does not
COMPUTES_ALERTS = "computes_alerts"
# a part of a flush has at most so many bytes of numbers, alerts and blocks: see `parts`
PART_BYTES, PART_ALERTS, PART_BLOCKS = 2 << 20, 200, 1024


@dataclass(frozen=True)
class CatalogueMessage:
    series: list[SeriesSpec]


@dataclass(frozen=True)
class EnvironmentMessage:
    facts: dict[str, Any]  # facts about the device, versions, backend, parameter groups and data


@dataclass(frozen=True)
class CheckpointMessage:
    """Only a worker of our own sends it."""

    step: int
    path: str  # path relative to the data directory
    sha256: str
    size: int = 0  # bytes


@dataclass(frozen=True)
class TruncateMessage:
    to_step: int
    reason: str


@dataclass(frozen=True)
class EndMessage:
    """How an attempt ended: a final status, or "queued" if another attempt of a worker will resume the run. ended_at: when the
    program ended, in epoch seconds, if it ended before this message was made."""

    status: str
    reason: str
    result: dict[str, Any] | None = None
    divergence: dict[str, Any] | None = None
    ended_at: float | None = None


@dataclass(frozen=True)
class MetricsMessage:
    """Free metrics, in the order in which they were logged. values[name][i] belongs to steps[i]; None: this name was not logged
    then. A step may occur several times; then the last value counts. `metrics.check_metrics` says what is allowed."""

    steps: list[int]
    values: dict[str, list[float | None]]


Received = Flush | CatalogueMessage | EnvironmentMessage | TruncateMessage | EndMessage | MetricsMessage
TelemetryMessage = Received | CheckpointMessage

# the names of the kinds in the bytes; do not rename them, because newer versions read older files
KINDS: dict[str, type[Any]] = {
    "CatalogueRecord": CatalogueMessage,
    "EnvironmentRecord": EnvironmentMessage,
    "Flush": Flush,
    "CheckpointRecord": CheckpointMessage,
    "TruncateRecord": TruncateMessage,
    "EndRecord": EndMessage,
    "MetricsRecord": MetricsMessage,
}
_SPELLED = {kind: name for name, kind in KINDS.items()}


def size_of(message: TelemetryMessage) -> int:
    """Approximate size of the message in memory, in bytes."""
    if isinstance(message, MetricsMessage):
        return 500 + 32 * len(message.steps) * (1 + len(message.values))
    return 500 + sum(block.nbytes for block in message.blocks) if isinstance(message, Flush) else 500


def packed_message(message: TelemetryMessage) -> TelemetryMessage:
    """The message with encoded blocks, as `from_bytes` returns it."""
    return replace(message, blocks=[packed(block) for block in message.blocks]) if isinstance(message, Flush) else message


def to_bytes(message: TelemetryMessage) -> bytes:
    """The bytes of the message, which `from_bytes` reads."""
    payloads: list[bytes] = []
    if isinstance(message, Flush):
        blocks = [packed(block) for block in message.blocks]
        payloads = [block.payload for block in blocks]
        fields: dict[str, Any] = {
            "alerts": [asdict(alert) for alert in message.alerts],
            "step": message.step,
            "steps_per_second": message.steps_per_second,
            "so_far": dict(message.so_far),
            "blocks": [[b.group, b.level, b.first_step, b.stride, b.shape, len(b.payload)] for b in blocks],
        }
    else:
        fields = asdict(message)
        if isinstance(message, EndMessage) and message.ended_at is None:
            del fields["ended_at"]  # earlier versions refuse the field
    head = json.dumps({"kind": _SPELLED[type(message)], **fields}).encode()  # Python's json module supports NaN and infinities
    return b"".join((struct.pack("<I", len(head)), head, *payloads))


def from_bytes(data: bytes) -> TelemetryMessage:
    """The message that `to_bytes` wrote, with encoded blocks. It trusts the bytes: the server reads those of strangers with
    `server.ingest.records`. Raises ValueError if they are cut short."""
    if len(data) < 4 or len(data) < 4 + (length := struct.unpack_from("<I", data)[0]):
        raise ValueError(f"message of {len(data)} bytes is cut short")
    fields = json.loads(data[4 : 4 + length])
    kind = KINDS[fields.pop("kind")]
    if kind is CatalogueMessage:
        return CatalogueMessage([SeriesSpec(**series) for series in fields["series"]])
    if kind is not Flush:
        message: TelemetryMessage = kind(**fields)
        return message
    blocks, at = [], 4 + length
    for group, level, first_step, stride, shape, size in fields["blocks"]:
        blocks.append(PackedBlock(group, level, first_step, stride, shape[0], shape[-1], data[at : at + size]))
        at += size
    alerts = [Alert(**alert) for alert in fields["alerts"]]
    so_far = fields.get("so_far", {})  # missing in messages of earlier versions
    return Flush(blocks, alerts, fields["step"], fields["steps_per_second"], so_far)


def catalogues(series: Sequence[SeriesSpec]) -> Iterator[CatalogueMessage]:
    """The series in messages that the server accepts. All series of a group are in one message."""
    groups: dict[str, list[SeriesSpec]] = {}
    for one in series:
        groups.setdefault(one.group, []).append(one)
    waiting: list[SeriesSpec] = []
    for group in groups.values():
        columns = sum(one.width for one in (*waiting, *group))
        if waiting and (len(waiting) + len(group) > MAX_RECORD_SERIES or columns > MAX_COLUMNS):
            yield CatalogueMessage(waiting)
            waiting = []
        waiting = waiting + group
    yield CatalogueMessage(waiting)


def parts(flush: Flush) -> Iterator[Flush]:
    """The flush in parts that the server accepts, of at most PART_BYTES of numbers. All parts name the flush's step; only the
    last has its extremes."""
    waiting: list[Block | PackedBlock] = []
    size = 0
    for block in (piece for whole in flush.blocks for piece in _pieces(whole)):
        if waiting and (size + block.nbytes > PART_BYTES or len(waiting) == PART_BLOCKS):
            yield Flush(waiting, [], flush.step, flush.steps_per_second, {})
            waiting, size = [], 0
        waiting.append(block)
        size += block.nbytes
    alerts = flush.alerts
    while len(alerts) > PART_ALERTS:
        yield Flush([], alerts[:PART_ALERTS], flush.step, None)
        alerts = alerts[PART_ALERTS:]
    yield Flush(waiting, alerts, flush.step, flush.steps_per_second, flush.so_far)


def _pieces(block: Block | PackedBlock) -> Iterator[Block | PackedBlock]:
    """The block in pieces of at most PART_BYTES, unless one point is larger."""
    points = min(MAX_BLOCK_POINTS, max(1, PART_BYTES // max(1, block.nbytes // max(1, block.point_count))))
    if block.point_count <= points:
        yield block
        return
    values = block.values
    for i in range(0, block.point_count, points):
        part = np.ascontiguousarray(values[..., i : i + points])
        yield Block(block.group, block.level, block.first_step + i * block.stride, block.stride, part)
