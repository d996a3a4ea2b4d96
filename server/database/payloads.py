"""The stored payload of a block and its checksum, which is computed when the payload is written and compared whenever it is
read."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import BlockRow
from server.errors import ServiceError
from stablessm_core.telemetry.blocks import STATS, decode
from stablessm_core.telemetry.merged_payloads import pieces_of
from stablessm_core.telemetry.scattered import scattered_places

_BLOCKS = BlockRow.__table__.c
# the columns of a block that `row` must have in the functions below
NEEDED = (
    _BLOCKS.run_id, _BLOCKS.group_name, _BLOCKS.level, _BLOCKS.first_step, _BLOCKS.last_step, _BLOCKS.point_count,
    _BLOCKS.column_count, _BLOCKS.attempt, _BLOCKS.payload, _BLOCKS.checksum,
)  # fmt: skip
ROWS = 200  # number of rows per fetch


class DamagedPayload(ServiceError):
    """Stored values differ from the values that were written. The message names the run, the series and the steps."""

    def __init__(self, row: Any, why: str, series: str | None = None) -> None:
        where = f"{series or row.group_name}, steps {row.first_step} to {row.last_step}"
        zoom = f" (zoom level {row.level})" if row.level else ""
        super().__init__(
            f"run {row.run_id}: the stored numbers of {where}{zoom} are damaged ({why}); a backup may have them intact"
        )


def checksum(payload: bytes, attempt: int, point_count: int) -> int:
    """A 63-bit checksum: the CRC-32 of the payload in the low 32 bits, and a CRC of attempt and point count in the high bits.

    An older version without checksums may change a row's payload and point count. The old checksum then does not match the
    point count, so the checksum is ignored.
    """
    return zlib.crc32(payload) | _mark(attempt, point_count) << 32


def stored_numbers(row: Any, columns: slice = slice(None), series: str | None = None) -> np.ndarray:
    """The block's values as float32, with shape (columns, points) at level 0 and (columns, 4, points) at the levels above.
    `row` has the columns NEEDED. Raises DamagedPayload."""
    verify(row, series)
    middle = (len(STATS),) if row.level else ()
    try:
        return decode(row.payload, (row.column_count, *middle, row.point_count), columns)
    except ValueError as error:
        raise DamagedPayload(row, str(error), series) from None


def stored_pieces(row: Any) -> np.ndarray:
    """The result of `pieces_of` for the block. `row` has the columns NEEDED and seq. Raises DamagedPayload."""
    verify(row)
    try:
        return pieces_of(row.payload, row.seq, row.point_count)
    except ValueError as error:
        raise DamagedPayload(row, str(error)) from None


def stored_places(row: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """The step and the event number of each point of a block of free metrics, int64 (points,) each; None for a block with equally
    spaced points. `row` has the columns NEEDED. Raises DamagedPayload."""
    verify(row)
    try:
        return scattered_places(row.payload, row.point_count)
    except ValueError as error:
        raise DamagedPayload(row, str(error)) from None


def verify(row: Any, series: str | None = None) -> bool:
    """Compare the payload with its checksum. Returns False if the payload has no valid checksum. Raises DamagedPayload."""
    if row.checksum is None or row.checksum >> 32 != _mark(row.attempt, row.point_count):
        return False
    if row.checksum & 0xFFFFFFFF != zlib.crc32(row.payload):
        raise DamagedPayload(row, "their checksum differs", series)
    return True


@dataclass
class Examined:
    """The result of `examine`: the number of payloads that match their checksum, the number of payloads without a checksum, and
    descriptions of damaged payloads.

    complete: whether every payload was examined.
    """

    matching: int = 0
    unchecked: int = 0
    damaged: list[str] = field(default_factory=list)
    complete: bool = True


def examine(session: Session, seconds: float) -> Examined:
    """Examine the stored payloads, newest runs first, for at most `seconds`."""
    found, until = Examined(), time.monotonic() + seconds
    for row in _all(session):
        try:
            if verify(row):
                found.matching += 1
            else:
                stored_numbers(row)
                found.unchecked += 1
        except DamagedPayload as damage:
            found.damaged.append(damage.message)
        if time.monotonic() > until:
            found.complete = False
            break
    return found


def _all(session: Session) -> Iterator[Any]:
    newest_first = select(*NEEDED).order_by(_BLOCKS.run_id.desc(), _BLOCKS.group_name, _BLOCKS.level, _BLOCKS.first_step)
    yield from session.execute(newest_first.execution_options(yield_per=ROWS))


def _mark(attempt: int, point_count: int) -> int:
    return zlib.crc32(f"{attempt} {point_count}".encode()) >> 1
