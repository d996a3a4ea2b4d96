"""Runs over REST: submit, list, show, change, cancel, delete, resume."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event, func, select

from server.database.connection import Database
from server.database.models import BlockRow, Run
from server.lifecycle import transitions as lifecycle
from server.series.alerts import insert_alerts
from stablessm_core.spec.config import RunConfig
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import CPU, Recording, claim, nonfinite

pytestmark = [pytest.mark.spread, pytest.mark.slow]


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def submit(client: httpx.Client, body: dict[str, Any] = BODY, **headers: str) -> dict[str, Any]:
    answer = client.post("/api/runs", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    run: dict[str, Any] = answer.json()
    return run


def test_a_submitted_run_is_queued_with_its_complete_configuration(client: httpx.Client) -> None:
    run = submit(client, {"task": {"name": "polynomial_memory"}, "optimizer": {"lr": 0.02}, "tags": ["a"]})
    assert (run["id"], run["status"], run["url"], run["tags"]) == (1, "queued", "/runs/1", ["a"])
    assert run["config"]["optimizer"]["lr"] == 0.02
    assert RunConfig.model_validate(run["config"]).train.steps == run["steps"] == 1000
    assert run == client.get("/api/runs/1").json()


def test_a_queued_run_reports_its_waiting_reason(client: httpx.Client, database: Database) -> None:
    assert "none is known" in submit(client)["waits_for"]
    with database.write() as session:
        lifecycle.register_worker(session, "w:1:1", "w", 1, CPU)
    assert submit(client)["waits_for"] == "a free worker"


def test_a_run_that_no_worker_can_train_is_refused(client: httpx.Client, database: Database) -> None:
    with database.write() as session:
        lifecycle.register_worker(session, "w:1:1", "w", 1, CPU)
    error = error_of(client.post("/api/runs", json=BODY | {"train": {"device": "cuda"}}), 422)
    assert error["field"] == "train.device"
    assert error["allowed"] == "auto, cpu"
    with database.write() as session:
        lifecycle.register_worker(session, "w:1:1", "w", 1, CPU | {"backends": ["reference", "torch"]})
    error = error_of(client.post("/api/runs", json=BODY | {"train": {"scan_backend": "triton"}}), 422)
    assert (error["field"], error["allowed"]) == ("train.scan_backend", "auto, reference, torch")
    error = error_of(client.post("/api/runs", json={"task": {"name": "char_lm", "file": "nowhere.txt"}}), 422)
    assert error["field"] in ("task.name", "task.file")
    assert "nowhere.txt" in error["message"]


def test_no_run_is_refused_while_a_worker_is_still_starting(client: httpx.Client, database: Database) -> None:
    with database.write() as session:
        lifecycle.register_worker(session, "w:1:1", "w", 1, {})
    assert submit(client, BODY | {"train": {"device": "cuda"}})["waits_for"] == "a worker that is still starting"


def test_missing_and_damaged_data_is_refused_with_path_and_reason(sqlite: Database, tmp_path: Path) -> None:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    with client_of(application(sqlite.url, tmp_path, data_root=tmp_path / "data")) as client:
        error = error_of(client.post("/api/runs", json={"task": {"name": "mnist"}}), 422)
        assert error["field"] == "task.name"
        assert "STABLESSM_DATA/mnist/" in error["message"]
        assert str(tmp_path) not in error["message"]
        (tmp_path / "data" / "book.txt").write_bytes(b"\xff\xfe\x00")
        error = error_of(client.post("/api/runs", json={"task": {"name": "char_lm", "file": "book.txt"}}), 422)
        assert error["field"] == "task.file"
        assert "book.txt" in error["message"]
        (tmp_path / "data" / "book.txt").write_text("once upon a time " * 200)
        assert submit(client, {"task": {"name": "char_lm", "file": "book.txt", "length": 8}})["status"] == "queued"


@pytest.mark.both_engines
def test_an_idempotency_key_submits_only_one_run(client: httpx.Client) -> None:
    first = client.post("/api/runs", json=BODY, headers={"Idempotency-Key": "k"})
    again = client.post("/api/runs", json=BODY, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = client.post("/api/runs", json=BODY | {"train": {"steps": 7}}, headers={"Idempotency-Key": "k"})
    assert error_of(other, 409)["field"] == "Idempotency-Key"
    assert len(client.get("/api/runs").json()["runs"]) == 1


@pytest.mark.both_engines
def test_the_same_idempotency_key_of_another_token_or_queue_submits_another_run(client: httpx.Client) -> None:
    def submitted(token: str | None = None, **params: str) -> tuple[int, int]:
        headers = {"Idempotency-Key": "nightly"} | ({"Authorization": f"Bearer {token}"} if token else {})
        answer = client.post("/api/runs", json=BODY, params=params, headers=headers)
        return answer.status_code, answer.json()["id"]

    secrets = [client.post("/api/tokens", json={"name": n, "scope": "submit"}).json()["secret"] for n in "ab"]
    first = {
        "owner": submitted(),
        "a": submitted(secrets[0]),
        "b by night": submitted(secrets[1], queue="night"),
        "b": submitted(secrets[1]),
    }
    assert {status for status, _ in first.values()} == {201}
    again = [submitted(), submitted(secrets[0]), submitted(secrets[1], queue="night"), submitted(secrets[1])]
    assert again == [(200, run_id) for _, run_id in first.values()]
    assert len({run_id for _, run_id in again}) == 4


@pytest.mark.both_engines
def test_an_idempotency_key_stored_by_an_older_server_still_finds_its_run(client: httpx.Client, database: Database) -> None:
    with database.write() as session:
        lifecycle.submit(session, RunConfig.model_validate(BODY), idempotency_key="k")
    token = client.post("/api/tokens", json={"name": "a", "scope": "submit"}).json()["secret"]
    key, other = {"Idempotency-Key": "k"}, {"Idempotency-Key": "k", "Authorization": f"Bearer {token}"}
    assert client.post("/api/runs", json=BODY, headers=key).json()["id"] == 1
    assert error_of(client.post("/api/runs", json=BODY | {"train": {"steps": 7}}, headers=key), 409)["message"].startswith("'k'")
    assert client.post("/api/runs", json=BODY, headers=other).status_code == 201
    assert client.post("/api/runs", json=BODY, headers=key, params={"queue": "night"}).status_code == 201


@pytest.mark.both_engines
def test_runs_are_filtered_sorted_and_read_page_by_page(client: httpx.Client) -> None:
    for lr in (0.001, 0.01, 0.1):
        for name in ("best", "direct"):
            submit(client, BODY | {"optimizer": {"lr": lr}, "model": {"reparameterization": {"name": name}}})
    found = client.get("/api/runs", params={"q": "reparam=best lr>=0.005", "sort": "lr"}).json()["runs"]
    assert [run["config"]["optimizer"]["lr"] for run in found] == [0.01, 0.1]
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = client.get("/api/runs", params={"limit": 4} | ({"cursor": cursor} if cursor else {})).json()
        seen += [run["id"] for run in page["runs"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("query", "field"),
    [("q=nothing>1", "q"), ("status=gone", "status"), ("sort=weather", "sort"), ("cursor=abc", "cursor"), ("limit=0", "limit"),
     ("limit=many", "limit"), ("stauts=failed", "stauts")],
)  # fmt: skip
def test_an_invalid_list_query_is_refused(client: httpx.Client, query: str, field: str) -> None:
    error = error_of(client.get(f"/api/runs?{query}"), 422)
    assert error["field"] == field
    assert "allowed" in error or field == "limit"


@pytest.mark.parametrize("path", ["/api/runs", "/api/compare", "/api/alerts", "/", "/compare"])
def test_an_invalid_filter_gives_the_same_error_on_every_page_and_api(client: httpx.Client, path: str) -> None:
    answer = client.get(path, params={"q": "lr>0.1 status=finnished"}, headers={"Accept": "text/html"})
    if path.startswith("/api"):
        error = error_of(answer, 422)
        assert error["message"] == "q: status is never 'finnished'; did you mean finished? (at character 15)"
        assert (error["field"], error["allowed"]) == ("q", "queued, running, finished, failed, diverged, cancelled, lost")
    else:
        assert answer.status_code == 422
        assert "status=<mark>finnished</mark>" in answer.text
        assert "queued, running, finished" in answer.text


@pytest.mark.both_engines
def test_the_filter_submitted_by_me_selects_the_runs_of_the_requesting_user(client: httpx.Client, database: Database) -> None:
    token = client.post("/api/tokens", json={"name": "carol", "scope": "submit"}).json()["secret"]
    carol = {"Authorization": f"Bearer {token}"}
    submit(client)
    submit(client, **carol)
    with database.write() as session:
        for run_id in (1, 2):
            insert_alerts(session, run_id, 1, [nonfinite()], 1)
    for headers, own in (({}, 1), (carol, 2)):
        mine = {"params": {"q": "submitted_by=me alerts>0"}, "headers": headers}
        for name in ("runs", "compare"):
            assert [run["id"] for run in client.get(f"/api/{name}", **mine).json()["runs"]] == [own]
        assert [alert["run_id"] for alert in client.get("/api/alerts", **mine).json()["alerts"]] == [own]


def test_name_tags_and_notes_can_be_changed(client: httpx.Client) -> None:
    submit(client, BODY | {"name": "before"})
    changed = client.patch("/api/runs/1", json={"name": "after", "tags": ["x"], "notes": "seed 3"}).json()
    assert (changed["name"], changed["tags"], changed["notes"]) == ("after", ["x"], "seed 3")
    assert client.patch("/api/runs/1", json={"name": None}).json()["name"] is None
    assert client.get("/api/runs/1").json()["tags"] == ["x"]
    assert error_of(client.patch("/api/runs/1", json={"status": "finished"}), 422)["field"] == "status"


def test_a_run_is_cancelled_resumed_and_deleted(client: httpx.Client) -> None:
    submit(client)
    assert error_of(client.delete("/api/runs/1"), 409)["field"] == "status"
    assert error_of(client.post("/api/runs/1/resume"), 409)["field"] == "status"
    assert client.post("/api/runs/1/cancel").json()["status"] == "cancelled"
    assert error_of(client.post("/api/runs/1/cancel"), 409)["code"] == "conflict"
    assert client.post("/api/runs/1/resume").json()["status"] == "queued"
    client.post("/api/runs/1/cancel")
    assert client.delete("/api/runs/1").status_code == 204
    error_of(client.get("/api/runs/1"), 404)


@pytest.mark.both_engines
def test_deleting_a_run_for_good_deletes_its_recorded_numbers(client: httpx.Client, database: Database, tmp_path: Path) -> None:
    submit(client)
    recording = Recording(database, claim(database))
    recording.write(20)
    with database.write() as session:
        lifecycle.finish(session, 1, recording.claim.attempt, "finished")
    assert client.delete("/api/runs/1").status_code == 204
    error_of(client.get("/api/runs/1/series"), 404)
    assert client.delete("/api/trash/1").status_code == 204
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(BlockRow)) == 0
        assert session.get(Run, 1) is None


def test_a_running_run_shows_its_progress_and_cancelling_requests_its_stop(client: httpx.Client, database: Database) -> None:
    submit(client, BODY | {"train": {"steps": 200}})
    Recording(database, claim(database)).write(50)
    run = client.get("/api/runs/1").json()
    assert (run["status"], run["step"], run["progress"], run["worker"]) == ("running", 50, 0.25, "tester")
    assert run["eta_seconds"] == pytest.approx(1.5)
    answer = client.post("/api/runs/1/cancel").json()
    assert (answer["status"], answer["cancel_requested"]) == ("running", True)


def test_a_clone_keeps_the_configuration_except_for_the_requested_changes(client: httpx.Client) -> None:
    submit(client, BODY | {"optimizer": {"lr": 0.5}, "model": {"d_state": 7}})
    clone = client.post("/api/runs/1/clone", json={"set": {"optimizer.lr": 0.25}}).json()
    assert (clone["id"], clone["cloned_from"], clone["config"]["optimizer"]["lr"]) == (2, 1, 0.25)
    assert clone["config"]["model"]["d_state"] == 7
    assert client.post("/api/runs/1/clone").json()["config"] == client.get("/api/runs/1").json()["config"]
    assert error_of(client.post("/api/runs/1/clone", json={"set": {"optimizer.lr": -1}}), 422)["field"] == "optimizer.lr"
    assert error_of(client.post("/api/runs/1/clone", json={"set": {"task.name.x": 1}}), 422)["field"] == "task.name.x"


def test_a_diverged_run_reports_the_place_and_the_non_finite_values_of_its_divergence(
    client: httpx.Client, database: Database
) -> None:
    submit(client)
    taken = claim(database)
    where = {"step": 58, "layer": 0, "eigenvalue": 31, "tensor": "w.grad", "value": "NaN"}
    with database.write() as session:
        lifecycle.finish(session, 1, taken.attempt, "diverged", "not finite", {"train_loss": float("nan")}, where)
    run = client.get("/api/runs/1").json()
    assert (run["status"], run["divergence"], run["result"]) == ("diverged", where, {"train_loss": "NaN"})


@pytest.mark.both_engines
def test_each_response_about_runs_takes_one_query_whatever_the_number_of_runs(client: httpx.Client, database: Database) -> None:
    ids = [submit(client)["id"] for _ in range(3)]
    for run_id in ids:  # ends the runs, because the list explains what each queued run waits for
        client.post(f"/api/runs/{run_id}/cancel")
    asked: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        # Only statements of requests count, because other parts of the server also read the database.
        if threading.current_thread().name.startswith("AnyIO"):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        for path in ("/api/runs", f"/api/runs/{ids[0]}", f"/api/runs/{ids[0]}/series", "/api/alerts"):
            asked.clear()
            assert client.get(path).status_code == 200
            of_runs = [s for s in asked if s.startswith("SELECT") and ("runs." in s or "alerts." in s)]
            # the answer for one run has the newest values of all its scalars, which a second query reads
            assert len(of_runs) == (2 if path == f"/api/runs/{ids[0]}" else 1), of_runs
    finally:
        event.remove(Engine, "before_cursor_execute", note)
