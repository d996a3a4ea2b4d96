"""A run's events as Server-Sent Events. All data stored under one event number becomes frames, which are encoded once for all
viewers.

The frames of an event are its alerts, then its points, then its status change, then the state of the run's autopsy. The last
frame has the event's number as id. The frames before it have the id "previous number.index", so no frame is lost or repeated if
the connection breaks between two frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, AlertRow, AutopsyRow, BlockRow, Run, Transition
from server.lifecycle.answers import alert_json, eta_seconds
from server.series.encoding import dumps
from server.series.events import StoredEvent, events_after, events_of
from server.series.layout import Layout, Points
from stablessm_core.telemetry import typed_arrays
from stablessm_core.telemetry.nonfinite import json_safe

Stored = TypeVar("Stored", BlockRow, AlertRow, Transition, AutopsyRow)

MAX_FRAMES = 1000  # maximum number of frames per event; more would not fit into the id
KEPT_SELECTIONS = 4


@dataclass(frozen=True)
class Frame:
    """One message. `data` is JSON. For points, the series that a viewer wants are added when the frame is sent."""

    kind: str
    data: bytes
    series: tuple[tuple[str, bytes], ...] | None = None

    def body(self, wanted: frozenset[str] | None) -> bytes:
        if self.series is None:
            return self.data
        chosen = [part for name, part in self.series if wanted is None or name in wanted]
        return self.data[:-1] + b',"series":[' + b",".join(chosen) + b"]}"


@dataclass(frozen=True)
class EncodedEvent:
    """All frames of one event number."""

    seq: int
    frames: tuple[Frame, ...]
    _encoded: dict[frozenset[str] | None, bytes] = field(default_factory=dict, compare=False, repr=False)

    @property
    def size(self) -> int:
        return sum(len(f.data) + sum(len(part) for _, part in f.series or ()) for f in self.frames)

    def encode(self, wanted: frozenset[str] | None, skip: int = 0) -> bytes:
        """The frames with the `wanted` series (None: all), without the first `skip` frames."""
        if skip:
            return self._join(wanted, skip)
        if wanted not in self._encoded:
            if len(self._encoded) >= KEPT_SELECTIONS:
                return self._join(wanted, 0)
            self._encoded[wanted] = self._join(wanted, 0)
        return self._encoded[wanted]

    def _join(self, wanted: frozenset[str] | None, skip: int) -> bytes:
        count = len(self.frames)
        ids = [f"{self.seq - 1}.{i:03d}" for i in range(1, count)] + [str(self.seq)]
        return b"".join(
            f"event: {frame.kind}\nid: {id_}\ndata: ".encode() + frame.body(wanted) + b"\n\n"
            for frame, id_ in list(zip(self.frames, ids, strict=True))[skip:]
        )


def parse_position(text: str) -> tuple[int, int]:
    """(event number, number of seen frames of the next event) in an id. Raises ValueError."""
    number, _, index = text.strip().partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 18 and (not index or (index.isdigit() and len(index) <= 3))):
        raise ValueError(f"event id is {text[:40]!r}; expected a number such as 17")
    return int(number), int(index.ljust(3, "0") or 0)


def read_events(session: Session, run_id: int, after: int, limit: int) -> tuple[list[EncodedEvent], int] | None:
    """The events after number `after`, and the newest number read; None if the run does not exist or was deleted."""
    run = session.get(Run, run_id)
    if run is None or run.deleted_at is not None:
        return None
    stored = events_after(session, run_id, after, limit)
    return [_encode(event, run) for event in stored], min(run.seq, after + limit)


def read_new_events(
    session: Session, known: dict[int, int], layouts: dict[int, Layout], limit: int
) -> dict[int, tuple[list[EncodedEvent], int] | None]:
    """The result of `read_events` for each run with events after its number in `known`; None for a run that was deleted.

    This is called several times a second, so the number of queries does not depend on the number of runs. layouts: a cache that
    the caller keeps.
    """
    newest = dict(session.execute(select(Run.id, Run.seq).where(Run.id.in_(known), NOT_IN_TRASH)).all())
    changed = {run_id: newest.get(run_id) for run_id, seq in known.items() if newest.get(run_id) != seq}
    if not changed:
        return {}
    runs = {run.id: run for run in session.scalars(select(Run).where(Run.id.in_(changed)))}
    near = [run_id for run_id, seq in changed.items() if seq is not None and 0 < seq - known[run_id] <= limit]
    found = {run_id: read_events(session, run_id, known[run_id], limit) for run_id in changed if run_id not in near}
    if not near:
        return found
    # Each read ends at the run's newest event number, so no merged block extends beyond the read events.
    blocks, alerts, changes, autopsies = (
        or_(*(and_(table.run_id == run_id, table.seq > known[run_id]) for run_id in near))
        for table in (BlockRow, AlertRow, Transition, AutopsyRow)
    )
    rows = _by_run(session.scalars(select(BlockRow).where(blocks, BlockRow.level == 0)))
    alerts_of = _by_run(session.scalars(select(AlertRow).where(alerts).order_by(AlertRow.id)))
    changes_of = _by_run(session.scalars(select(Transition).where(changes)))
    autopsies_of = _by_run(session.scalars(select(AutopsyRow).where(autopsies)))
    for run_id in near:
        of_run, upper = rows.get(run_id, []), runs[run_id].seq
        layout = partial(_layout, session, run_id, {row.group_name for row in of_run}, layouts)
        parts = (alerts_of.get(run_id, ()), changes_of.get(run_id, ()), autopsies_of.get(run_id, ()))
        stored = events_of(session, known[run_id], upper, of_run, *parts, layout)
        found[run_id] = [_encode(event, runs[run_id]) for event in stored], upper
    return found


def _layout(session: Session, run_id: int, groups: set[str], kept: dict[int, Layout]) -> Layout:
    """The run's layout, from the cache if the cached layout has all these groups. The cached layout cannot be outdated, because
    a group never changes after it was described."""
    layout = kept.get(run_id)
    if layout is None or not groups <= {row.group for row in layout.series.values()}:
        layout = kept[run_id] = Layout(session, run_id)
    return layout


def _by_run(rows: Iterable[Stored]) -> dict[int, list[Stored]]:
    by_run: dict[int, list[Stored]] = {}
    for row in rows:
        by_run.setdefault(row.run_id, []).append(row)
    return by_run


def status_now(session: Session, run_id: int) -> tuple[int, bytes] | None:
    """The run's newest event number and a frame with its current status; None if the run does not exist."""
    run = session.get(Run, run_id)
    if run is None or run.deleted_at is not None:
        return None
    status = _status(run, run.seq, run.status, run.status_reason, run.step, run.attempt, None)
    return run.seq, EncodedEvent(run.seq, (Frame("status", status),)).encode(None)


def _encode(event: StoredEvent, run: Run) -> EncodedEvent:
    frames = [Frame("alert", dumps(json_safe(alert_json(alert)))) for alert in event.alerts[: MAX_FRAMES - 3]]
    if event.points:
        rate = {"steps_per_second": run.steps_per_second, "eta_seconds": eta_seconds(run, event.last_step)}
        head = {"seq": event.seq, "attempt": event.attempt, "step": event.last_step, "metrics": event.metrics, **rate}
        frames.append(Frame("points", dumps(head), _series(event)))
    if (change := event.transition) is not None:
        frames.append(
            Frame(
                "status",
                _status(run, event.seq, change.status, change.reason, change.step, change.attempt, change.truncated_from),
            )
        )
    if (autopsy := event.autopsy) is not None:
        frames.append(Frame("autopsy", dumps({"seq": event.seq, "state": autopsy.state, "reason": autopsy.reason or None})))
    return EncodedEvent(event.seq, tuple(frames))


def _series(event: StoredEvent) -> tuple[tuple[str, bytes], ...]:
    by_name: dict[str, list[Points]] = {}
    for points in event.points:
        by_name.setdefault(points.name, []).append(points)
    steps: dict[int, dict[str, str]] = {}  # series of one block share their steps
    parts = []
    for name, pieces in by_name.items():
        at = pieces[0].step if len(pieces) == 1 else np.concatenate([p.step for p in pieces])
        step = steps.setdefault(id(pieces[0].step), typed_arrays.encode(at))
        value = np.concatenate([p.value for p in pieces]) if len(pieces) > 1 else pieces[0].value
        part = {
            "name": name,
            "width": value.shape[1],
            "step": step,
            "value": typed_arrays.encode(value.astype(np.float32, copy=False)),
        }
        parts.append((name, dumps(part)))
    return tuple(parts)


def _status(run: Run, seq: int, status: str, reason: str, step: int, attempt: int, truncated_from: int | None) -> bytes:
    answer: dict[str, Any] = {
        "seq": seq,
        "status": status,
        "reason": reason,
        "step": step,
        "attempt": attempt,
        "truncated_from": truncated_from,
        "steps_per_second": run.steps_per_second,
        "eta_seconds": eta_seconds(run, step) if status == "running" else None,
    }
    return dumps(answer)
