"""A worker that serves one named queue trains the runs that a server submits to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.database.connection import Database
from tests.server.http_service import application, client_of
from tests.worker.station import SMALL, Station


@pytest.mark.slow
def test_a_run_submitted_to_the_queue_of_the_only_worker_is_trained(sqlite_url: str, tmp_path: Path) -> None:
    station = Station(Database(sqlite_url), tmp_path / "state")
    try:
        station.start("--slots", "1", "--queues", "night")
        with client_of(application(sqlite_url, tmp_path)) as client:

            def ready() -> bool:
                return any(worker["capabilities"].get("devices") for worker in client.get("/api/workers").json()["workers"])

            station.until("worker", ready)
            answer = client.post("/api/runs", json=SMALL | {"train": {"steps": 3}}, params={"queue": "night"})
            assert answer.status_code == 201, answer.text
            assert station.until_ended(answer.json()["id"]).status == "finished"
    finally:
        station.close()
