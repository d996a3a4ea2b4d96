"""The trash over HTTP: only administrators delete runs, list the trash, restore runs and delete them permanently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.http_service import BODY, application, client_of, error_of

pytestmark = pytest.mark.slow


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database_url, tmp_path)) as client:
        yield client


def ended(client: httpx.Client, **options: str) -> int:
    number: int = client.post("/api/runs", json=BODY, headers=options).raise_for_status().json()["id"]
    client.post(f"/api/runs/{number}/cancel").raise_for_status()
    return number


def test_a_deleted_run_is_invisible_until_it_is_restored(client: httpx.Client) -> None:
    run, other = ended(client), ended(client)
    before = client.get(f"/api/runs/{run}").json()
    assert client.delete(f"/api/runs/{run}").status_code == 204
    for method, path in (
        *(
            ("GET", f"/api/runs/{run}{part}")
            for part in (
                "",
                "/series",
                "/series/train/loss",
                "/alerts",
                "/stream",
                "/figures/loss",
                "/log",
                "/history",
                "/checkpoints",
            )
        ),
        *(("POST", f"/api/runs/{run}{part}") for part in ("/cancel", "/resume", "/clone")),
        *(("PATCH", f"/api/runs/{run}"), ("DELETE", f"/api/runs/{run}")),
    ):
        body = {"json": {}} if method in ("POST", "PATCH") and not path.endswith(("cancel", "resume")) else {}
        refused = error_of(client.request(method, path, **body), 404)
        if not path.endswith("stream"):
            assert refused["message"].startswith(f"run {run} is in the trash: settings deleted it at "), path
            assert refused["allowed"] == f"POST /api/runs/{run}/restore restores it"
    assert f"run {run} is in the trash" in client.get(f"/runs/{run}", headers={"Accept": "text/html"}).text
    assert [one["id"] for one in client.get("/api/runs").json()["runs"]] == [other]
    assert error_of(client.get(f"/api/compare?runs={run}"), 404)["message"] == f"there is no run {run}"
    assert 'stablessm_runs{status="cancelled"} 1.0' in client.get("/metrics").text
    (shown,) = client.get("/api/trash").json()["runs"]
    assert (shown["id"], shown["deleted_by"], shown["task"]) == (run, "settings", "polynomial_memory")
    assert shown["until"] == shown["deleted_at"] + 24 * 3600
    assert client.post(f"/api/runs/{run}/restore").json() == before | {"seq": before["seq"] + 2}
    assert client.get("/api/trash").json()["runs"] == []
    assert error_of(client.post(f"/api/runs/{run}/restore"), 409)["message"] == f"run {run} is not in the trash"
    assert error_of(client.post("/api/runs/99/restore"), 404)["message"] == "there is no run 99"


def test_the_trash_is_listed_page_by_page_with_the_stored_bytes(client: httpx.Client) -> None:
    runs = [ended(client) for _ in range(3)]
    for run in runs[:2]:
        client.delete(f"/api/runs/{run}")
    first = client.get("/api/trash?limit=1").json()
    rest = client.get("/api/trash", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert [run["id"] for run in (*first["runs"], *rest["runs"])] == [runs[1], runs[0]]
    assert rest["next_cursor"] is None
    assert (first["kept"], first["trash"]) == ({"runs": 1, "bytes_stored": 0}, {"runs": 2, "bytes_stored": 0})
    assert error_of(client.get("/api/trash?cursor=x"), 422)["field"] == "cursor"


def test_a_run_that_is_deleted_from_the_trash_cannot_be_restored(client: httpx.Client) -> None:
    run = ended(client)
    assert error_of(client.delete(f"/api/trash/{run}"), 404)["message"] == f"run {run} is not in the trash"
    client.delete(f"/api/runs/{run}")
    assert client.delete(f"/api/trash/{run}").status_code == 204
    assert error_of(client.get(f"/api/runs/{run}"), 404)["message"] == f"there is no run {run}"
    assert error_of(client.post(f"/api/runs/{run}/restore"), 404)


def test_without_a_trash_deleting_is_permanent_at_once(database_url: str, tmp_path: Path) -> None:
    with client_of(application(database_url, tmp_path, trash_hours=0)) as client:
        run = ended(client)
        assert client.delete(f"/api/runs/{run}").status_code == 204
        assert client.get("/api/trash").json()["trash"]["runs"] == 0
        assert error_of(client.get(f"/api/runs/{run}"), 404)["message"] == f"there is no run {run}"


def test_only_administrators_can_delete_and_restore_runs(client: httpx.Client) -> None:
    run = ended(client)
    client.delete(f"/api/runs/{run}")
    secret = client.post("/api/tokens", json={"name": "mia", "scope": "submit"}).json()["secret"]
    mia = {"Authorization": f"Bearer {secret}"}
    for method, path in (("DELETE", f"/api/runs/{run}"), ("POST", f"/api/runs/{run}/restore"), ("DELETE", f"/api/trash/{run}")):
        assert error_of(client.request(method, path, headers=mia), 403)["allowed"] == "admin"
    assert client.get("/api/trash", headers=mia).status_code == 200
    assert client.get("/trash", headers=mia | {"Accept": "text/html"}).status_code == 200


def test_a_queued_run_cannot_be_deleted_and_the_idempotency_key_of_a_trashed_run_is_refused(client: httpx.Client) -> None:
    run = client.post("/api/runs", json=BODY, headers={"Idempotency-Key": "k"}).json()["id"]
    assert error_of(client.delete(f"/api/runs/{run}"), 409)["allowed"] == "cancel it first"
    client.post(f"/api/runs/{run}/cancel")
    client.delete(f"/api/runs/{run}")
    refused = error_of(client.post("/api/runs", json=BODY, headers={"Idempotency-Key": "k"}), 409)
    assert refused["field"] == "Idempotency-Key"
    assert f"belongs to run {run}, which is in the trash" in refused["message"]
