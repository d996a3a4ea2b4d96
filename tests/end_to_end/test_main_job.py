"""The main job with real processes: all in one with SQLite, and separate processes with PostgreSQL and Redis.

A run is submitted by REST and trains. Every ratio of every eigenvalue reaches the database and the live stream. A run
that diverges raises alerts. Two runs are compared.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import create_engine, text

from tests.installation import FINAL, Installation, events, hold_port

pytestmark = pytest.mark.slow

SMALL = {
    "task": {"name": "polynomial_memory", "length": 40},
    "model": {"d_model": 8, "d_state": 8, "reparameterization": {"name": "best"}},
    "train": {"steps": 120, "batch_size": 8, "eval_every": 60},
}
# One step of this size moves lambda = w far outside the unit circle: lambda^length overflows float32 in the next forward pass.
DIVERGING = {
    **SMALL,
    "model": {"d_model": 8, "d_state": 8, "reparameterization": {"name": "direct"}, "activation": "identity"},
    "optimizer": {"recurrent_lr": 50.0},
}
WAYS = [
    "sqlite-embedded",
    pytest.param("postgres-redis", marks=[pytest.mark.postgres, pytest.mark.redis]),
]


@contextmanager
def installed(folder: Path, database_url: str, broker_url: str | None = None) -> Iterator[Installation]:
    """Without a broker, starts `stablessm up`; with a broker, migrates and starts server and worker as separate processes."""
    held = hold_port()
    port = held.getsockname()[1]
    made = Installation(folder / "state", port)
    made.environment |= {"STABLESSM_DATABASE_URL": database_url, "STABLESSM_DATA_DIR": str(folder / "state")}
    try:
        if broker_url is None:
            made.start("up", "--port", str(port))
        else:
            made.environment["STABLESSM_BROKER_URL"] = broker_url
            assert made.start("migrate").wait(180) == 0, made.output()
            made.start("serve", "--port", str(port))
            made.start("worker")
        made.wait_until_ready()
        yield made
    finally:
        made.kill_all()
        held.close()


@pytest.fixture(scope="module", params=WAYS)
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("installation")
    if request.param == "sqlite-embedded":
        urls = [f"sqlite:///{folder / 'shared.db'}"]
    else:
        urls = [request.getfixturevalue(name) for name in ("module_postgres_url", "module_redis_url")]
    with installed(folder, *urls) as made:
        yield made


@pytest.fixture(scope="module")
def client(installation: Installation) -> Iterator[httpx.Client]:
    with installation.client() as client:
        yield client


@pytest.fixture(scope="module")
def stable(installation: Installation, client: httpx.Client) -> dict[str, Any]:
    return installation.wait_for_end(client, submit(client, SMALL))


@pytest.fixture(scope="module")
def diverged(installation: Installation, client: httpx.Client) -> dict[str, Any]:
    return installation.wait_for_end(client, submit(client, DIVERGING))


def submit(client: httpx.Client, config: dict[str, Any]) -> int:
    answer = client.post("/api/runs", json=config)
    assert answer.status_code == 201, answer.text
    assert answer.json()["status"] == "queued"
    return int(answer.json()["id"])


def series(client: httpx.Client, run_id: int, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/api/runs/{run_id}/series/{name}").raise_for_status().json()
    return answer


def test_a_submitted_run_trains_to_its_end(stable: dict[str, Any], client: httpx.Client) -> None:
    assert (stable["status"], stable["step"]) == ("finished", 120), stable["status_reason"]
    loss = series(client, stable["id"], "train/loss")
    assert loss["step"] == list(range(1, 121))
    assert sum(loss["value"][-20:]) < sum(loss["value"][:20])
    assert series(client, stable["id"], "eval/loss")["step"] == [60, 120]


def test_every_eigenvalue_of_every_step_is_stored(stable: dict[str, Any], client: httpx.Client) -> None:
    ratio = series(client, stable["id"], "ssm/0/grad_over_weight")
    weight = series(client, stable["id"], "ssm/0/weight")
    eigenvalue = series(client, stable["id"], "ssm/0/eigenvalue")
    assert ratio["step"] == weight["step"] == list(range(1, 121))
    assert all(len(row) == 8 and all(value > 0 for value in row) for row in ratio["value"])
    for row, lambda_row in zip(weight["value"], eigenvalue["value"], strict=True):
        assert lambda_row == pytest.approx([1 - 1 / (w * w + 0.5) for w in row], abs=1e-6)


def test_the_numbers_are_stored_in_the_configured_database(
    installation: Installation, stable: dict[str, Any], diverged: dict[str, Any]
) -> None:
    engine = create_engine(installation.environment["STABLESSM_DATABASE_URL"])
    with engine.connect() as connection:
        points = text("SELECT sum(point_count) FROM blocks WHERE run_id = :run AND group_name = 'ssm/0' AND level = 0")
        assert connection.scalar(points, {"run": stable["id"]}) == 120
        statuses = text("SELECT status FROM transitions WHERE run_id = :run ORDER BY seq")
        assert [row.status for row in connection.execute(statuses, {"run": stable["id"]})] == ["queued", "running", "finished"]
    engine.dispose()


def test_a_diverged_run_reports_its_last_step_and_raises_alerts(diverged: dict[str, Any], client: httpx.Client) -> None:
    assert diverged["status"] == "diverged", diverged["status_reason"]
    where = diverged["divergence"]
    assert where["step"] == diverged["step"] < 120
    alerts = client.get(f"/api/runs/{diverged['id']}/alerts").json()["alerts"]
    fatal = [a for a in alerts if a["kind"].startswith("nonfinite") and a["step"] == where["step"]]
    assert fatal, alerts
    assert all(a["severity"] == "critical" for a in fatal)
    assert {a["id"] for a in fatal} <= {a["id"] for a in client.get("/api/alerts").json()["alerts"]}


def test_the_non_finite_values_of_the_fatal_step_are_stored_unchanged(diverged: dict[str, Any], client: httpx.Client) -> None:
    step = diverged["divergence"]["step"]
    loss = series(client, diverged["id"], "train/loss")
    ratio = series(client, diverged["id"], "ssm/0/grad_over_weight")
    assert loss["step"][-1] == ratio["step"][-1] == step
    assert {"NaN", "Infinity", "-Infinity"} & {loss["value"][-1], *ratio["value"][-1]}


def test_the_live_stream_sends_every_step_once(installation: Installation, client: httpx.Client) -> None:
    config = {**SMALL, "train": {"steps": 600, "batch_size": 8, "eval_every": 0}}
    run_id = submit(client, config)
    ids, steps, statuses = follow(client, run_id)
    assert steps == list(range(1, 601))
    assert ids == sorted(set(ids))
    assert statuses[-1] == "finished"


def follow(client: httpx.Client, run_id: int) -> tuple[list[int], list[int], list[str]]:
    """(event ids, steps of the loss, statuses) of the live stream from the run's first event to its end."""
    ids: list[int] = []
    steps: list[int] = []
    statuses: list[str] = []
    with client.stream("GET", f"/api/runs/{run_id}/stream", headers={"Last-Event-ID": "0"}, timeout=150) as response:
        assert response.status_code == 200
        for event in events(response):
            data = json.loads(event["data"])
            if event.get("event") == "points":
                ids.append(int(event["id"]))
                loss = [s for s in data["series"] if s["name"] == "train/loss"]
                steps += [int(s) for one in loss for s in np.frombuffer(base64.b64decode(one["step"]["bdata"]), "<f8")]
            elif event.get("event") == "status":
                statuses.append(data["status"])
                if data["status"] in FINAL:
                    break
    return ids, steps, statuses


def test_two_runs_with_different_maps_are_compared(
    stable: dict[str, Any], diverged: dict[str, Any], client: httpx.Client
) -> None:
    answer = client.get("/api/compare", params={"runs": f"{stable['id']},{diverged['id']}"})
    assert answer.status_code == 200, answer.text
    told = answer.text
    assert "model.reparameterization.name" in told
    assert '"best"' in told
    assert '"direct"' in told
    assert '"diverged"' in told


def test_a_running_run_is_cancelled_and_resumed(installation: Installation, client: httpx.Client) -> None:
    config = {**SMALL, "train": {"steps": 1_000_000, "batch_size": 8, "checkpoint_every": 50}}
    run_id = submit(client, config)
    installation.wait_for_step(client, run_id, 60)
    assert client.post(f"/api/runs/{run_id}/cancel").status_code == 200
    cancelled = installation.wait_for_end(client, run_id)
    assert cancelled["status"] == "cancelled"
    assert client.post(f"/api/runs/{run_id}/resume").status_code == 200
    installation.wait_for_step(client, run_id, cancelled["step"] + 10)
    client.post(f"/api/runs/{run_id}/cancel")
    ended = installation.wait_for_end(client, run_id)
    assert ended["attempt"] == cancelled["attempt"] + 1
    kept = series(client, run_id, "train/loss")["step"] if ended["step"] <= 2000 else None
    assert kept is None or kept == list(range(1, ended["step"] + 1))


def test_a_refused_submission_names_the_field(client: httpx.Client) -> None:
    answer = client.post("/api/runs", json={"task": {"name": "digits"}, "train": {"steps": -1}})
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "train.steps"
    assert ">= 1" in answer.json()["error"]["allowed"]


def test_a_request_without_a_token_is_refused(installation: Installation, stable: dict[str, Any]) -> None:
    assert httpx.get(f"{installation.url}/api/runs", timeout=60).status_code == 401
    assert httpx.get(f"{installation.url}/healthz", timeout=60).status_code == 200


def test_the_token_file_is_readable_only_by_its_owner(installation: Installation) -> None:
    token = Path(installation.data_dir) / "token"
    assert token.stat().st_mode & 0o777 == 0o600


@pytest.mark.postgres
def test_a_run_trains_on_postgresql_without_a_broker(empty_postgres_url: str, tmp_path: Path) -> None:
    with installed(tmp_path, empty_postgres_url) as made, made.client() as client:
        ended = made.wait_for_end(client, submit(client, SMALL))
        assert (ended["status"], ended["step"]) == ("finished", 120), ended["status_reason"]
