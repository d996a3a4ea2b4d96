"""The reports about the paper that this installation can show: judged from its own runs, computed at once, or committed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run, Sweep
from server.lifecycle.answers import run_rows, runs_json
from server.lifecycle.autopsies import autopsy_json
from server.settings import Settings
from studies.paper.catalogue import COMPUTED, TRAINED, design
from studies.paper.computed import AT_ONCE, computed
from studies.paper.groups import MARK, Group, newest_group, sweeps_of
from studies.paper.outcomes import collect
from studies.paper.registry import Registry, committed_reports, load, report_name, short
from studies.paper.report import against_registry, trained_report

NEWEST_SWEEPS = 2000  # reproductions are looked for among this many sweeps
KEPT = 32

Shown = tuple[dict[str, Any], str]  # a report, and "runs", "computed" or "committed"


class Rows:
    """The sweeps, runs and autopsies of this server's database (`studies.paper.outcomes.Source`)."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session, self._settings = session, settings
        self._sweeps: list[dict[str, Any]] | None = None

    def sweeps(self) -> Iterable[Mapping[str, Any]]:
        """The sweeps that belong to reproductions, newest first."""
        if self._sweeps is None:
            rows = self._session.execute(
                select(Sweep.id, Sweep.base, Sweep.grid, Sweep.created_at).order_by(Sweep.id.desc()).limit(NEWEST_SWEEPS)
            )
            self._sweeps = [row._asdict() for row in rows if MARK in (row.base.get("tags") or [])]
        return self._sweeps

    def runs(self, sweep_id: int) -> list[Mapping[str, Any]]:
        """The RunAnswer of each run of a sweep."""
        return list(runs_json(self._session, run_rows(self._session, Run.sweep_id == sweep_id), self._settings.lease_seconds))

    def autopsy(self, run_id: int) -> Mapping[str, Any]:
        """The AutopsyAnswer of a run."""
        run = self._session.get_one(Run, run_id)
        return autopsy_json(self._session, run, on=self._settings.autopsy)

    def state(self, group: Group) -> tuple[Any, ...]:
        """Numbers that change whenever a run or an autopsy of the group changes."""
        ids = [int(sweep["id"]) for sweep in sweeps_of(self.sweeps(), group.group).values()]
        counted = select(func.count(), func.sum(Run.seq), func.max(Run.id)).where(Run.sweep_id.in_(ids), NOT_IN_TRASH)
        return (*sorted(ids), *self._session.execute(counted).one())


_kept: dict[tuple[Any, ...], dict[str, Any]] = {}
_lock = threading.Lock()


def reports_of(session: Session, settings: Settings) -> tuple[Registry, dict[str, Shown]]:
    """The registered claims, and the reports by name. A study without runs, result and committed report has none.

    Raises ValueError if this installation has no registered claims.
    """
    registry = load()
    committed = committed_reports()
    rows = Rows(session, settings)
    found: dict[str, Shown] = {}
    for study, preset in TRAINED:
        name = report_name(study, preset)
        group = newest_group(rows.sweeps(), study, preset)
        if group is not None and not (group.size == "quick" and name in committed):
            found[name] = _judged(rows, group, registry), "runs"
        elif name in committed:
            found[name] = against_registry(committed[name], registry), "committed"
    for study in COMPUTED:
        if study in AT_ONCE:
            found[study] = _computed(study, registry.sha256), "computed"
        elif study in committed:
            found[study] = against_registry(committed[study], registry), "committed"
    return registry, found


def _judged(rows: Rows, group: Group, registry: Registry) -> dict[str, Any]:
    """The report of a group of sweeps; read again only if a run or an autopsy has changed."""
    key = (short(registry.sha256), group, *rows.state(group))
    with _lock:
        if key in _kept:
            return _kept[key]
    report = trained_report(collect(rows, design(group.study, group.preset, group.size), group), registry)
    with _lock:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = report
    return report


@lru_cache(maxsize=16)
def _computed(study: str, _sha256: str) -> dict[str, Any]:
    return computed(study, load())
