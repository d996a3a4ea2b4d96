"""A wall clock that jumps by an hour or by years loses no run, session or event, and deletes nothing before its time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from sqlalchemy import func, select

from server.access.sessions import SESSION_SECONDS
from server.backup.schedule import back_up_regularly
from server.clock_jumps import TRUST_SECONDS, ClockJumps
from server.database.connection import Database
from server.database.models import EndedSession, Run
from server.keep.housekeeping import Housekeeping
from server.keep.trash import move_to_trash
from server.lifecycle import transitions as lifecycle
from server.lifecycle.lost_runs import LostRunReaper
from server.settings import Settings
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, scalar
from tests.server.http_service import BEARER, TOKEN, frames, running
from tests.server.recording import claimed, run_of, submitted
from tests.server.storing import store_catalogue, store_flush

pytestmark = pytest.mark.slow

HOUR, DAY, YEAR = 3600.0, 86_400.0, 365.25 * 86_400
JUMPS = (HOUR, -HOUR, 10 * YEAR, -10 * YEAR)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the wall clock of this process forward by the given seconds."""
    true, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: true() + ahead)

    def set_to(seconds: float) -> None:
        nonlocal ahead
        ahead = seconds

    return set_to


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_is_noticed_until_the_clock_is_back_or_a_day_has_passed(jump: float) -> None:
    wall, steady = 1.7e9, 0.0
    clock = ClockJumps(lambda: wall, lambda: steady)
    for _ in range(300):  # a clock that is slowly corrected does not jump, even if this adds up to hours
        wall, steady = wall + 3660, steady + 3600
        assert not clock.jumped()
    wall += jump
    assert clock.jumped()
    wall -= jump
    assert not clock.jumped()
    wall += jump
    begun = steady
    while clock.jumped():
        wall, steady = wall + 3600, steady + 3600
    assert steady - begun == TRUST_SECONDS
    assert not clock.jumped()


@pytest.mark.both_engines
@pytest.mark.parametrize("jump", JUMPS)
def test_retention_and_the_trash_delete_nothing_after_a_jump_and_everything_due_after_a_month(
    database: Database, tmp_path: Path, set_clock: Callable[[float], None], jump: float
) -> None:
    settings = Settings(data_dir=tmp_path / "state", database_url=database.url, retention_days=30, trash_hours=24)
    kept, deleted = submitted(database), submitted(database)
    with database.write() as session:
        for run in (kept, deleted):
            lifecycle.request_cancel(session, run)
        session.get_one(Run, kept).finished_at = time.time() - 30 * DAY + HOUR / 2
        set_clock(-DAY + HOUR / 2)
        move_to_trash(session, deleted, by="somebody")
    steady = 0.0
    set_clock(0.0)
    housekeeping = Housekeeping(database, settings, clock=ClockJumps(steady=lambda: steady + time.monotonic()))
    for ahead in (0.0, jump, 0.0):
        set_clock(ahead)
        housekeeping.round()
        assert run_of(database, kept).deleted_at is None
        assert run_of(database, deleted).deleted_at is not None
    steady += 31 * DAY
    set_clock(steady)
    housekeeping.round()
    assert run_of(database, kept).deleted_at is not None
    with database.read() as session:
        assert session.get(Run, deleted) is None


def test_a_running_run_its_stream_and_signed_out_sessions_survive_clock_jumps(
    sqlite: Database, tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    counted: Counter[str] = Counter()
    claim = claimed(sqlite, train__steps=100)
    reaper = LostRunReaper(sqlite, 6.0)
    with sqlite.write() as session:
        store_catalogue(session, claim.run_id, 1, [scalar(TRAIN_LOSS)])
    with running(sqlite.url, tmp_path) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        out, stays = _sign_in(client), _sign_in(client)
        page = {"Sec-Fetch-Site": "same-origin"}
        assert client.post("/logout", headers={"Cookie": out} | page).status_code == 303
        with client.stream("GET", f"/api/runs/{claim.run_id}/stream", headers=BEARER) as answer:
            events = frames(answer)
            for step, ahead in enumerate((*JUMPS, 0.0), 1):
                set_clock(ahead)
                with sqlite.write() as session:
                    assert lifecycle.heartbeat(session, claim.run_id, 1)
                    session.get_one(Run, claim.run_id).steps_per_second = 2.0
                    seq = store_flush(session, claim.run_id, 1, [_loss(step)], [], step)
                assert reaper.reap() == []
                counted["events"] += sum(event.get("id") == str(seq) for event in _until_id(events, seq))
                run = client.get(f"/api/runs/{claim.run_id}", headers=BEARER).json()
                assert (run["status"], run["attempt"], run["eta_seconds"]) == ("running", 1, (100 - step) / 2)
                assert client.get("/", headers=BEARER).status_code == 200
                ended = _sign_in(client)  # signing out deletes expired records; it must not delete those of valid cookies
                assert client.post("/logout", headers={"Cookie": ended} | page).status_code == 303
                assert client.get("/api/runs", headers={"Cookie": out}).status_code == 401
        assert client.get("/api/runs", headers={"Cookie": stays}).status_code == 200
    with sqlite.read() as session:
        assert session.scalar(select(func.count()).select_from(EndedSession)) == 1 + len(JUMPS), "the cookie of 2016 has expired"
    assert counted["events"] == len(JUMPS) + 1
    assert SESSION_SECONDS < 10 * YEAR


def test_regular_backups_keep_the_newest_file_after_the_clock_was_set_back(
    sqlite: Database, tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    class Twice:
        rounds = 0

        def wait(self, _seconds: float) -> bool:
            self.rounds += 1
            return self.rounds > 1

    folder, said = tmp_path / "backups", list[str]()
    folder.mkdir()
    for year in (2040, 2041):
        (folder / f"stablessm-{year}0101-000000.backup").write_bytes(b"made while the clock was wrong")
    back_up_regularly(sqlite, tmp_path / "state", folder, every_seconds=60, keep=2, say=said.append, stop=Twice())  # type: ignore[arg-type]
    left = sorted(file.name for file in folder.iterdir())
    assert len(left) == 2
    assert left[0] < "stablessm-2040"
    assert left[1] == "stablessm-20410101-000000.backup"


def _sign_in(client: httpx.Client) -> str:
    answer = client.post("/login", data={"token": TOKEN})
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    client.cookies.clear()
    return str(cookie)


def _loss(step: int) -> Block:
    return Block(SCALARS, 0, step, 1, np.ones((1, 1), np.float32))


def _until_id(events: object, seq: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for event in events:  # type: ignore[attr-defined]
        found.append(event)
        assert len(found) < 100
        if event.get("id") == str(seq):
            return found
    raise AssertionError("the stream ended")
