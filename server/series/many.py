"""Recorded series of many runs: where they are, how far they go and what they hold, each for all the runs in a few queries.

The numbers are those that `read_series` gives of each run by itself: the same readers ask for the same blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Row, Select, and_, bindparam, or_, select
from sqlalchemy.orm import Session

from server.database.models import BlockRow, SeriesRow
from server.database.payloads import NEEDED
from server.series.layout import Place, Recorded
from server.series.reading import SeriesData, asking_series
from server.series.zoom import EXTENT, GAPS_PER_QUERY, LAST_STEP, Answer, Asking, Reader, Wanted, level_for
from stablessm_core.telemetry.blocks import BUCKET

TOGETHER = 4 << 20  # numbers that are decoded at the same time

_SERIES, _BLOCKS = SeriesRow.__table__.c, BlockRow.__table__.c
_PLACES: Select[Any] = (
    select(_SERIES.run_id, _SERIES.name, _SERIES.group_name, _SERIES.column_offset, _SERIES.width, _SERIES.unit)
    .where(_SERIES.run_id.in_(bindparam("runs", expanding=True)), _SERIES.derived.is_(False))
    .order_by(_SERIES.run_id, _SERIES.group_name, _SERIES.column_offset)
)
_EXTENTS = (
    select(_BLOCKS.run_id, _BLOCKS.group_name, *EXTENT)
    .where(
        _BLOCKS.run_id.in_(bindparam("runs", expanding=True)),
        _BLOCKS.group_name.in_(bindparam("groups", expanding=True)),
        _BLOCKS.level == 0,
    )
    .group_by(_BLOCKS.run_id, _BLOCKS.group_name)
)


def recorded(session: Session, run_ids: Sequence[int], *, name: str = "", kinds: Sequence[str] = ()) -> dict[int, Recorded]:
    """Of each run the recorded series `name` and, of its layers, those of these kinds; none that it has not recorded."""
    wanted = [_SERIES.name == name, *(_SERIES.name.endswith(f"/{kind}", autoescape=True) for kind in kinds)]
    found: dict[int, dict[str, Place]] = {run_id: {} for run_id in run_ids}
    for row in session.execute(_PLACES.where(or_(*wanted)), {"runs": list(run_ids)}):
        found[row.run_id][row.name] = Place(row.name, row.group_name, row.column_offset, row.width, row.unit, derived=False)
    return {run_id: Recorded(run_id, places) for run_id, places in found.items()}


def read_many(session: Session, chosen: Sequence[tuple[Recorded, str]], max_points: int) -> list[SeriesData]:
    """`read_series` over the whole of each of these series."""
    readers = [Reader(session, layout, layout.find(name), None) for layout, name in chosen]
    extents = _extents(session, readers)
    askings = [asking_series(*pair, max_points) for pair in zip(readers, extents, strict=True)]
    sizes = [_size(reader, points, max_points) for reader, (_, _, points) in zip(readers, extents, strict=True)]
    return together(session, askings, sizes)


def together(session: Session, askings: Sequence[Asking[Answer]], sizes: Sequence[int]) -> list[Answer]:
    """The answers of all; the blocks that they ask for at the same time are read at once. `sizes`: about how many numbers each
    reads, so that never too many are held."""
    return [answer for batch in _batches(askings, sizes) for answer in _answers(session, batch)]


def _answers(session: Session, askings: Sequence[Asking[Answer]]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    waiting: dict[int, Wanted] = {}

    def go_on(i: int, rows: list[Row[Any]] | None) -> None:
        try:
            waiting[i] = askings[i].send(rows)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            answers[i] = end.value

    for i in range(len(askings)):
        go_on(i, None)
    while waiting:
        asked, waiting = waiting, {}
        found = _blocks(session, list(asked.values()))
        for i, rows in zip(asked, found, strict=True):
            go_on(i, rows)
    return [answers[i] for i in range(len(askings))]


def _extents(session: Session, readers: Sequence[Reader]) -> list[tuple[int, int, int]]:
    runs, groups = {reader.layout.run_id for reader in readers}, {reader.row.source for reader in readers}
    asked = {"runs": sorted(runs), "groups": sorted(groups), "low": 0, "high": LAST_STEP}
    found = {(row[0], row[1]): row[2:] for row in session.execute(_EXTENTS, asked)} if readers else {}
    return [reader.within(*found.get((reader.layout.run_id, reader.row.source), (None, None, None))) for reader in readers]


def _size(reader: Reader, points: int, max_points: int) -> int:
    """About how many numbers of the reader's group are read for it: of a level four for each bucket."""
    level = level_for(points, max_points) if points > max_points else 0
    return points // int(BUCKET**level) * (4 if level else 1) * (reader.row.offset + reader.row.width)


def _batches(askings: Sequence[Asking[Answer]], sizes: Sequence[int]) -> Iterator[list[Asking[Answer]]]:
    batch: list[Asking[Answer]] = []
    total = 0
    for asking, size in zip(askings, sizes, strict=True):
        if batch and total + size > TOGETHER:
            yield batch
            batch, total = [], 0
        batch.append(asking)
        total += size
    if batch:
        yield batch


def _blocks(session: Session, wanted: Sequence[Wanted]) -> list[list[Row[Any]]]:
    """The rows of each, in the order of their steps."""
    stretches = [(one.run_id, one.group, one.level, *gap) for one in wanted for gap in one.gaps]
    rows: dict[tuple[int, str, int], dict[int, Row[Any]]] = {}
    for at in range(0, len(stretches), GAPS_PER_QUERY):
        part = stretches[at : at + GAPS_PER_QUERY]
        many = 1 << (len(part) - 1).bit_length()  # few statements for all numbers of stretches
        part += [part[-1]] * (many - len(part))
        asked = {f"{name}{i}": value for i, one in enumerate(part) for name, value in zip(_NAMES, one, strict=True)}
        for row in session.execute(_overlapping(many), asked):
            rows.setdefault((row.run_id, row.group_name, row.level), {})[row.first_step] = row
    return [_of(rows.get((one.run_id, one.group, one.level), {}), one) for one in wanted]


def _of(rows: dict[int, Row[Any]], wanted: Wanted) -> list[Row[Any]]:
    # others may have asked for other stretches of the same group
    inside = (row for row in rows.values() if any(row.first_step <= high and row.last_step >= low for low, high in wanted.gaps))
    return sorted(inside, key=lambda row: row.first_step)


_NAMES = ("run", "group", "level", "low", "high")


@cache
def _overlapping(many: int) -> Select[Any]:
    # one condition for each stretch: a common bound would read whole runs where one has a gap early and another late
    each = [
        and_(
            _BLOCKS.run_id == bindparam(f"run{i}"),
            _BLOCKS.group_name == bindparam(f"group{i}"),
            _BLOCKS.level == bindparam(f"level{i}"),
            _BLOCKS.first_step <= bindparam(f"high{i}", type_=BigInteger),
            _BLOCKS.last_step >= bindparam(f"low{i}", type_=BigInteger),
        )
        for i in range(many)
    ]
    return select(*NEEDED, _BLOCKS.stride).where(or_(*each))
