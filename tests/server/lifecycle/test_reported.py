"""Runs that other programs report: they are lost and found, take no place of a training run, and no worker trains them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.fence import lock_run
from server.database.models import AutopsyRow, Run, Transition, User
from server.errors import Conflict
from server.keep.housekeeping import Housekeeping
from server.keep.trash import move_to_trash
from server.lifecycle import transitions as lifecycle
from server.lifecycle.autopsies import request_autopsy
from server.lifecycle.forking import fork_run
from server.lifecycle.history import history_json
from server.lifecycle.lost_runs import LostRun, LostRunReaper
from server.lifecycle.queues import change_queue
from server.lifecycle.quotas import full_users
from server.lifecycle.reported import found, mark_lost
from server.lifecycle.verdicts import judge_run
from server.settings import Settings
from stablessm_core.telemetry.how import How
from tests.server.recording import CPU, run_of, submitted
from tests.server.reported import PATHS, ended, opened, recorded
from tests.server.storing import truncate

pytestmark = pytest.mark.both_engines


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def transitions(database: Database, run_id: int) -> list[tuple[int, str]]:
    with database.read() as session:
        rows = session.execute(
            select(Transition.seq, Transition.status).where(Transition.run_id == run_id).order_by(Transition.seq)
        )
        return [(seq, status) for seq, status in rows]


def test_a_silent_reported_run_is_lost_within_its_lease_and_5_seconds_and_is_never_queued(database: Database) -> None:
    clock, told = Clock(), []
    run, ours = opened(database), submitted(database)
    with database.write() as session:
        assert lifecycle.claim(session, "tester", CPU) is not None
    reaper = LostRunReaper(database, 25.0, reported_lease_seconds=60.0, on_lost=told.append, clock=clock)
    lost: dict[int, float] = {}
    for _ in range(40):
        lost |= {one.run_id: clock.now for one in reaper.reap()}
        clock.now += 2.0
    assert told == [ours, run]
    assert 1060 <= lost[run] < 1065
    assert run_of(database, run).status == "lost"
    assert re.fullmatch(r"last heard of at [-0-9]+ [:0-9]+ UTC, after step 0", run_of(database, run).status_reason)
    with database.write() as session:
        again = lifecycle.claim(session, "tester", CPU)
        assert again is not None
        assert again.run_id == ours
        assert lifecycle.claim(session, "tester", CPU) is None


def test_a_message_keeps_a_reported_run_from_being_lost(database: Database) -> None:
    run = opened(database)
    with database.write() as session:
        assert lifecycle.heartbeat(session, run, 1)
        assert not mark_lost(session, run, 1, 0, "silent")
        assert not mark_lost(session, run, 2, 1, "silent")
        assert mark_lost(session, run, 1, 1, "silent")
    assert LostRunReaper(database, 25.0).reap() == []


def test_a_lost_run_that_reports_again_goes_on_without_a_gap_in_its_events(database: Database) -> None:
    run = opened(database)
    recorded(database, run)
    ended(database, run, "lost")
    Housekeeping(database, Settings(data_dir=Path("unused"), database_url=database.url))._judge()
    assert run_of(database, run).judged_at is not None
    with database.write() as session:
        row = session.get_one(Run, run)
        assert found(session, row) == 4
        assert found(session, row) == 4, "a run that is not lost does not change"
    assert transitions(database, run) == [(1, "running"), (3, "lost"), (4, "running")]  # event 2 is the flush
    row = run_of(database, run)
    assert (row.status, row.seq, row.finished_at, row.judged_at) == ("running", 4, None, None)
    with database.read() as session:
        history = history_json(session, run)
    assert [event["event"] for event in history["events"]] == ["submitted", "lost", "found"]
    ended(database, run, "finished")
    assert run_of(database, run).status == "finished"


def test_a_running_reported_run_counts_towards_no_queue_and_no_quota(database: Database) -> None:
    with database.write() as session:
        session.add(User(id=7, name="ada", max_running=1, created_at=0.0))
        change_queue(session, "default", {"max_running": 1})
    for _ in range(3):
        opened(database, user_id=7)
    with database.write() as session:
        assert full_users(session) == {}
        lifecycle.submit(session, lifecycle.parse_config({"task": {"name": "polynomial_memory"}}), user_id=7)
        assert lifecycle.claim(session, "tester", CPU) is not None
        assert full_users(session) == {7: 1}


REFUSED: dict[str, Callable[[Any, Database, Settings, int], object]] = {
    "resume": lambda session, _database, _settings, run: lifecycle.resume_run(session, run),
    "autopsy": lambda session, _database, _settings, run: request_autopsy(session, session.get_one(Run, run), step=3, by="ada"),
}


@pytest.mark.parametrize("action", REFUSED)
def test_our_workers_cannot_train_a_reported_run(database: Database, tmp_path: Path, action: str) -> None:
    run = opened(database)
    recorded(database, run)
    ended(database, run, "failed")
    settings = Settings(data_dir=tmp_path, database_url=database.url)
    with database.write() as session, pytest.raises(Conflict, match="reported by another program"):
        REFUSED[action](session, database, settings, run)
    with pytest.raises(Conflict, match="reported by another program"):
        fork_run(database, settings, run, from_step=None, changes={})
    with database.read() as session:
        assert session.scalars(select(AutopsyRow)).all() == []
    assert run_of(database, run).status == "failed"


@pytest.mark.parametrize("config", [{}, [], "text", {"model": "mamba", "train": 3, "optimizer": []}])
def test_housekeeping_judges_every_run_beside_odd_reported_runs(database: Database, tmp_path: Path, config: Any) -> None:
    odd = [opened(database, config=config, layers=PATHS) for _ in range(3)]
    for run, status in zip(odd, ("finished", "diverged", "lost"), strict=True):
        recorded(database, run, bad=(1, 2, 20) if status == "diverged" else None)
        ended(database, run, status)
    with database.write() as session:
        session.get_one(Run, odd[1]).divergence = {"step": "soon", "layer": [], "eigenvalue": {}}  # no program of ours sends this
        move_to_trash(session, odd[0], by="ada")
    last = opened(database)
    ended(database, last, "finished")
    Housekeeping(database, Settings(data_dir=tmp_path, database_url=database.url, trash_hours=0)).round()
    with database.read() as session:
        assert session.get(Run, odd[0]) is None
    assert [run_of(database, run).judged_at is not None for run in (*odd[1:], last)] == [True] * 3


def test_the_verdict_names_the_place_of_a_planted_nan_and_nothing_that_was_not_recorded(database: Database) -> None:
    run = opened(database, layers=PATHS, how=How(optimizer="adamw", lr=0.1, length=64))
    recorded(database, run, bad=(1, 3, 31))
    where = {"step": 31, "layer": 1, "eigenvalue": 3, "tensor": "A_log", "value": "NaN"}
    ended(database, run, "diverged", divergence=where)
    with database.read() as session:
        verdict = judge_run(session, session.get_one(Run, run))
    assert (verdict["cause"], verdict["confidence"]) == ("unknown", "cannot_tell")
    assert verdict["culprit"] is None, "the order in which tensors are recorded blames nobody"
    place = "A_log at eigenvalue 3 of layer 1 (backbone.layers.1.mixer)"
    assert f"{place} stopped being finite at step 31. The recorded numbers cannot tell why." in verdict["summary"]
    assert "the first one on record need not be the first that failed" in verdict["summary"]
    assert verdict["try"] == []
    assert "AdamW" not in str(verdict)
    assert [event["step"] for event in verdict["events"]] == [31]


def test_alerts_of_steps_that_the_program_took_back_do_not_judge_the_run(database: Database) -> None:
    run = opened(database, layers=PATHS)
    recorded(database, run, bad=(1, 3, 31))
    with database.write() as session:
        truncate(session, run, 1, 21, "back to a checkpoint")
    recorded(database, run, 20, first=21)
    ended(database, run, "finished")
    with database.read() as session:
        verdict = judge_run(session, session.get_one(Run, run))
    assert (verdict["cause"], verdict["events"]) == (None, [])
    assert "not finite" not in verdict["summary"]


def test_the_verdict_on_a_run_that_reports_no_loss_speaks_of_its_eigenvalues(database: Database) -> None:
    run = opened(database, layers=PATHS)
    recorded(database, run, loss=False)
    with database.read() as session:
        verdict = judge_run(session, session.get_one(Run, run))
    assert verdict["cause"] is None
    assert verdict["summary"].startswith("So far, at step 40: all 8 recorded eigenvalues are inside the stability boundary;")


def test_a_run_that_is_lost_is_found_by_its_fence_only_after_it_is_found(database: Database) -> None:
    run = opened(database)
    ended(database, run, "lost")
    with database.write() as session, pytest.raises(lifecycle.LeaseLost):
        lock_run(session, run, 1)


def test_reapers_of_several_servers_lose_a_run_only_once(database: Database) -> None:
    clock, run = Clock(), opened(database)
    reapers = [LostRunReaper(database, 25.0, reported_lease_seconds=6.0, clock=clock) for _ in range(2)]
    lost = []
    for _ in range(6):
        lost += [one for reaper in reapers for one in reaper.reap()]
        clock.now += 2.0
    assert lost == [LostRun(run, 1, "lost")]
