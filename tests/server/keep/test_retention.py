"""Retention moves the oldest ended runs to the trash, as many as the limits require, but never a protected run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from server.database.connection import Database
from server.database.models import Run
from server.keep.housekeeping import Housekeeping
from server.keep.retention import DAY, apply_retention, plan
from server.lifecycle import transitions as lifecycle
from server.settings import Settings
from tests.server.recording import config, run_of

pytestmark = pytest.mark.both_engines


def settings(database: Database, tmp_path: Path, **more: Any) -> Settings:
    return Settings(data_dir=tmp_path / "state", database_url=database.url, **more)


@pytest.fixture
def runs(database: Database) -> list[int]:
    """Six ended runs of 1,000 bytes, which ended 6, 5, ..., 1 days ago; the oldest is tagged `Keep`."""
    numbers = []
    for days in range(6, 0, -1):
        with database.write() as session:
            run = lifecycle.submit(session, config(tags=["Keep"] if days == 6 else ["x"]))
            lifecycle.request_cancel(session, run.id)
            run.finished_at, run.bytes_stored = time.time() - days * DAY, 1000
            numbers.append(run.id)
    return numbers


@pytest.mark.parametrize(
    ("limits", "leaves", "reason"),
    [
        ({}, 0, ""),
        ({"retention_days": 3.5}, 2, "it ended more than 3.5 days ago (STABLESSM_RETENTION_DAYS)"),
        ({"retention_runs": 4}, 2, "more than 4 ended runs are kept (STABLESSM_RETENTION_RUNS)"),
        ({"retention_bytes": 3500}, 3, "the runs occupy more than 3,500 bytes (STABLESSM_RETENTION_BYTES)"),
        ({"retention_runs": 5, "retention_bytes": 2000}, 4, "more than 5 ended runs are kept (STABLESSM_RETENTION_RUNS)"),
        ({"retention_runs": 5, "retention_keep_tags": ("x",)}, 1, "more than 5 ended runs are kept (STABLESSM_RETENTION_RUNS)"),
        ({"retention_days": 1e-6}, 5, "it ended more than 1e-06 days ago (STABLESSM_RETENTION_DAYS)"),
    ],
)
@pytest.mark.slow
def test_retention_moves_the_oldest_ended_runs_to_the_trash(
    database: Database, tmp_path: Path, runs: list[int], limits: dict[str, Any], leaves: int, reason: str
) -> None:
    chosen = settings(database, tmp_path, **limits)
    first = 0 if "retention_keep_tags" in limits else 1
    with database.read() as session:
        leaving = list(plan(session, chosen))
    assert [run.run_id for run in leaving] == runs[first : first + leaves]
    assert [run.reason for run in leaving[:1]] == ([reason] if leaves else [])
    assert apply_retention(database, chosen, most=100) == leaves
    with database.read() as session:
        assert [run.id for run in session.query(Run).filter(Run.deleted_at.is_(None)).order_by(Run.id)] == [
            run for run in runs if run not in runs[first : first + leaves]
        ]
        assert list(plan(session, chosen)) == [], "runs in the trash must not count"
    assert all(run_of(database, run.run_id).deleted_by == "retention" for run in leaving)


def test_runs_of_a_sweep_with_open_runs_are_kept(database: Database, tmp_path: Path, runs: list[int]) -> None:
    with database.write() as session:
        sweep = lifecycle.new_sweep(session, {}, {})
        session.get_one(Run, runs[2]).sweep_id = sweep.id
        waits = lifecycle.submit(session, config(), sweep_id=sweep.id).id
    chosen = settings(database, tmp_path, retention_bytes=1)
    assert apply_retention(database, chosen, most=100) == 4
    assert {n for n in (*runs, waits) if run_of(database, n).deleted_at is None} == {runs[0], runs[2], waits}


def test_housekeeping_applies_retention_and_purges_in_the_background(database: Database, tmp_path: Path, runs: list[int]) -> None:
    housekeeping = Housekeeping(database, settings(database, tmp_path, retention_runs=1, trash_hours=0), look=0.02)
    housekeeping.start()
    deadline = time.monotonic() + 60
    left = runs
    while len(left) > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
        with database.read() as session:
            left = [run.id for run in session.query(Run)]
    housekeeping.close(60)
    assert left == [runs[0]]


def test_a_run_of_the_past_counts_from_its_import(database: Database, tmp_path: Path, runs: list[int]) -> None:
    with database.write() as session:
        session.get_one(Run, runs[2]).kind = "reported"  # it ended 4 days ago and came now
    chosen = settings(database, tmp_path, retention_days=3)
    with database.read() as session:
        assert runs[2] not in [run.run_id for run in plan(session, chosen)]
