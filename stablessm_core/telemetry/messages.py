"""The messages that a training process sends for storage, and their byte format on disk while the database is unavailable.

The bytes are the length of the head (4 bytes, little-endian), the head (JSON with kind, fields, shapes and sizes), and the
payloads of the blocks.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

from stablessm_core.telemetry.blocks import Block, decode, encode
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush


@dataclass(frozen=True)
class CatalogueMessage:
    series: list[SeriesSpec]


@dataclass(frozen=True)
class EnvironmentMessage:
    facts: dict[str, Any]  # facts about the device, versions, backend, parameter groups and data


@dataclass(frozen=True)
class CheckpointMessage:
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
    """How an attempt ended: a final status, or "queued" if another attempt will resume the run. ended_at: when the program ended,
    in epoch seconds, if it ended before this message was made."""

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


TelemetryMessage = (
    CatalogueMessage | EnvironmentMessage | Flush | CheckpointMessage | TruncateMessage | EndMessage | MetricsMessage
)

# the names of the kinds in the stored bytes; do not rename them, because a newer version may read an old spool
_KINDS: dict[str, type[Any]] = {
    "CatalogueRecord": CatalogueMessage,
    "EnvironmentRecord": EnvironmentMessage,
    "Flush": Flush,
    "CheckpointRecord": CheckpointMessage,
    "TruncateRecord": TruncateMessage,
    "EndRecord": EndMessage,
    "MetricsRecord": MetricsMessage,
}
_SPELLED = {kind: name for name, kind in _KINDS.items()}


def size_of(message: TelemetryMessage) -> int:
    """Approximate size of the message in memory, in bytes."""
    if isinstance(message, MetricsMessage):
        return 500 + 32 * len(message.steps) * (1 + len(message.values))
    return 500 + sum(block.values.nbytes for block in message.blocks) if isinstance(message, Flush) else 500


def to_bytes(message: TelemetryMessage) -> bytes:
    """The bytes of the message, which `from_bytes` reads."""
    payloads: list[bytes] = []
    if isinstance(message, Flush):
        payloads = [encode(block.values) for block in message.blocks]
        fields: dict[str, Any] = {
            "alerts": [asdict(alert) for alert in message.alerts],
            "step": message.step,
            "steps_per_second": message.steps_per_second,
            "so_far": dict(message.so_far),
            "blocks": [
                [b.group, b.level, b.first_step, b.stride, b.values.shape, len(payload)]
                for b, payload in zip(message.blocks, payloads, strict=True)
            ],
        }
    else:
        fields = asdict(message)
        if isinstance(message, EndMessage) and message.ended_at is None:
            del fields["ended_at"]  # earlier versions refuse the field
    head = json.dumps({"kind": _SPELLED[type(message)], **fields}).encode()  # Python's json module supports NaN and infinities
    return b"".join((struct.pack("<I", len(head)), head, *payloads))


def from_bytes(data: bytes) -> TelemetryMessage:
    """The message that `to_bytes` wrote; raises ValueError if the bytes are damaged."""
    if len(data) < 4 or len(data) < 4 + (length := struct.unpack_from("<I", data)[0]):
        raise ValueError(f"message of {len(data)} bytes is cut short")
    fields = json.loads(data[4 : 4 + length])
    kind = _KINDS[fields.pop("kind")]
    if kind is CatalogueMessage:
        return CatalogueMessage([SeriesSpec(**series) for series in fields["series"]])
    if kind is not Flush:
        message: TelemetryMessage = kind(**fields)
        return message
    blocks, at = [], 4 + length
    for group, level, first_step, stride, shape, size in fields["blocks"]:
        blocks.append(Block(group, level, first_step, stride, decode(data[at : at + size], tuple(shape))))
        at += size
    alerts = [Alert(**alert) for alert in fields["alerts"]]
    so_far = fields.get("so_far", {})  # missing in messages of earlier versions
    return Flush(blocks, alerts, fields["step"], fields["steps_per_second"], so_far)
