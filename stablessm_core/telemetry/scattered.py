"""Payloads of points at any steps, in the order in which they arrived. This module uses no SQL.

Free metrics are logged at irregular steps, several times at one step, and not always together. The block of such a group lists
the step and the event number of each point beside the values. A metric without a value at a point has the bits ABSENT there, a
NaN that no stored value has. Of several values at one step, the last one counts.
"""

from __future__ import annotations

import numpy as np
import zstandard

from stablessm_core.telemetry.blocks import SCATTERED, encode

ABSENT = np.uint32(0x7FC5AB5E)  # a quiet NaN; a NaN that somebody logs gets the bits 0x7FC00000
MAX_SCATTERED = 1 << 16  # points of one payload


def empty(columns: int, points: int) -> np.ndarray:
    """Values (columns, points) that are all absent."""
    return np.full((columns, points), ABSENT, np.uint32).view(np.float32)


def present(values: np.ndarray) -> np.ndarray:
    """True where a value was logged, in the shape of `values`."""
    found: np.ndarray = np.ascontiguousarray(values, np.float32).view(np.uint32) != ABSENT
    return found


def pack_scattered(values: np.ndarray, steps: np.ndarray, events: np.ndarray) -> bytes:
    """The payload of values (columns, points) with the step and the event number of each point, (points,) each."""
    if not 0 < len(steps) == len(events) == values.shape[-1] <= MAX_SCATTERED:
        raise ValueError(f"{len(steps)} steps and {len(events)} events for {values.shape[-1]} points; at most {MAX_SCATTERED}")
    table = np.diff(np.stack([steps, events]).astype("<i8"), axis=1, prepend=0)  # differences compress well
    head = zstandard.ZstdCompressor().compress(np.ascontiguousarray(table).tobytes())
    return bytes([SCATTERED]) + len(head).to_bytes(4, "little") + head + encode(values)


def scattered_places(payload: bytes, points: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The step and the event number of each point, int64 (points,) each; None if the payload holds equally spaced points.

    Raises ValueError if the payload is damaged.
    """
    if payload[:1] != bytes([SCATTERED]):
        return None
    head = payload[5 : 5 + int.from_bytes(payload[1:5], "little")]
    try:
        size = zstandard.frame_content_size(head)
        if not 0 < points <= MAX_SCATTERED or size != 16 * points:
            raise ValueError(f"block payload lists {size} bytes of steps for {points} points")
        table = np.frombuffer(zstandard.ZstdDecompressor().decompress(head, allow_extra_data=False), "<i8").reshape(2, points)
    except zstandard.ZstdError as error:
        raise ValueError(f"block payload has damaged steps: {error}") from None
    steps, events = np.cumsum(table, axis=1)
    return steps, events


def last_of_each_step(steps: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The indices of the points that count, in the order of their steps: at each step the last point of the newest event."""
    order = np.lexsort((events, steps))  # a stable sort keeps the order of arrival inside an event
    ordered = steps[order]
    found: np.ndarray = order[np.append(ordered[1:] != ordered[:-1], True)] if len(order) else order
    return found


def event_pieces(events: np.ndarray) -> np.ndarray:
    """Event number and number of points of each run of points of one event, int64 (n, 2)."""
    starts = np.flatnonzero(np.diff(events, prepend=events[:1] - 1))
    return np.column_stack([events[starts], np.diff(np.append(starts, len(events)))])
