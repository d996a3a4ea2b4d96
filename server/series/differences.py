"""Compares numbers that a program reports with those that are stored, without storing anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy.orm import Session

from server.series.layout import Layout
from server.series.plans import Selection
from server.series.reading import read_points
from stablessm_core.report.messages import MetricsMessage
from stablessm_core.telemetry.metrics import as_float32
from stablessm_core.telemetry.scattered import present

MOST = 100  # differences that are listed


@dataclass(frozen=True)
class Difference:
    """A value that is not the stored value of its step."""

    step: int
    name: str
    stored: float
    given: float


@dataclass
class Comparison:
    """differing: how many values are not the stored values of their steps. first: those with the smallest steps, at most MOST.
    unknown: how many steps are stored between the first and the last given step of a name that were not given. last_step: the
    last stored step of the names that were given; -1 if there is none."""

    differing: int = 0
    first: list[Difference] = field(default_factory=list)
    unknown: int = 0
    last_step: int = -1


def compare_metrics(session: Session, run_id: int, messages: Iterable[MetricsMessage]) -> Comparison:
    """What is stored of the run beside what these messages hold. NaN equals NaN, and 0 equals -0. Values are compared as they are
    stored, with 32 bits."""
    layout, found = Layout(session, run_id), Comparison()
    for message in messages:
        for name, numbers in message.values.items():
            row = layout.series.get(name)
            if row is None or row.width != 1:
                continue
            given = as_float32(numbers)
            some = present(given)
            if some.any():
                _compare(session, found, Selection(layout, row, None), np.array(message.steps, np.int64)[some], given[some])
    found.first = sorted(found.first, key=lambda one: (one.step, one.name))[:MOST]
    return found


def _compare(session: Session, found: Comparison, selection: Selection, steps: np.ndarray, given: np.ndarray) -> None:
    first, last = int(steps.min()), int(steps.max())
    at, values = read_points(session, selection, [(first, 2**53 - 1)])
    found.last_step = max(found.last_step, int(at[-1]) if len(at) else -1)
    inside = at <= last
    at, stored = at[inside], values[0][inside].astype(np.float32)
    place = np.minimum(np.searchsorted(at, steps), max(0, len(at) - 1))
    known = (at[place] == steps) if len(at) else np.zeros(len(steps), bool)
    found.unknown += len(at) - len(np.unique(steps[known]))
    there, ours = stored[place[known]], given[known]
    differs = ~((there == ours) | (np.isnan(there) & np.isnan(ours)))
    found.differing += int(differs.sum())
    name = selection.row.name
    for step, old, new in zip(steps[known][differs][:MOST], there[differs][:MOST], ours[differs][:MOST], strict=True):
        found.first.append(Difference(int(step), name, float(old), float(new)))
