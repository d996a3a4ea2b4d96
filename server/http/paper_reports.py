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
from studies.culprits_report import STUDY as CULPRITS
from studies.paper.catalogue import COMPUTED, TRAINED, design
from studies.paper.computed import AT_ONCE, computed
from studies.paper.groups import MARK, Group, newest_group, sweeps_of
from studies.paper.outcomes import collect
from studies.paper.rates import STUDY, collect_rates, rates_design
from studies.paper.rates_report import rates_report
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


def reports_of(session: Session, settings: Settings) -> tuple[Registry, dict[str, list[Shown]]]:
    """The registered claims, and the reports by name; the first report of a name is the one to show (`_first`). A study without
    runs, result and committed report has none.

    Raises ValueError if this installation has no registered claims.
    """
    registry = load()
    committed = {name: against_registry(report, registry) for name, report in committed_reports().items()}
    rows = Rows(session, settings)
    found: dict[str, list[Shown]] = {}
    for study, preset in (*TRAINED, (STUDY, None)):
        name = report_name(study, preset)
        group = newest_group(rows.sweeps(), study, preset)
        own: list[Shown] = [] if group is None else [(_judged(rows, group, registry), "runs")]
        kept: list[Shown] = [(committed[name], "committed")] if name in committed else []
        found[name] = sorted([*own, *kept], key=_first)
    for study in (*COMPUTED, CULPRITS):
        if study in AT_ONCE:
            found[study] = [(_computed(study, registry.sha256), "computed")]
        elif study in committed:
            found[study] = [(committed[study], "committed")]
    return registry, {name: shown for name, shown in found.items() if shown}


def _first(shown: Shown) -> tuple[bool, int, bool]:
    """Sorts the reports of a name: full before quick, then the one with more seeds, then this server's own runs."""
    report, source = shown
    return report["size"] == "quick", -int(report["seeds"]), source != "runs"


def _judged(rows: Rows, group: Group, registry: Registry) -> dict[str, Any]:
    """The report of a group of sweeps; read again only if a run or an autopsy has changed."""
    key = (short(registry.sha256), group, *rows.state(group))
    with _lock:
        if key in _kept:
            return _kept[key]
    if group.study == STUDY:
        report = rates_report(collect_rates(rows, rates_design(group.size), group), registry)
    else:
        report = trained_report(collect(rows, design(group.study, group.preset, group.size), group), registry)
    with _lock:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = report
    return report


@lru_cache(maxsize=16)
def _computed(study: str, _sha256: str) -> dict[str, Any]:
    return computed(study, load())
