"""Files that version 0.2 wrote can still be read: an archive of runs, the file of a watched run, and the spool of a worker.

`tests/old_files` holds them. They were written before messages, outbox and link had one room.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from server.database.connection import Database
from server.ingest.records import read_records
from server.keep.imports import import_archive
from server.series.reading import read_series
from stablessm_core.report.frames import frame
from stablessm_core.report.messages import CheckpointMessage, from_bytes, to_bytes
from stablessm_core.report.outbox import left_behind, read_run_file
from tests.mutated_frames import messages
from tests.server.recording import run_of

OLD = Path(__file__).parents[2] / "old_files"


@pytest.mark.both_engines
def test_an_old_archive_is_imported_with_all_its_runs(database: Database) -> None:
    with (OLD / "runs.tar").open("rb") as file:
        done = import_archive(database, file, submitted_by=None, user_id=None)
    assert (done.source, [was for _, was in done.runs]) == ("http://there:8000", [1, 2, 3])
    runs = [run_of(database, run_id) for run_id, _ in done.runs]
    told = [(run.name, run.kind, run.status, run.step) for run in runs]
    assert told == [
        ("seed 0", "trained", "diverged", 80), ("seed 1", "trained", "finished", 80), ("reported", "reported", "diverged", 300),
    ]  # fmt: skip
    with database.read() as session:
        ratios = read_series(session, runs[2].id, "ssm/0/grad_over_weight", max_points=400)
        logged = read_series(session, runs[0].id, "val/acc")
    assert (len(ratios.step), logged.step.tolist()) == (300, [7, 31])


def test_the_file_of_an_old_watched_run_is_read() -> None:
    file = read_run_file(OLD / "run.ssmr")
    assert file.opening["project"] == "old"
    records = list(file.records())
    assert (file.damaged, records) == (None, [to_bytes(message) for message in messages()])
    read_records(b"".join(map(frame, records)))


def test_the_spool_of_an_old_worker_is_read() -> None:
    found = [from_bytes(record) for record in left_behind(OLD / "spool")]
    assert CheckpointMessage(300, "a/b", "ab" * 32, 5) in found
    assert len(found) == 5
