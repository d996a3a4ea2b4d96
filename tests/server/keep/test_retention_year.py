"""A year of retention on a simulated clock: every round keeps and deletes exactly what the settings say."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from server.clock_jumps import ClockJumps
from server.database.connection import Database
from server.database.models import BlockRow, Run, Transition
from server.keep.folders import installation_name, mark
from server.keep.housekeeping import Housekeeping
from server.keep.retention import DAY
from server.settings import Settings, run_folder
from tests.server.recording import config

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]

BEGIN = 1_767_225_600.0  # 2026-01-01
ROUNDS, ROUND_DAYS, RUNS = 26, 14, 7  # a year in 26 rounds of a fortnight, with an ended run every second day
DAYS, MOST, TRASH_DAYS = 90.0, 35, 21.0
KEEP_EVERY = 13  # every 13th run is tagged `keep`
BYTES = 1000


@dataclass
class Place:
    """What the settings say about one run. trashed: the time at which it went to the trash."""

    ended: float
    kept: bool
    trashed: float | None = None
    purged: bool = False


def test_a_year_of_retention_keeps_and_deletes_exactly_what_the_settings_say(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = BEGIN
    monkeypatch.setattr(time, "time", lambda: now)
    settings = Settings(data_dir=tmp_path / "state", database_url=database.url, retention_days=DAYS, retention_runs=MOST,
                        trash_hours=TRASH_DAYS * 24)  # fmt: skip
    housekeeping = Housekeeping(database, settings, clock=ClockJumps(steady=lambda: now))
    places: dict[int, Place] = {}
    counted: Counter[str] = Counter()
    for number in range(ROUNDS):
        _add_runs(database, settings, places, now)
        now = BEGIN + (number + 1) * ROUND_DAYS * DAY
        _expect(places, now)
        housekeeping.round()
        found = _places(database)
        assert found == {run: place.trashed for run, place in places.items() if not place.purged}, f"round {number}"
        counted.update(rounds=1, runs_checked=len(found))
    gone = {run for run, place in places.items() if place.purged}
    with database.read() as session:
        for table in (BlockRow, Transition):
            assert not gone & set(session.scalars(select(table.run_id))), "a purged run leaves no rows"
        assert session.scalar(select(func.count()).select_from(Run)) == len(places) - len(gone)
    now += 60  # folders are removed half a minute after the purge
    housekeeping.round()
    assert {run for run in places if run_folder(settings.data_dir, run).exists()} == set(places) - gone
    counted.update(
        submitted=len(places), purged=len(gone), in_trash=sum(p.trashed is not None for p in places.values()) - len(gone)
    )
    assert counted == {"rounds": 26, "runs_checked": 1127, "submitted": 182, "purged": 133, "in_trash": 14}
    assert all(not place.purged and place.trashed is None for place in places.values() if place.kept)


def _add_runs(database: Database, settings: Settings, places: dict[int, Place], now: float) -> None:
    """An ended run every second day, with a block and a folder."""
    runs = range(len(places) + 1, len(places) + 1 + RUNS)
    full, installation = config().model_dump(mode="json"), installation_name(database)
    for at, run in enumerate(runs):
        places[run] = Place(now + (2 * at + 0.5) * DAY, run % KEEP_EVERY == 0)
        mark(run_folder(settings.data_dir, run), installation)
    with database.write() as session:
        session.execute(insert(Run), [
            {"id": run, "config": full, "status": "finished", "created_at": now, "finished_at": places[run].ended, "seq": 1,
             "tags": ["Keep"] if places[run].kept else [], "bytes_stored": BYTES, "judged_at": now, "compacted_at": now}
            for run in runs])  # fmt: skip
        session.execute(insert(Transition), [
            {"run_id": run, "seq": 1, "status": "finished", "reason": "", "attempt": 1, "step": 0, "at": places[run].ended}
            for run in runs])  # fmt: skip
        session.execute(insert(BlockRow), [
            {"run_id": run, "group_name": "scalars", "level": 0, "first_step": 1, "last_step": 1, "stride": 1, "point_count": 1,
             "column_count": 1, "attempt": 1, "seq": 1, "payload": b"\0\1"} for run in runs])  # fmt: skip


def _expect(places: dict[int, Place], now: float) -> None:
    """The settings, written a second time: which runs go to the trash now, and which are purged."""
    here = [place for place in places.values() if place.trashed is None]
    over = len(here) - MOST
    for place in here:
        if place.kept:
            continue
        if place.ended < now - DAYS * DAY or over > 0:
            place.trashed, over = now, over - 1
        else:
            break
    for place in places.values():
        place.purged = place.purged or (place.trashed is not None and place.trashed <= now - TRASH_DAYS * DAY)


def _places(database: Database) -> dict[int, float | None]:
    with database.read() as session:
        return {row.id: row.deleted_at for row in session.execute(select(Run.id, Run.deleted_at))}
