"""The server's log names run and attempt for every write to a run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of
from tests.server.recording import CPU

pytestmark = pytest.mark.slow


def test_a_write_is_logged_with_its_run_and_attempt(database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stablessm.request")
    with client_of(application(database.url, tmp_path)) as client:
        run = client.post("/api/runs", json=BODY).json()["id"]
        with database.write() as session:
            assert lifecycle.claim(session, "tester", CPU) is not None
        client.post(f"/api/runs/{run}/cancel").raise_for_status()
        client.post(f"/api/runs/{run}/resume")  # refused, because the run is running
        client.post(f"/api/runs/{run}/clone").raise_for_status()
    lines = [vars(record) for record in caplog.records if record.name == "stablessm.request"]
    assert [(line["route"].rpartition("/")[2], line["run"], line.get("attempt")) for line in lines] == [
        ("runs", run, 0),
        ("cancel", run, 1),
        ("resume", run, None),
        ("clone", run, None),
    ]
