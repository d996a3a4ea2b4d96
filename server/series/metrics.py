"""Stores free metrics: scalars under any name, at any steps.

Metrics that are logged at the same steps share a group ("metrics/0", "metrics/1", ...), whose columns never change. The points of
a message are appended to the newest block of their group while that block is small, so that a run that logs one point per second
does not get one row per second. Points keep the order in which they arrived. Of several values at one step, the last one counts.
A metric is stored like any other series of width 1, so charts, exports, archives and live streams read it as they read the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from sqlalchemy import BigInteger, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session

from server.database.models import BlockRow, Run, SeriesRow
from server.database.payloads import DamagedPayload, checksum, stored_numbers, stored_places
from server.series.alerts import insert_bounded
from server.series.last_values import stored_values, with_logged_values
from server.series.rules import judge_rules
from stablessm_core.report.messages import MetricsMessage
from stablessm_core.telemetry.metrics import (
    GROUP_COLUMNS,
    MAX_METRICS,
    MAX_STEPS,
    MAX_VALUES,
    METRIC_GROUPS,
    as_float32,
    is_metric_group,
)
from stablessm_core.telemetry.scattered import empty, last_of_each_step, pack_scattered, present

TAIL_BYTES = 64 << 10  # a block of this many bytes of values, or of TAIL_POINTS points, is complete
TAIL_POINTS = 1024
_RUN, _BLOCK = Run.__table__.c, BlockRow.__table__.c
_OF_RUN = and_(_BLOCK.run_id == bindparam("run"), _BLOCK.level == 0)
_AGED = (
    select(
        _BLOCK.group_name,
        _BLOCK.first_step,
        func.row_number()
        .over(partition_by=_BLOCK.group_name, order_by=(_BLOCK.seq.desc(), _BLOCK.first_step.desc()))
        .label("age"),
    )
    .where(_OF_RUN, _BLOCK.group_name.in_(bindparam("groups", expanding=True)))
    .subquery()
)
_OVERLAPS = and_(_BLOCK.first_step <= bindparam("high", type_=BigInteger), _BLOCK.last_step >= bindparam("low", type_=BigInteger))
_SPANS = (
    select(_BLOCK.group_name, _BLOCK.first_step, _BLOCK.last_step, _AGED.c.age)
    .join(_AGED, and_(_BLOCK.group_name == _AGED.c.group_name, _BLOCK.first_step == _AGED.c.first_step))
    .where(_OF_RUN, or_(_AGED.c.age == 1, _OVERLAPS))
    .order_by(_AGED.c.age)
)
READ_TOGETHER = 16  # blocks in memory while a message is compared with what is stored
Places = dict[str, tuple[str, int]]  # group and column of each metric
Logged = tuple[np.ndarray, np.ndarray]  # ascending steps int64 (n,), and float32 values (columns, n)


class TooManyMetrics(ValueError):
    """The run has as many metrics as a run may have."""


def add_metrics(session: Session, run: Run, message: MetricsMessage) -> int:
    """Store the message as one event and return the run's new `seq`. The caller has locked the run's row and checked the message.

    A message whose values are all stored already (a repeat) changes nothing. A name that the run already records as a series of
    its own, such as `train/loss` of our trainer, keeps the recorded values: the logged values of that name are left out. Raises
    TooManyMetrics.
    """
    run_id = run.id
    steps, numbers = _one_point_per_step(message)
    places, widths, recorded = _places(session, run_id, numbers)
    logged = _by_group(places, widths, steps, numbers)
    stored = _blocks_to_compare(session, run_id, {group: at for group, (at, _) in logged.items()})
    changed: dict[str, Logged] = {}
    late: list[str] = []  # groups with new points before their last step
    for group, (at, values) in logged.items():
        blocks = stored.get(group, [])
        new = _unstored(_oldest_first(session, run_id, group, blocks), at, values)
        if new.any():
            changed[group] = at[new], values[:, new]
            first = int(changed[group][0][0])
            if (recorded or first <= run.step) and first < _last_step(session, run, group):
                late.append(group)
            newest = session.get(BlockRow, (run_id, group, 0, blocks[0])) if blocks else None
            _append(session, run, group, newest, changed[group])
    if changed:
        values_of = {group: values for group, (_, values) in changed.items()}
        known = session.scalar(select(_RUN.last_values).where(_RUN.id == run_id))  # faster than loading the deferred attribute
        if late:
            session.flush()
        run.last_values = with_logged_values(known or {}, values_of) | stored_values(session, run_id, late)
        run.seq += 1
        if not recorded:  # else a metric at a later step, such as a number of tokens, would move the run's progress
            run.step = max(run.step, int(steps[-1]))
        insert_bounded(session, run_id, run.attempt, judge_rules(run, _points(places, changed)), run.seq)
    session.flush()
    return run.seq


def joined_metrics(messages: Sequence[MetricsMessage]) -> list[MetricsMessage]:
    """As few messages as possible with the same points in the same order: one message costs the database as much as many."""
    found: list[MetricsMessage] = []
    for message in messages:
        last = found[-1] if found else None
        steps = len(message.steps) + (len(last.steps) if last else 0)
        if last is None or steps > MAX_STEPS or steps * len(last.values.keys() | message.values.keys()) > MAX_VALUES:
            found.append(MetricsMessage(list(message.steps), {name: list(values) for name, values in message.values.items()}))
            continue
        for name in message.values.keys() - last.values.keys():
            last.values[name] = [None] * len(last.steps)
        for name, values in last.values.items():
            values += message.values.get(name) or [None] * len(message.steps)
        last.steps.extend(message.steps)
    return found


def _one_point_per_step(message: MetricsMessage) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The steps in ascending order, each once, and the values of each metric at these steps: the last value at each step."""
    given = np.array(message.steps, np.int64)
    steps = np.unique(given)
    found: dict[str, np.ndarray] = {}
    for name, numbers in message.values.items():
        logged = as_float32(numbers)
        known = np.flatnonzero(present(logged))
        if len(known):
            found[name] = empty(1, len(steps))[0]
            found[name][np.searchsorted(steps, given[known])] = logged[known]  # numpy assigns in order, so the last one counts
    return steps, found


def _places(session: Session, run_id: int, numbers: Mapping[str, np.ndarray]) -> tuple[Places, dict[str, int], bool]:
    """Group and column of each logged metric, the number of columns of each group, and whether the run records series at each
    training step. New names get a group."""
    series = select(SeriesRow.name, SeriesRow.group_name, SeriesRow.column_offset).where(SeriesRow.run_id == run_id)
    places = {row.name: (row.group_name, row.column_offset) for row in session.execute(series)}
    metrics = [group for group, _ in places.values() if is_metric_group(group)]
    recorded = len(metrics) < len(places)
    new = [name for name in numbers if name not in places]
    if len(metrics) + len(new) > MAX_METRICS:
        raise TooManyMetrics(
            f"metric {new[0]!r} is new in run {run_id}, which has {len(metrics):,} metrics; allowed: {MAX_METRICS:,} in a run"
        )
    widths = Counter(metrics)
    first = 1 + max((int(group.removeprefix(METRIC_GROUPS)) for group in widths), default=-1)
    for number, names in enumerate(_logged_together(new, numbers), first):
        group = f"{METRIC_GROUPS}{number}"
        widths[group] = len(names)
        for column, name in enumerate(names):
            places[name] = group, column
            row = {"group_name": group, "column_offset": column, "width": 1, "unit": "", "derived": False}
            session.add(SeriesRow(run_id=run_id, name=name, **row))
    return {name: places[name] for name in numbers if is_metric_group(places[name][0])}, widths, recorded


def _logged_together(names: Sequence[str], numbers: Mapping[str, np.ndarray]) -> list[list[str]]:
    """The names in groups with values at the same steps, of at most GROUP_COLUMNS names each."""
    together: dict[bytes, list[str]] = {}
    for name in names:
        together.setdefault(present(numbers[name]).tobytes(), []).append(name)
    return [found[i : i + GROUP_COLUMNS] for found in together.values() for i in range(0, len(found), GROUP_COLUMNS)]


def _by_group(
    places: Places, widths: Mapping[str, int], steps: np.ndarray, numbers: Mapping[str, np.ndarray]
) -> dict[str, Logged]:
    """What was logged of each group."""
    whole = {group: empty(widths[group], len(steps)) for group, _ in places.values()}
    for name, (group, column) in places.items():
        whole[group][column] = numbers[name]
    found = {}
    for group, values in whole.items():
        some = present(values).any(axis=0)
        found[group] = steps[some], values[:, some]
    return found


def _points(places: Places, changed: Mapping[str, Logged]) -> dict[str, Logged]:
    """The new points of each metric."""
    found: dict[str, Logged] = {}
    for name, (group, column) in places.items():
        if group in changed:
            steps, values = changed[group]
            some = present(values[column])
            found[name] = steps[some], values[column, some]
    return found


def _blocks_to_compare(session: Session, run_id: int, wanted: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    """The first steps of the newest block of each group, and of the blocks that may have one of its steps; the newest first.

    A block between two far-apart steps of a message is left out, so that the message does not read the whole run.
    """
    if not wanted:
        return {}
    low, high = min(int(at[0]) for at in wanted.values()), max(int(at[-1]) for at in wanted.values())
    asked = {"run": run_id, "groups": list(wanted), "low": low, "high": high}
    found: dict[str, list[int]] = {}
    for span in session.execute(_SPANS, asked):
        at = wanted[span.group_name]
        inside = np.searchsorted(at, span.first_step) < np.searchsorted(at, span.last_step, "right")
        if span.age == 1 or inside:
            found.setdefault(span.group_name, []).append(span.first_step)
    return found


def _oldest_first(session: Session, run_id: int, group: str, firsts: Sequence[int]) -> Iterator[BlockRow]:
    """The blocks with these first steps, the oldest first. firsts: the newest first. Only a few blocks are in memory at once."""
    oldest = list(reversed(firsts))
    for i in range(0, len(oldest), READ_TOGETHER):
        some = oldest[i : i + READ_TOGETHER]
        chosen = select(BlockRow).where(_OF_RUN, _BLOCK.group_name == group, _BLOCK.first_step.in_(some))
        rows = {row.first_step: row for row in session.scalars(chosen, {"run": run_id})}
        for first in some:
            yield rows[first]
        for first in some:
            if first != firsts[0]:  # the newest one may get new points
                session.expunge(rows[first])


def _last_step(session: Session, run: Run, group: str) -> int:
    """The last stored step of a group of metrics, or -1."""
    last = select(func.max(_BLOCK.last_step)).where(_OF_RUN, _BLOCK.group_name == group)
    found = session.scalar(last, {"run": run.id})
    return -1 if found is None else int(found)


def _unstored(oldest_first: Iterable[BlockRow], steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """True for each point (n,) with a value that differs from the newest stored value of its step."""
    known = empty(*values.shape)
    for block in oldest_first:  # so that newer values replace older ones
        at, events = _places_of(block)
        columns = min(len(values), block.column_count)
        numbers = stored_numbers(block)[:columns]
        for column in range(columns):
            some = np.flatnonzero(present(numbers[column]))
            last = some[last_of_each_step(at[some], events[some])]
            place = np.searchsorted(steps, at[last])
            inside = place < len(steps)
            inside[inside] = steps[place[inside]] == at[last[inside]]
            known[column, place[inside]] = numbers[column, last[inside]]
    differs = present(values) & (values.view(np.uint32) != known.view(np.uint32))
    found: np.ndarray = differs.any(axis=0)
    return found


def _append(session: Session, run: Run, group: str, newest: BlockRow | None, logged: Logged) -> None:
    """Add the points as event run.seq + 1 to the newest block of the group if there is room, else to a new block."""
    (steps, values), seq = logged, run.seq + 1
    events = np.full(len(steps), seq, np.int64)
    tail = newest if newest is not None and newest.attempt == run.attempt and _has_room(newest) else None
    if tail is not None:
        at, before = _places_of(tail)
        numbers = stored_numbers(tail)
        kept = ~_superseded(at, numbers, steps, values)
        steps, events = np.concatenate([at[kept], steps]), np.concatenate([before[kept], events])
        values = np.concatenate([numbers[:, kept], values], axis=1)
        run.bytes_stored -= len(tail.payload)
    else:
        key = {"run_id": run.id, "group_name": group, "level": 0, "stride": 1, "column_count": len(values)}
        tail = BlockRow(**key, first_step=_free_step(session, run.id, group, int(steps[0])), attempt=run.attempt)
        session.add(tail)
    if steps.min() < tail.first_step:
        tail.first_step = _free_step(session, run.id, group, int(steps.min()))
    tail.last_step, tail.point_count, tail.seq = int(steps.max()), len(steps), seq
    tail.payload = pack_scattered(values, steps, events)
    tail.checksum = checksum(tail.payload, run.attempt, len(steps))
    run.bytes_stored += len(tail.payload)


def _has_room(block: BlockRow) -> bool:
    return block.point_count < TAIL_POINTS and 4 * block.point_count * block.column_count < TAIL_BYTES


def _superseded(at: np.ndarray, numbers: np.ndarray, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """True for each stored point (n,) whose values were all logged again at its step."""
    place = np.minimum(np.searchsorted(steps, at), len(steps) - 1)
    again = present(values)[:, place] & (steps[place] == at)
    found: np.ndarray = (again | ~present(numbers)).all(axis=0)
    return found


def _free_step(session: Session, run_id: int, group: str, step: int) -> int:
    """The first step of a block, which is part of its key: the step, or a lower bound of it if another block has this key."""
    while session.get(BlockRow, (run_id, group, 0, step)) is not None:
        step -= 1
    return step


def _places_of(block: BlockRow) -> tuple[np.ndarray, np.ndarray]:
    places = stored_places(block)
    if places is None:
        raise DamagedPayload(block, "they have no steps")
    return places
