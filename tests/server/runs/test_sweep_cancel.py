"""Cancelling a sweep: what waits ends at once, what trains is asked to stop, what has ended stays as it is."""

from __future__ import annotations

from pathlib import Path

from server.access.scopes import needed_scope
from server.database.connection import Database
from server.runs import lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import CPU, submitted


def test_all_open_runs_of_a_sweep_are_cancelled_and_no_other(database: Database, tmp_path: Path) -> None:
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


def test_it_takes_the_scope_that_cancels_runs() -> None:
    assert needed_scope("POST", "/api/sweeps/1/cancel") == "submit"
