"""A cancel stops a run within a step of many seconds. Stored data stays unchanged, and the run can resume from this data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import BlockRow, CheckpointRow, Transition
from server.lifecycle import transitions as lifecycle
from tests.worker.station import Station

# A step takes many times the grace period of a cancel: 5 s on two idle cores.
LONG: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 1000},
    "model": {"d_model": 256, "d_state": 256, "n_layers": 2},
    "train": {"steps": 1000, "batch_size": 64, "eval_every": 0, "checkpoint_every": 1},
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def station(sqlite_url: str, tmp_path: Path) -> Iterator[Station]:
    station = Station(Database(sqlite_url), tmp_path / "state")
    yield station
    station.close()


def stored(station: Station, run_id: int) -> tuple[object, ...]:
    """Everything in the database that a late write to the run would change."""
    run = station.run(run_id)
    with station.database.read() as session:
        blocks = session.execute(select(BlockRow.seq, BlockRow.first_step).where(BlockRow.run_id == run_id)).all()
        checkpoints = session.execute(select(CheckpointRow.step, CheckpointRow.path).where(CheckpointRow.run_id == run_id)).all()
        history = session.scalars(select(Transition.seq).where(Transition.run_id == run_id)).all()
    return run.seq, run.step, run.beat, run.status, run.attempt, blocks, checkpoints, history


def test_a_cancel_takes_effect_before_a_long_step_ends_and_keeps_the_stored_data(station: Station) -> None:
    station.start("--slots", "1")
    run_id = station.submit(LONG)
    station.until_step(run_id, 1)
    begun = time.monotonic()
    station.until_step(run_id, 2)
    step_seconds = time.monotonic() - begun
    assert step_seconds > 2, f"a step takes only {step_seconds:.1f} s here, so it may end within the grace period of a cancel"
    waiting = station.submit(LONG)  # must wait, because the only slot is taken
    folder = station.data_dir / "runs" / str(run_id) / "checkpoints" / "attempt-1"
    station.until("the checkpoint of step 2", lambda: (folder / "step-0000000002.safetensors").exists())
    # The file that remains if a process is killed while it writes a checkpoint.
    draft = folder / ".tmpA1b2C3"
    draft.write_bytes(b"half a checkpoint")
    trainer = station.trainer_of(run_id)

    station.cancel(waiting)
    assert station.run(waiting).status == "cancelled", "a queued run must be cancelled at once"
    station.cancel(run_id)
    run = station.until_ended(run_id)

    assert (run.status, run.status_reason) == ("cancelled", "cancelled; the training step in progress was cut off")
    after = stored(station, run_id)
    assert station.losses(run_id)[0] == [1, 2], "all completed steps must be stored"
    station.until("the end of its process", lambda: not trainer.is_running())
    station.until("a tidy folder", lambda: not draft.exists())
    # By now, another process or a thread of the worker would have written.
    time.sleep(0.5)
    assert stored(station, run_id) == after, "nothing may be written after the end of the run"

    with station.database.write() as session:
        lifecycle.resume_run(session, run_id)
    station.until("its next attempt", lambda: "resumed after step 2" in " | ".join(station.reasons(run_id)))
