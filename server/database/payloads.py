"""The stored payload of a block and its checksum: made with it, compared whenever it is read."""

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
from stablessm_core.telemetry.merged import pieces_of

_BLOCKS = BlockRow.__table__.c
# of a block's row: what the functions below need beside whatever else is read
NEEDED = (
    _BLOCKS.run_id, _BLOCKS.group_name, _BLOCKS.level, _BLOCKS.first_step, _BLOCKS.last_step, _BLOCKS.point_count,
    _BLOCKS.column_count, _BLOCKS.attempt, _BLOCKS.payload, _BLOCKS.checksum,
)  # fmt: skip
ROWS = 200  # read at once


class DamagedPayload(ServiceError):
    """Stored numbers are not what was written. The text names run, series and steps."""

    def __init__(self, row: Any, why: str, series: str | None = None) -> None:
        where = f"{series or row.group_name}, steps {row.first_step} to {row.last_step}"
        zoom = f" (zoom level {row.level})" if row.level else ""
        super().__init__(
            f"run {row.run_id}: the stored numbers of {where}{zoom} are damaged ({why}); a backup may have them whole"
        )


def checksum(payload: bytes, attempt: int, point_count: int) -> int:
    """CRC-32 of the payload, above it one of what the row says of it: 63 bits.

    A program that knows no checksums changes a row's points with its payload, and leaves a checksum that is not this row's.
    """
    return zlib.crc32(payload) | _mark(attempt, point_count) << 32


def stored_numbers(row: Any, columns: slice = slice(None), series: str | None = None) -> np.ndarray:
    """float32 (columns, points), above level 0 (columns, 4, points). `row` has NEEDED. Raises DamagedPayload."""
    verify(row, series)
    middle = (len(STATS),) if row.level else ()
    try:
        return decode(row.payload, (row.column_count, *middle, row.point_count), columns)
    except ValueError as error:
        raise DamagedPayload(row, str(error), series) from None


def stored_pieces(row: Any) -> np.ndarray:
    """`pieces_of` the block; `row` has NEEDED and seq. Raises DamagedPayload."""
    verify(row)
    try:
        return pieces_of(row.payload, row.seq, row.point_count)
    except ValueError as error:
        raise DamagedPayload(row, str(error)) from None


def verify(row: Any, series: str | None = None) -> bool:
    """Compare the payload with its checksum; False where there is none. Raises DamagedPayload."""
    if row.checksum is None or row.checksum >> 32 != _mark(row.attempt, row.point_count):
        return False
    if row.checksum & 0xFFFFFFFF != zlib.crc32(row.payload):
        raise DamagedPayload(row, "their checksum differs", series)
    return True


@dataclass
class Examined:
    """What `examine` found: payloads that match, payloads without a checksum, what is wrong with the others; and was it all?"""

    matching: int = 0
    unchecked: int = 0
    damaged: list[str] = field(default_factory=list)
    complete: bool = True


def examine(session: Session, seconds: float) -> Examined:
    """Look at every stored payload, the newest runs first, for at most so many seconds."""
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
