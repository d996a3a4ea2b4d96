"""Writes every recorded point of a series to a file, piece by piece, so that the length of the series is not limited."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.series.block_cache import read_extents
from server.series.encoding import array_json_bytes, csv_rows, dumps
from server.series.layout import Layout, SeriesColumns
from server.series.plans import Selection
from server.series.reading import read_points

PIECE_NUMBERS = 1 << 20


class Stretch:
    """The part of a series to write: the steps that exist when writing begins.

    columns: the chosen columns; None for all. eigenvalues: the numbers for the column titles, if they differ from the column
    numbers.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        row: SeriesColumns,
        eigenvalues: Sequence[int] | None,
        low: int | None,
        high: int | None,
        named: Sequence[int] | None = None,
    ) -> None:
        self.layout, self.row = layout, row
        self.eigenvalues = eigenvalues if named is None else named
        self.selection = Selection(layout, row, eigenvalues)
        self.width = self.selection.width
        self.low, self.high, self.points = read_extents(session, [self.selection], low, high)[0]

    @property
    def head(self) -> dict[str, Any]:
        last = self.high if self.points else None
        head = {"name": self.row.name, "width": self.width, "unit": self.row.unit, "seq": self.layout.seq, "last_step": last}
        return head if self.eigenvalues is None else head | {"eigenvalues": list(self.eigenvalues)}

    def pieces(self, database: Database) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pieces in step order: steps int64 (n,), and values float32 (n,), or (n, width) if there are several columns."""
        if not self.points:
            yield np.empty(0, np.int64), np.empty((0, self.width), np.float32)[:, 0 if self.width == 1 else slice(None)]
            return
        numbers = self.points * self.layout.span(self.row).stop  # a derived series is computed from these columns
        span = max(1, (self.high - self.low + 1) * PIECE_NUMBERS // numbers)
        for low in range(self.low, self.high + 1, span):
            with database.read() as session:  # one session per piece, so that a slow download does not keep a transaction open
                step, value = read_points(session, self.selection, [(low, min(low + span - 1, self.high))])
            with np.errstate(over="ignore"):
                rows = np.ascontiguousarray(value.T, np.float32)
            if len(step):
                yield step, rows[:, 0] if self.width == 1 else rows


def csv_file(database: Database, stretch: Stretch) -> Iterator[bytes]:
    begun = False
    for step, value in stretch.pieces(database):
        if not begun:
            yield ",".join(["step", *titles("value", value, stretch.eigenvalues)]).encode() + b"\n"
        begun = True
        yield csv_rows([step, value])


def arrow_file(database: Database, stretch: Stretch) -> Iterator[bytes]:
    """Arrow IPC stream with one batch per piece."""
    pa = import_module("pyarrow")
    many = stretch.width > 1
    kind = pa.list_(pa.float32(), stretch.width) if many else pa.float32()
    schema = pa.schema({"step": pa.int64(), "value": kind}, {key: str(value) for key, value in stretch.head.items()})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for step, value in stretch.pieces(database):
            column = pa.FixedSizeListArray.from_arrays(pa.array(value.reshape(-1)), stretch.width) if many else pa.array(value)
            writer.write_batch(pa.record_batch([pa.array(step), column], schema=schema))
            yield _taken(sink)
    yield _taken(sink)


def json_file(database: Database, stretch: Stretch) -> Iterator[bytes]:
    """The body of `GET /api/runs/{id}/series/{name}`. The body has all steps before the values, so the pieces are read
    twice."""
    yield dumps(stretch.head)[:-1]
    for key, at in (("step", 0), ("value", 1)):
        comma = b',"%s":[' % key.encode()
        for piece in stretch.pieces(database):
            if len(piece[at]):
                yield comma + array_json_bytes(piece[at])[1:-1]
                comma = b","
        yield b"]" if comma == b"," else comma + b"]"
    yield b"}"


def titles(key: str, values: np.ndarray, eigenvalues: Sequence[int] | np.ndarray | None) -> list[str]:
    """Column titles: `key` for one column, else `key_0`, `key_1`, ... with the eigenvalues' numbers."""
    if values.ndim == 1:
        return [key]
    return [f"{key}_{e}" for e in (range(values.shape[1]) if eigenvalues is None else eigenvalues)]


def _taken(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
