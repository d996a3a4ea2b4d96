"""Sweeps are listed, named and counted, no matter how their runs end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.access.scopes import needed_scope
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import CPU

pytestmark = [pytest.mark.spread, pytest.mark.both_engines, pytest.mark.slow]

GRID = {"train.seed": [1, 2, 3, 4, 5]}


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def sweep(client: httpx.Client, grid: dict[str, Any] = GRID, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = client.post("/api/sweeps", json={"base": BODY, "grid": grid} | more).raise_for_status().json()
    return made


def end(database: Database, *ends: tuple[str, dict[str, Any] | None]) -> None:
    """Claim the next queued runs and end them with these statuses and results."""
    for status, result in ends:
        with database.write() as session:
            claim = lifecycle.claim(session, "here:1:2", CPU)
            assert claim is not None
            lifecycle.finish(session, claim.run_id, claim.attempt, status, f"it is {status}", result)


def test_sweeps_are_listed_with_the_statuses_of_their_runs(client: httpx.Client, database: Database) -> None:
    assert client.get("/api/sweeps").json() == {"sweeps": [], "next_cursor": None}
    made = sweep(client, name="five seeds")
    assert (made["name"], made["finite"], made["total"], made["statuses"]) == ("five seeds", 0, 5, {"queued": 5})
    end(
        database,
        ("finished", {"train_loss": 0.5}),
        ("finished", {"train_loss": "NaN"}),
        ("diverged", {"train_loss": "Infinity"}),
        ("failed", None),
    )
    [listed] = client.get("/api/sweeps").json()["sweeps"]
    assert "runs" not in listed
    assert listed["statuses"] == {"diverged": 1, "failed": 1, "finished": 2, "queued": 1}
    assert (listed["finite"], listed["total"]) == (1, 5)
    assert {k: v for k, v in client.get("/api/sweeps/1").json().items() if k not in ("runs", "decisions")} == listed


def test_the_list_of_sweeps_can_be_read_page_by_page_and_filtered_by_name(client: httpx.Client) -> None:
    for name in ("Adam", "sgd 100%", None, "adam again", "sgd 1000"):
        sweep(client, {"train.seed": [1]}, name=name)
    first = client.get("/api/sweeps?limit=3").json()
    second = client.get(f"/api/sweeps?limit=3&cursor={first['next_cursor']}").json()
    assert [s["id"] for s in first["sweeps"] + second["sweeps"]] == [5, 4, 3, 2, 1]
    assert second["next_cursor"] is None
    assert [s["id"] for s in client.get("/api/sweeps?q=ADAM").json()["sweeps"]] == [4, 1]
    assert [s["id"] for s in client.get("/api/sweeps", params={"q": "100%"}).json()["sweeps"]] == [2]
    assert error_of(client.get("/api/sweeps?limit=0"), 422)["field"] == "limit"
    assert error_of(client.get("/api/sweeps?order=1"), 422)["field"] == "order"


def test_a_sweep_s_name_can_be_set_changed_and_reset(client: httpx.Client) -> None:
    made = sweep(client, {"train.seed": [1]}, base=BODY | {"name": "memory"})
    assert made["name"] == "memory"
    assert client.patch("/api/sweeps/1", json={"name": "maps"}).json()["name"] == "maps"
    assert client.patch("/api/sweeps/1", json={}).json()["name"] == "maps"
    assert client.get("/api/runs/1").json()["sweep_name"] == "maps"
    assert [run["sweep_name"] for run in client.get("/api/runs").json()["runs"]] == ["maps"]
    assert client.patch("/api/sweeps/1", json={"name": None}).json()["name"] == "memory"
    assert client.get("/api/runs/1").json()["sweep_name"] == "memory"
    assert error_of(client.patch("/api/sweeps/1", json={"name": ""}), 422)["field"] == "name"
    assert error_of(client.patch("/api/sweeps/1", json={"title": "x"}), 422)["field"] == "title"
    assert error_of(client.patch("/api/sweeps/9", json={"name": "x"}), 404)["field"] == "sweep_id"
    assert needed_scope("PATCH", "/api/sweeps/1") == "submit"


def test_only_the_submitter_and_administrators_can_rename_a_sweep(client: httpx.Client) -> None:
    made = [client.post("/api/tokens", json={"name": name, "scope": "submit"}).json()["secret"] for name in ("ada", "bob")]
    ada, bob = ({"Authorization": f"Bearer {secret}"} for secret in made)
    answer = client.post("/api/sweeps", json={"base": BODY, "grid": {"train.seed": [1]}}, headers=ada).raise_for_status().json()
    assert (answer["submitted_by"], answer["user"]) == (1, "ada")
    assert error_of(client.patch("/api/sweeps/1", json={"name": "bob's"}, headers=bob), 403)["code"] == "forbidden"
    for headers, name in ((ada, "ada's"), (None, "ours")):
        assert client.patch("/api/sweeps/1", json={"name": name}, headers=headers).json()["name"] == name


def test_a_run_outside_a_sweep_has_no_sweep_name(client: httpx.Client) -> None:
    assert client.post("/api/runs", json=BODY).json()["sweep_name"] is None


def test_a_sweep_still_exists_after_all_its_runs_are_deleted(client: httpx.Client) -> None:
    sweep(client, {"train.seed": [1, 2]}, name="gone")
    for number in (1, 2):
        client.post(f"/api/runs/{number}/cancel")
        client.delete(f"/api/runs/{number}").raise_for_status()
    assert client.get("/api/sweeps").json()["sweeps"][0]["total"] == 0
    assert client.get("/api/sweeps/1").json()["runs"] == []
    assert client.get("/api/sweeps/1/table").json()["rows"] == []
    for form in ("csv", "parquet", "markdown", "latex"):
        assert client.get(f"/api/sweeps/1/table?format={form}").is_success
    assert client.get("/api/sweeps/1/table?group_by=train.seed").json()["rows"] == []
    for page in ("/sweeps", "/sweeps/1"):
        assert client.get(page).is_success
    client.post("/api/runs/2/restore").raise_for_status()
    assert [row["run"] for row in client.get("/api/sweeps/1/table").json()["rows"]] == [2]
