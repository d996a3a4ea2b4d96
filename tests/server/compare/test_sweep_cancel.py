"""Cancelling a sweep: queued runs end at once, running runs are asked to stop, and ended runs stay unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.access.scopes import needed_scope
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import CPU, submitted

pytestmark = pytest.mark.both_engines


@pytest.mark.slow
def test_cancelling_a_sweep_cancels_exactly_its_open_runs(database: Database, tmp_path: Path) -> None:
    with client_of(application(database.url, tmp_path)) as client:
        sweep = client.post("/api/sweeps", json={"base": BODY, "grid": {"train.seed": [1, 2, 3, 4]}}).json()
        other = submitted(database)
        with database.write() as session:
            first, second = (lifecycle.claim(session, "tester", CPU) for _ in range(2))
            assert first is not None
            assert second is not None
            lifecycle.finish(session, first.run_id, first.attempt, "finished")
        for _ in range(2):  # asking twice is harmless
            answer = client.post(f"/api/sweeps/{sweep['id']}/cancel").raise_for_status().json()
            states = {run["id"]: (run["status"], run["cancel_requested"]) for run in answer["runs"]}
            assert states.pop(first.run_id) == ("finished", False)
            assert states.pop(second.run_id) == ("running", True)
            assert list(states.values()) == [("cancelled", False)] * 2
        assert client.get(f"/api/runs/{other}").json()["status"] == "queued"
        assert error_of(client.post("/api/sweeps/99/cancel"), 404)["field"] == "sweep_id"
        assert "Cancel its runs" in client.get(f"/sweeps/{sweep['id']}").text


def test_cancelling_a_sweep_requires_the_submit_scope() -> None:
    assert needed_scope("POST", "/api/sweeps/1/cancel") == "submit"
