"""A cancel ends a run in the middle of a step of many seconds; what was stored stays as it is, and the run can go on from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import BlockRow, CheckpointRow, Transition
from server.runs import lifecycle
from tests.worker.station import Station

LONG: dict[str, Any] = {  # a step takes many times the grace of a cancel: 5 s on two idle cores
    "task": {"name": "polynomial_memory", "length": 1000},
    "model": {"d_model": 256, "d_state": 256, "n_layers": 2},
    "train": {"steps": 1000, "batch_size": 64, "eval_every": 0, "checkpoint_every": 1},
}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def station(sqlite_url: str, tmp_path: Path) -> Iterator[Station]:
    station = Station(Database(sqlite_url), tmp_path / "state")
    yield station
    station.close()


def stored(station: Station, run_id: int) -> tuple[object, ...]:
    """Everything of a run that a late write would change."""
    run = station.run(run_id)
    with station.database.read() as session:
        blocks = session.execute(select(BlockRow.seq, BlockRow.first_step).where(BlockRow.run_id == run_id)).all()
        checkpoints = session.execute(select(CheckpointRow.step, CheckpointRow.path).where(CheckpointRow.run_id == run_id)).all()
        history = session.scalars(select(Transition.seq).where(Transition.run_id == run_id)).all()
    return run.seq, run.step, run.beat, run.status, run.attempt, blocks, checkpoints, history


def test_a_cancel_is_over_before_the_step_in_progress_and_keeps_what_was_stored(station: Station) -> None:
    station.start("--slots", "1")
    run_id = station.submit(LONG)
    station.until_step(run_id, 1)
    begun = time.monotonic()
    station.until_step(run_id, 2)
    step_seconds = time.monotonic() - begun
    assert step_seconds > 2, f"a step takes {step_seconds:.1f} s here: it ends within the grace of a cancel"
    waiting = station.submit(LONG)  # the only slot is taken
    folder = station.data_dir / "runs" / str(run_id) / "checkpoints" / "attempt-1"
    station.until("the checkpoint of step 2", lambda: (folder / "step-0000000002.safetensors").exists())
    draft = folder / ".tmpA1b2C3"  # what a process leaves that is killed while it writes a checkpoint
    draft.write_bytes(b"half a checkpoint")
    trainer = station.trainer_of(run_id)

    asked = time.monotonic()
    station.cancel(waiting)
    assert station.run(waiting).status == "cancelled", "at once: nobody has to be asked"
    station.cancel(run_id)
    run = station.until_ended(run_id)
    seconds = time.monotonic() - asked

    assert (run.status, run.status_reason) == ("cancelled", "cancelled; the training step in progress was cut off")
    assert seconds < step_seconds, f"cancelled after {seconds:.1f} s of a step that takes {step_seconds:.1f} s"
    after = stored(station, run_id)
    assert station.losses(run_id)[0] == [1, 2], "the steps that ended"
    station.until("the end of its process", lambda: not trainer.is_running())
    station.until("a tidy folder", lambda: not draft.exists())
    time.sleep(0.5)  # a second process, or a thread of the worker, would write by now
    assert stored(station, run_id) == after, "nothing is written after the end"

    with station.database.write() as session:
        lifecycle.resume_run(session, run_id)
    station.until("its next attempt", lambda: "resumed after step 2" in " | ".join(station.reasons(run_id)))
