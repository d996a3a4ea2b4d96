"""If the response to a claim is lost, the run is returned to the queue at once and does not count as lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.settings import Settings
from stablessm_core.spec.config import parse_config
from worker.gpus import Booking
from worker.lanes import Lanes
from worker.process_pool import ProcessPool

pytestmark = pytest.mark.both_engines

MACHINE = {"devices": ["cpu"], "data": {}}


def test_a_run_whose_claim_response_was_lost_is_requeued_and_claimed_again(sqlite_url: str, tmp_path: Path) -> None:
    lanes = Lanes(
        Settings(data_dir=tmp_path, database_url=sqlite_url), ProcessPool(1, Booking([], tmp_path)), spool_bytes=1 << 20
    )
    database = Database(sqlite_url)
    with database.write() as session:
        for _ in range(2):
            lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}}))
    trained = lanes._claim(MACHINE)
    assert trained is not None
    with database.write() as session:  # the database committed the claim, but the connection broke before the response
        lost = lifecycle.claim(session, lanes.id, MACHINE)
    assert lost is not None
    lanes._claim_unanswered = True
    lanes._release_unknown()
    again = lanes._claim(MACHINE)
    assert again is not None
    assert (again.run_id, again.attempt) == (lost.run_id, 2)
    with database.read() as session:
        run, other = session.get_one(Run, lost.run_id), session.get_one(Run, trained.run_id)
    assert (run.workers_lost, other.attempt, other.status) == (0, 1, "running")
    database.close()
