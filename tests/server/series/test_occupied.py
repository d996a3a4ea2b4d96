"""`bytes_stored` equals the space that a run occupies, from its submission to its deletion."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from server.database.connection import Database
from server.database.models import BlockRow
from server.lifecycle import transitions as lifecycle
from server.series.compaction import compact
from server.series.occupied import CHECKPOINT_FILES
from server.series.recording import store_checkpoint
from stablessm_core.training.checkpoint import KEEP
from tests.server.recording import Recording, claim, claimed, run_of
from tests.server.storing import store_flush, truncate

pytestmark = pytest.mark.both_engines


def payloads(database: Database, run_id: int) -> int:
    with database.read() as session:
        return session.scalar(select(func.sum(func.length(BlockRow.payload))).where(BlockRow.run_id == run_id)) or 0


@pytest.mark.slow
def test_bytes_stored_equals_the_payload_sizes_after_repeats_rollbacks_and_compaction(database: Database) -> None:
    recording = Recording(database, claimed(database))
    run_id, attempt = recording.claim.run_id, recording.claim.attempt
    recording.write(64)
    flush = recording.write(64)
    stored = run_of(database, run_id).bytes_stored
    assert stored == payloads(database, run_id) > 0
    with database.write() as session:
        store_flush(session, run_id, attempt, flush, step=128)  # sent again, because the response to the first request was lost
    assert run_of(database, run_id).bytes_stored == stored
    with database.write() as session:
        truncate(session, run_id, attempt, 65, "rollback")
    assert 0 < run_of(database, run_id).bytes_stored == payloads(database, run_id) < stored
    recording.cut(65)
    recording.write(64)
    with database.write() as session:
        lifecycle.finish(session, run_id, attempt, "finished")
    before = payloads(database, run_id)
    assert compact(database, run_id)
    assert 0 < run_of(database, run_id).bytes_stored == payloads(database, run_id) != before


def test_checkpoints_are_counted_while_their_files_are_kept(database: Database) -> None:
    recording = Recording(database, claimed(database))
    run_id, attempt = recording.claim.run_id, recording.claim.attempt
    recording.write(64)
    for step, size, kept in ((10, 1000, 1000), (20, 2000, 3000), (30, 4000, 6000), (30, 4000, 6000)):
        with database.write() as session:
            store_checkpoint(session, run_id, attempt, step, f"step-{step}", "0" * 64, size)
        assert run_of(database, run_id).bytes_stored == payloads(database, run_id) + kept
    with database.write() as session:
        lifecycle.release(session, run_id, attempt, "drained")
    second = Recording(database, claim(database), first=31)
    second.write(10)
    for step, kept in ((31, 6000 + 8000), (32, 16_000), (33, 16_000)):
        with database.write() as session:
            store_checkpoint(session, run_id, second.claim.attempt, step, f"again-{step}", "1" * 64, 8000)
        assert run_of(database, run_id).bytes_stored == payloads(database, run_id) + kept


def test_the_number_of_counted_checkpoints_equals_the_number_that_are_kept() -> None:
    assert CHECKPOINT_FILES == KEEP
