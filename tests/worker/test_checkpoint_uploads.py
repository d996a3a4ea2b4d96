"""Checkpoints in a bucket: a run continues on another machine, and an unreachable bucket costs only time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from server.checkpoint_store import CheckpointStore
from server.database.connection import Database
from server.database.models import CheckpointRow
from tests.s3 import BUCKET, aws_variables, s3_server
from tests.worker.station import SMALL, Station, TooLate, in_time

pytestmark = [pytest.mark.spread, pytest.mark.long]

URL = f"s3://{BUCKET}/lab"
LONG: dict[str, Any] = SMALL | {"train": SMALL["train"] | {"steps": 200}}


@pytest.fixture
def machines(database_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Station, Station]]:
    """Two machines, each with a worker, that share a database but no disk."""
    monkeypatch.setenv("STABLESSM_CHECKPOINT_STORE", URL)
    database = Database(f"sqlite:///{database_path}")
    database.migrate()
    folder = database_path.parent
    with closing(Station(database, folder / "first")) as first, closing(Station(database, folder / "second")) as second:
        yield first, second


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


def rows(station: Station, run_id: int) -> list[CheckpointRow]:
    with station.database.read() as session:
        chosen = select(CheckpointRow).where(CheckpointRow.run_id == run_id).order_by(CheckpointRow.step)
        return list(session.scalars(chosen))


def test_a_run_resumes_on_a_machine_that_has_none_of_its_files(machines: tuple[Station, Station]) -> None:
    first, second = machines
    with s3_server():

        def interrupted() -> int:
            if not first.processes or first.process.poll() is not None:
                first.start()
            run_id = first.submit(LONG)
            first.until_step(run_id, 70)
            first.stop()
            if first.run(run_id).status == "finished":
                raise TooLate(f"run {run_id} had finished when its worker stopped")
            return run_id

        run_id = in_time(interrupted)
        left = first.run(run_id)
        assert left.status == "queued"
        second.start()
        second.until_ended(run_id)
        reasons = second.reasons(run_id)
        assert second.run(run_id).status == "finished", reasons
        assert any(f"resumed after step {left.step}" in reason for reason in reasons)
        assert "rolled_back" not in second.alerts(run_id)
        assert second.losses(run_id)[0] == list(range(1, 201))
        second.until("the last checkpoint in the bucket", lambda: rows(second, run_id)[-1].stored_at)

        def newest() -> list[str]:
            return [row.path for row in rows(second, run_id)[-2:]]

        # a worker that stops spends only little time on the bucket
        second.until("the end of older checkpoints", lambda: sorted(CheckpointStore(URL).stored(run_id)) == sorted(newest()))
        second.stop()
        assert sorted(CheckpointStore(URL).stored(run_id)) == sorted(newest()), (
            "older checkpoints must be removed from the bucket"
        )
        assert [row.path for row in rows(second, run_id) if row.stored_at] == newest()
        assert rows(second, run_id)[-1].bytes == (second.data_dir / newest()[-1]).stat().st_size


def test_runs_train_while_the_bucket_is_unreachable_and_their_checkpoints_are_uploaded_later(
    machines: tuple[Station, Station], free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    station, _ = machines
    for name, value in aws_variables(free_port).items():
        monkeypatch.setenv(name, value)
    station.start()
    run_id = station.submit(SMALL)
    station.until_ended(run_id)
    assert station.run(run_id).status == "finished"
    station.stop()
    assert [row.stored_at for row in rows(station, run_id)] == [None] * len(rows(station, run_id))
    with s3_server(free_port):
        station.start()  # a new worker finds the checkpoints that remained on this disk
        station.until("the checkpoints in the bucket", lambda: rows(station, run_id)[-1].stored_at)
