"""A claim whose answer was lost: the run is given back at once instead of waiting for the reaper, and nobody counts as lost."""

from __future__ import annotations

from pathlib import Path

from server.database.connection import Database
from server.database.models import Run
from server.runs import lifecycle
from server.settings import Settings
from stablessm_core.config import parse_config
from worker.lanes import Lanes

MACHINE = {"devices": ["cpu"], "data": {}}


def test_a_run_held_without_knowing_it_is_given_back_and_claimed_again(sqlite_url: str, tmp_path: Path) -> None:
    lanes = Lanes(Settings(data_dir=tmp_path, database_url=sqlite_url), slots=1, spool_bytes=1 << 20)
    database = Database(sqlite_url)
    with database.write() as session:
        for _ in range(2):
            lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}}))
    trained = lanes._claim(MACHINE)
    assert trained is not None
    with database.write() as session:  # the server committed it, and the connection broke before it could say so
        lost = lifecycle.claim(session, lanes.id, MACHINE)
    assert lost is not None
    lanes._unsure = True
    lanes._give_back_unknown()
    again = lanes._claim(MACHINE)
    assert again is not None
    assert (again.run_id, again.attempt) == (lost.run_id, 2)
    with database.read() as session:
        run, other = session.get_one(Run, lost.run_id), session.get_one(Run, trained.run_id)
    assert (run.workers_lost, other.attempt, other.status) == (0, 1, "running")
    database.close()
