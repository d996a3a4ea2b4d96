"""Every recorded point of a series as a file, written piece by piece, so that its length has no bound."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.series.encoding import csv_rows, dumps, json_array
from server.series.layout import Layout, Place
from server.series.zoom import Reader

PIECE_NUMBERS = 1 << 20


class Stretch:
    """What of a series is written: the steps that it had when the writing began."""

    def __init__(
        self,
        session: Session,
        layout: Layout,
        row: Place,
        eigenvalues: Sequence[int] | None,
        low: int | None,
        high: int | None,
        named: Sequence[int] | None = None,
    ) -> None:
        self.layout, self.row, self.columns = layout, row, eigenvalues
        self.eigenvalues = eigenvalues if named is None else named  # whose they are
        reader = Reader(session, layout, row, eigenvalues)
        self.width = reader.width
        self.low, self.high, self.points = reader.extent(low, high)

    @property
    def head(self) -> dict[str, Any]:
        last = self.high if self.points else None
        head = {"name": self.row.name, "width": self.width, "unit": self.row.unit, "seq": self.layout.seq, "last_step": last}
        return head if self.eigenvalues is None else head | {"eigenvalues": list(self.eigenvalues)}

    def pieces(self, database: Database) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Steps int64 (n,) and values float32 (n,), or (n, width) where there are several; in the order of the steps."""
        if not self.points:
            yield np.empty(0, np.int64), np.empty((0, self.width), np.float32)[:, 0 if self.width == 1 else slice(None)]
            return
        numbers = self.points * self.layout.span(self.row).stop  # recorded columns are read to derive others
        span = max(1, (self.high - self.low + 1) * PIECE_NUMBERS // numbers)
        for low in range(self.low, self.high + 1, span):
            with database.read() as session:  # one of its own for each piece: whoever takes long to read holds nothing open
                reader = Reader(session, self.layout, self.row, self.columns)
                step, value = reader.raw([(low, min(low + span - 1, self.high))])
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
    """Arrow IPC stream with a batch for each piece."""
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
    """The body of `GET /api/runs/{id}/series/{name}`; its steps come before its values, so it is read twice."""
    yield dumps(stretch.head)[:-1]
    for key, at in (("step", 0), ("value", 1)):
        comma = b',"%s":[' % key.encode()
        for piece in stretch.pieces(database):
            if len(piece[at]):
                yield comma + json_array(piece[at])[1:-1]
                comma = b","
        yield b"]" if comma == b"," else comma + b"]"
    yield b"}"


def titles(key: str, values: np.ndarray, eigenvalues: Sequence[int] | np.ndarray | None) -> list[str]:
    """Headings of the columns."""
    if values.ndim == 1:
        return [key]
    return [f"{key}_{e}" for e in (range(values.shape[1]) if eigenvalues is None else eigenvalues)]


def _taken(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
