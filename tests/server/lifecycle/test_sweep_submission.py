"""Sweeps are submitted together: quickly, once per idempotency key, and completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event, func, select

from server.database.connection import Database
from server.database.models import Run, Transition
from server.lifecycle.sweep_submission import submit_sweep
from tests.server.http_service import BODY, application, client_of, error_of, settings

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]

BIG = {"optimizer.lr": [1e-4 * i for i in range(1, 51)], "train.seed": list(range(10))}
SMALL = {"train.seed": [1, 2, 3]}


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def submit(client: httpx.Client, key: str | None = None, **body: Any) -> httpx.Response:
    return client.post("/api/sweeps", json={"base": BODY, "grid": SMALL} | body, headers={"Idempotency-Key": key} if key else {})


def test_five_hundred_runs_need_few_statements_and_keep_the_order_of_the_grid(database: Database, tmp_path: Path) -> None:
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    base = BODY | {"tags": ["paper"]}
    number, new = submit_sweep(database, settings(database.url, tmp_path), base, grid=BIG, name="big")
    assert (number, new) == (1, True)
    assert len(statements) < 40, len(statements)  # one per run would be over a thousand
    with database.read() as session:
        runs = session.scalars(select(Run).order_by(Run.id)).all()
        first = session.execute(select(Transition.run_id, Transition.status, Transition.reason, Transition.seq)).all()
    assert [(run.config["optimizer"]["lr"], run.config["train"]["seed"]) for run in runs] == [
        (rate, seed) for rate in BIG["optimizer.lr"] for seed in BIG["train.seed"]
    ]
    assert {(run.status, run.seq, run.needs_task, tuple(run.tags), run.sweep_id) for run in runs} == {
        ("queued", 1, "polynomial_memory", ("paper",), 1)
    }
    assert sorted(first) == [(run.id, "queued", "submitted", 1) for run in runs]


def test_one_invalid_cell_leaves_nothing_behind(client: httpx.Client, database: Database) -> None:
    error = error_of(submit(client, grid={"optimizer.lr": [0.1, -1.0]}), 422)
    assert (error["field"], "optimizer.lr=-1.0" in error["message"]) == ("grid.optimizer.lr", True)
    assert client.get("/api/sweeps").json()["sweeps"] == []
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(Run)) == 0


def test_a_sweep_may_have_two_thousand_runs_and_no_more(client: httpx.Client) -> None:
    error = error_of(submit(client, grid={"train.seed": list(range(2001))}), 422)
    assert (error["field"], error["allowed"]) == ("grid", "at most 2,000 combinations")
    made = submit(client, grid={"train.seed": list(range(2000))})
    assert (made.status_code, made.json()["total"], len(made.json()["runs"])) == (201, 2000, 2000)


def test_a_repeated_request_with_the_same_key_submits_one_sweep(client: httpx.Client) -> None:
    first, again = submit(client, "k"), submit(client, "k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["runs"] == again.json()["runs"]
    assert again.headers["Location"] == "/api/sweeps/1"
    error = error_of(submit(client, "k", grid={"train.seed": [1]}), 409)
    assert (error["field"], "sweep 1" in error["message"]) == ("Idempotency-Key", True)
    assert submit(client, "another").json()["id"] != 1
    assert submit(client, "k", queue="gpu").status_code == 201  # as for runs, a key belongs to a queue
    assert submit(client).status_code == 201
    assert error_of(submit(client, "k" * 201), 422)["field"] == "idempotency-key"


def test_a_key_of_another_token_is_another_key(client: httpx.Client) -> None:
    secrets = [client.post("/api/tokens", json={"name": name, "scope": "submit"}).json()["secret"] for name in ("ada", "bob")]
    for number, secret in enumerate(secrets, 1):
        headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": "k"}
        answer = client.post("/api/sweeps", json={"base": BODY, "grid": SMALL}, headers=headers)
        assert (answer.status_code, answer.json()["id"]) == (201, number)
