"""A run's records are stored in order and once, even if the database is unreachable or another worker receives the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from sqlalchemy import select, text

from server.database.connection import Database
from server.database.models import AlertRow, BlockRow, Run
from server.lifecycle import transitions as lifecycle
from stablessm_core.report.messages import EndMessage, EnvironmentMessage, to_bytes
from stablessm_core.report.outbox import Outbox, left_behind
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import Block, decode
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, scalar
from stablessm_core.telemetry.sink import Flush
from tests.worker.station import away
from worker.writer import DATABASE_AWAY, Writer

pytestmark = pytest.mark.both_engines

STEPS = 8  # steps per flush


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


def _claimed(database: Database) -> lifecycle.Claim:
    with database.write() as session:
        lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}}))
    with database.write() as session:
        claim = lifecycle.claim(session, "test", {"devices": ["cpu"], "data": {}})
    assert claim is not None
    return claim


def _never() -> None:
    pytest.fail("lease lost")


def _writer(
    database: Database, claim: lifecycle.Claim, folder: Path, *, limit: int = 1 << 20, on_lease_lost: Callable[[], None] = _never
) -> Writer:
    return Writer(
        database,
        claim.run_id,
        claim.attempt,
        data_dir=folder,
        outbox=folder / "spool",
        outbox_bytes=limit,
        publish=lambda _run_id: None,
        on_lease_lost=on_lease_lost,
    )


def _flush(number: int) -> Flush:
    first = 1 + number * STEPS
    values = np.arange(first, first + STEPS, dtype=np.float32)[None]
    return Flush([Block(SCALARS, 0, first, 1, values)], [], first + STEPS - 1, 100.0)


def _stored_steps(database: Database, run_id: int) -> list[int]:
    """The recorded values, which equal their steps, in the order of the run's events."""
    with database.read() as session:
        rows = session.scalars(select(BlockRow).where(BlockRow.run_id == run_id).order_by(BlockRow.seq)).all()
        return [int(v) for row in rows for v in decode(row.payload, (row.column_count, row.point_count))[0]]


def _until(what: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)


def _connected(url: str, backend: int) -> bool:
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        return other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (backend,)).fetchone() is not None


def test_a_flush_is_stored_within_milliseconds(database: Database, tmp_path: Path) -> None:
    claim = _claimed(database)
    writer = _writer(database, claim, tmp_path)
    writer.open([scalar(TRAIN_LOSS)])
    writer.wait_stored(90)
    waits, handovers = [], []
    for number in range(20):
        begun = time.perf_counter()
        writer.write(_flush(number))
        handovers.append(time.perf_counter() - begun)
        writer.wait_stored(90)
        waits.append(time.perf_counter() - begun)
    assert _stored_steps(database, claim.run_id) == list(range(1, 20 * STEPS + 1))
    # The shortest of twenty times: a pause of the machine affects some of them, a wait in the code would affect all.
    assert min(handovers) < 0.002, handovers
    assert min(waits) < 0.05, waits
    assert not (tmp_path / "spool").exists()


def test_during_a_database_outage_records_are_spooled_to_disk_and_stored_later_in_order(
    database: Database, tmp_path: Path
) -> None:
    claim = _claimed(database)
    writer = _writer(database, claim, tmp_path)
    writer.open([scalar(TRAIN_LOSS)])
    writer.write(_flush(0))
    writer.wait_stored(90)
    with away(database):
        for number in range(1, 30):
            writer.write(_flush(number))
        _until(lambda: len(list(left_behind(tmp_path / "spool"))) == 29)
        assert not writer.full
    writer.write(_flush(30))
    writer.finish(EndMessage("finished", "", {"train_loss": float("nan")}))
    assert _stored_steps(database, claim.run_id) == list(range(1, 31 * STEPS + 1))
    with database.read() as session:
        run = session.get_one(Run, claim.run_id)
        assert (run.status, run.step, run.result) == ("finished", 31 * STEPS, {"train_loss": "NaN"})
    assert not (tmp_path / "spool").exists()


def test_a_full_spool_makes_training_wait_loses_nothing_and_raises_an_alert(database: Database, tmp_path: Path) -> None:
    claim = _claimed(database)
    writer = _writer(database, claim, tmp_path, limit=2000)
    writer.open([scalar(TRAIN_LOSS)])
    writer.wait_stored(90)
    with away(database):
        for number in range(20):
            writer.write(_flush(number))
        _until(lambda: writer.full)
        assert (tmp_path / "spool").stat().st_size <= 2000
    writer.wait_stored(90)
    assert not writer.full
    assert _stored_steps(database, claim.run_id) == list(range(1, 20 * STEPS + 1))
    with database.read() as session:
        alerts = session.scalars(select(AlertRow).where(AlertRow.kind == "spool_full")).all()
        assert [(a.severity, a.run_id) for a in alerts] == [("critical", claim.run_id)]
        assert "2000 bytes" in alerts[0].message


def test_a_writer_that_lost_its_run_writes_nothing_more(database: Database, tmp_path: Path) -> None:
    claim = _claimed(database)
    lost = threading.Event()
    writer = _writer(database, claim, tmp_path, on_lease_lost=lost.set)
    writer.open([scalar(TRAIN_LOSS)])
    writer.write(_flush(0))
    writer.wait_stored(90)
    with database.write() as session:
        lifecycle.release(session, claim.run_id, claim.attempt, "given up by the test")
    with database.write() as session:
        assert lifecycle.claim(session, "another", {"devices": ["cpu"], "data": {}}) is not None
    writer.write(_flush(1))
    assert lost.wait(90)
    assert _stored_steps(database, claim.run_id) == []  # without a checkpoint, the claim removed all steps


def test_a_permanent_error_is_reported_instead_of_retried(database: Database, tmp_path: Path) -> None:
    claim = _claimed(database)
    writer = _writer(database, claim, tmp_path)
    writer.open([scalar(TRAIN_LOSS)])
    (tmp_path / "step-50").touch()
    writer.checkpoint(50, tmp_path / "step-50", "ab" * 32)  # a checkpoint whose telemetry was never written
    with pytest.raises(ValueError, match="comes before its telemetry"):
        writer.finish(EndMessage("finished", ""))


@pytest.mark.postgres
def test_a_transaction_ended_by_an_idle_timeout_counts_as_an_unreachable_database(postgres_url: str) -> None:
    database = Database(postgres_url)

    def wake_up_late() -> None:
        with database.write() as session:
            session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '50ms'"))
            own = session.connection().connection.dbapi_connection
            assert own is not None
            _until(lambda: not _connected(postgres_url, own.info.backend_pid))
            session.execute(text("SELECT 1"))

    with pytest.raises(DATABASE_AWAY):
        wake_up_late()
    database.close()


def test_recorded_checkpoints_are_needed_until_newer_checkpoints_are_recorded(database: Database, tmp_path: Path) -> None:
    claim = _claimed(database)
    writer = _writer(database, claim, tmp_path)
    writer.open([scalar(TRAIN_LOSS)])
    for number in range(3):
        writer.write(_flush(number))
    for earlier in ("attempt-0", "attempt-1"):
        (tmp_path / "checkpoints" / earlier).mkdir(parents=True)
    files = {step: tmp_path / "checkpoints" / "attempt-1" / f"step-{step}.safetensors" for step in (8, 16, 24)}
    for file in files.values():
        file.write_bytes(bytes(100))
    for step in (8, 16):
        writer.checkpoint(step, files[step], "ab" * 32)
    writer.wait_stored(90)
    assert writer.needed_checkpoints() == [8, 16]
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["attempt-1"], (
        "folders of attempts without a recorded checkpoint must be removed"
    )
    with away(database):
        writer.checkpoint(24, files[24], "ab" * 32)
        _until(lambda: len(list(left_behind(tmp_path / "spool"))) == 1)
        assert writer.needed_checkpoints() == [8, 16], "the newest checkpoint is not recorded yet"
    writer.wait_stored(90)
    assert writer.needed_checkpoints() == [16, 24]


def test_records_in_memory_are_spooled_to_disk_when_the_process_gives_up(database: Database, tmp_path: Path) -> None:
    claim = _claimed(database)
    writer = _writer(database, claim, tmp_path)
    writer.open([scalar(TRAIN_LOSS)])
    writer.wait_stored(90)
    with away(database):
        writer.write(_flush(0))
        writer.save_for_later()
        assert len(list(left_behind(tmp_path / "spool"))) == 1
    writer.wait_stored(90)
    assert _stored_steps(database, claim.run_id) == list(range(1, STEPS + 1))


def test_a_record_that_moves_to_the_spool_during_a_lookup_is_not_lost(database: Database, tmp_path: Path) -> None:
    claim = _claimed(database)
    writer = _writer(database, claim, tmp_path)
    looked, moved = threading.Event(), threading.Event()

    class Slow(Outbox):
        def read(self, position: int, limit: int) -> bytes:
            found = super().read(position, limit)
            looked.set()
            moved.wait(0.3)
            return found

    writer._outbox = Slow(tmp_path / "slow", {"id": "slow"}, pytest.fail)
    writer._outbox.append(to_bytes(EnvironmentMessage({})))
    writer.writes.count_recorded(EnvironmentMessage({}))
    writer.open([scalar(TRAIN_LOSS)])
    assert looked.wait(90)
    # Either waits for `read`, or runs between `read` and the removal of the record.
    writer.save_for_later()
    moved.set()
    writer.write(_flush(0))
    writer.wait_stored(90)
    assert writer.error is None
    assert _stored_steps(database, claim.run_id) == list(range(1, STEPS + 1))
