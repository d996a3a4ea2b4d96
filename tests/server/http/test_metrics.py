"""Prometheus' own parser reads the metrics, and readiness reports the failed check within its time limit."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete, text, update

from server.backup.create import MARK, backup
from server.database.connection import Database
from server.database.models import AlertRow, Run, Worker
from server.lifecycle import transitions as lifecycle
from server.lifecycle.autopsies import STATES
from server.webhooks.registry import MAX_FAILURES, new_webhook
from stablessm_core.telemetry.detectors.raised_elsewhere import TRAINER_CRASHED, WORKER_LOST
from tests.server.http_service import application, client_of, error_of
from tests.server.recording import Recording, claim, claimed, nonfinite, submitted
from worker.metrics import LaneCounts, WorkerCollector
from worker.write_statistics import zeros

pytestmark = pytest.mark.slow

GPU_METRICS = {"stablessm_gpu_memory_used_bytes", "stablessm_gpu_memory_bytes", "stablessm_gpu_utilization_ratio"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text_: str) -> Samples:
    """Samples by name and labels, parsed by Prometheus' own client. Asserts that names are unique and histograms complete."""
    families = list(text_string_to_metric_families(text_))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation and family.type != "unknown" for family in families)
    samples: Samples = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"stablessm_{name}", frozenset(labels.items())]


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def scrape(client: httpx.Client) -> Samples:
    return read(client.get("/metrics").raise_for_status().text)


def test_the_metrics_show_queue_workers_alerts_and_writes(client: httpx.Client, database: Database) -> None:
    late, run = claimed(database), claimed(database)
    with database.write() as session:
        lifecycle.finish(session, late.run_id, late.attempt, "cancelled")
        session.execute(update(Run).where(Run.id == late.run_id).values(started_at=Run.created_at + 900))
    Recording(database, run).write(4, [nonfinite()])
    waiting = [submitted(database) for _ in range(3)]
    writes = zeros() | {
        "counts": [5, 0, 2, *[0] * 10],
        "sum": 0.25,
        "values_recorded": 900,
        "values_stored": 700,
        "spool_bytes": 80,
    }
    with database.write() as session:
        lifecycle.register_worker(session, 'a"b\\c\n', "here", 2, {"devices": ["cpu"], "writes": writes})
        session.execute(update(Run).where(Run.id == waiting[0]).values(queue="gpu"))
        session.execute(update(Run).where(Run.id == waiting[1]).values(created_at=Run.created_at - 100))
    samples = scrape(client)
    assert value(samples, "runs", status="running") == 1
    assert (value(samples, "queue_depth", queue="default"), value(samples, "queue_depth", queue="gpu")) == (2, 1)
    assert 100 <= value(samples, "queue_oldest_seconds", queue="default") < 200
    assert 0 <= value(samples, "queue_oldest_seconds", queue="gpu") < 100
    assert 900 <= value(samples, "claim_delay_seconds_sum") < 1500
    assert value(samples, "claim_delay_seconds_count") == value(samples, "claim_delay_seconds_bucket", le="+Inf") == 2
    assert [value(samples, "claim_delay_seconds_bucket", le=bound) for bound in ("300", "1800")] == [1, 2]
    assert value(samples, "alerts", severity="critical") == 1
    assert (value(samples, "workers_alive"), value(samples, "worker_slots")) == (1, 2)
    worker = {"worker": 'a"b\\c\n'}
    assert 0 <= value(samples, "worker_heartbeat_age_seconds", **worker) < 100
    assert [value(samples, f"values_{what}_total", **worker) for what in ("recorded", "stored", "dropped")] == [900, 700, 0]
    assert value(samples, "spool_bytes", **worker) == 80
    assert value(samples, "write_delay_seconds_bucket", **worker, le="0.01") == 5
    assert value(samples, "write_delay_seconds_bucket", **worker, le="+Inf") == 7
    assert (value(samples, "write_delay_seconds_sum", **worker), value(samples, "write_delay_seconds_count", **worker)) == (
        0.25,
        7,
    )


def test_a_run_lost_with_its_worker_is_counted(client: httpx.Client, database: Database) -> None:
    run = claimed(database)
    with database.write() as session:
        lifecycle.release(session, run.run_id, run.attempt, "gone", loss=WORKER_LOST)
    run = claim(database)
    with database.write() as session:  # the worker is alive, but its training process crashed
        lifecycle.release(session, run.run_id, run.attempt, "crashed", loss=TRAINER_CRASHED)
    assert value(scrape(client), "runs_reaped_total") == 1
    with database.write() as session:
        session.execute(delete(AlertRow))
    assert value(scrape(client), "runs_reaped_total") == 1, "a counter must never decrease"


def test_requests_are_measured_by_route_with_bounded_labels(client: httpx.Client, database: Database) -> None:
    run = submitted(database)
    for _ in range(3):
        client.get(f"/api/runs/{run}").raise_for_status()
    for number in range(20):
        assert client.get(f"/api/runs/{1000 + number}").status_code == 404
        assert client.get(f"/nothing/{number}").status_code == 404
        client.request(f"METHOD{number}", f"/api/runs/{number}")
        client.get("/api/runs", headers={"Authorization": "Bearer wrong-wrong-wrong"})
    samples = scrape(client)
    one = {"method": "GET", "route": "/api/runs/{run_id}"}
    assert value(samples, "http_requests_total", **one, status="2xx") == 3
    assert value(samples, "http_requests_total", **one, status="4xx") == 20
    assert 0 < value(samples, "http_route_seconds_total", route="/api/runs/{run_id}") < 60
    kinds = {kind: value(samples, "http_request_seconds_count", kind=kind) for kind in ("api", "refused", "none")}
    assert kinds["api"] >= 23
    assert sum(kinds.values()) == 83
    assert value(samples, "http_request_seconds_bucket", kind="api", le="+Inf") == kinds["api"]
    series = {key: samples[key] for key in samples if key[0] == "stablessm_http_requests_total"}
    assert len(series) < 10, series
    assert sum(series.values()) == 83


def test_the_documented_metrics_equal_the_existing_metrics(client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / MARK).touch()
    client.get("/api/runs")
    worker = CollectorRegistry()
    worker.register(WorkerCollector(lambda: LaneCounts(1, 0, 1), zeros))
    text_ = client.get("/metrics").text + generate_latest(worker).decode()
    shown = {line.split()[2] for line in text_.splitlines() if line.startswith("# TYPE")}
    shown = {name for name in shown if name.startswith("stablessm_")} | GPU_METRICS  # this machine has no GPU
    page = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
    documented = {name.removesuffix("_bucket") for name in re.findall(r"\bstablessm_[a-z_]+", page)} - {
        "stablessm_server",
        "stablessm_worker",
        "stablessm_backup",
        "stablessm_core",
    }  # database roles and a package, not metrics
    assert documented == shown


def test_each_application_in_a_process_counts_its_own_requests(client: httpx.Client, database: Database, tmp_path: Path) -> None:
    client.get("/api/runs")
    with client_of(application(database.url, tmp_path)) as other:
        other.get("/api/queues")
        routes = {dict(labels).get("route") for name, labels in scrape(other) if name == "stablessm_http_requests_total"}
    assert routes == {"/api/queues"}


def test_database_errors_are_counted_and_readiness_names_the_failed_check(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]) == (200, "ok")
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    refused = client.get("/readyz")
    error = error_of(refused, 503)
    assert error["field"] == "schema"
    assert "stablessm migrate" in error["message"]
    app = application("postgresql+psycopg://nobody:secret-password@127.0.0.1:1/none", tmp_path)
    with client_of(app) as away:
        refused = away.get("/readyz")
        assert error_of(refused, 503)["field"] == "database"
        assert "secret" not in refused.text
        assert away.get("/api/runs").status_code == 503
        assert app.state.metrics.process.get_sample_value("stablessm_database_errors_total") == 1


def test_readiness_does_not_wait_for_a_hung_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.api.service.READY_SECONDS", 1.5)
    with _silent_server() as port, client_of(application(f"postgresql+psycopg://127.0.0.1:{port}/none", tmp_path)) as client:
        for _ in range(5):  # a single read may be late on a busy machine
            begun = time.monotonic()
            error = error_of(client.get("/readyz"), 503)
            elapsed = time.monotonic() - begun
            assert error["field"] == "database"
            if elapsed < 4 and "no answer within" in error["message"]:  # the connection itself would time out only after 5 s
                break
        else:
            pytest.fail(f"readiness took {elapsed:.1f} s: {error['message']}")


@pytest.mark.redis
def test_a_server_without_redis_is_ready_and_reports_polling(postgres_url: str, tmp_path: Path) -> None:
    with client_of(application(postgres_url, tmp_path, broker_url="redis://127.0.0.1:1/0")) as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["live"]) == (200, "polling")
        assert value(scrape(client), "live_push") == 0


@contextmanager
def _silent_server() -> Iterator[int]:
    """A server that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []
        stop = threading.Event()

        def accept() -> None:
            listener.settimeout(0.1)
            while not stop.is_set():
                try:
                    kept.append(listener.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            stop.set()
            thread.join()
            for connection in kept:
                connection.close()


def test_every_write_request_is_logged_with_its_run(
    client: httpx.Client, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "stablessm.request"):
        made = client.post("/api/runs", json={"task": {"name": "polynomial_memory"}}).raise_for_status().json()["id"]
        client.post(f"/api/runs/{made}/cancel").raise_for_status()
        client.get(f"/api/runs/{made}").raise_for_status()
    lines = [(r.route, r.status, r.run) for r in caplog.records if r.name == "stablessm.request"]  # type: ignore[attr-defined]
    assert [line[0] for line in lines] == ["/api/runs", "/api/runs/{run_id}/cancel"]
    assert {line[2] for line in lines} == {made}


def test_dead_workers_leave_the_metrics(client: httpx.Client, database: Database) -> None:
    writes = zeros() | {"values_recorded": 9, "values_stored": 9}
    with database.write() as session:
        for name in ("alive", "dead"):
            lifecycle.register_worker(session, name, "here", 1, {"devices": ["cpu"], "writes": writes})
        session.execute(update(Worker).where(Worker.id == "dead").values(seen_at=time.time() - 3600))
    samples = scrape(client)
    assert {labels["worker"] for _, given in samples if "worker" in (labels := dict(given))} == {"alive"}
    assert value(samples, "workers_alive") == 1


def test_recent_ends_failures_per_worker_and_disabled_webhooks_are_counted(client: httpx.Client, database: Database) -> None:
    with database.write() as session:
        for name in ("good", "bad"):
            lifecycle.register_worker(session, name, "here", 1, {"devices": ["cpu"]})
    for owner, status in (("good", "finished"), ("good", "diverged"), ("bad", "failed"), ("bad", "failed"), ("gone", "failed")):
        run = claimed(database)
        with database.write() as session:
            session.execute(update(Run).where(Run.id == run.run_id).values(worker=owner))
            lifecycle.finish(session, run.run_id, run.attempt, status, autopsy=True)
    old = claimed(database)
    with database.write() as session:
        lifecycle.finish(session, old.run_id, old.attempt, "failed")
        session.execute(update(Run).where(Run.id == old.run_id).values(finished_at=time.time() - 7200))
        for failures in (0, MAX_FAILURES - 1, MAX_FAILURES):
            new_webhook(session, "https://example.org/", ["alert"]).failures = failures
    samples = scrape(client)
    ended = {status: value(samples, "runs_ended_last_hour", status=status) for status in ("finished", "failed", "diverged")}
    assert ended == {"finished": 1, "failed": 3, "diverged": 1}
    assert [value(samples, "runs_failed_last_hour", worker=name) for name in ("good", "bad")] == [0, 2]
    assert [value(samples, "autopsies", state=state) for state in STATES] == [1, 0, 0, 0]
    assert (value(samples, "webhooks"), value(samples, "webhooks_disabled")) == (3, 1)


def test_the_age_of_the_newest_backup_is_known_from_the_data_directory_or_the_folder_of_backups(
    sqlite_url: str, tmp_path: Path
) -> None:
    database = Database(sqlite_url)
    data_dir, folder = tmp_path / "state", tmp_path / "backups"
    for each in (data_dir, folder):
        each.mkdir()
    with client_of(application(sqlite_url, tmp_path, backups=folder)) as client:
        assert ("stablessm_backup_age_seconds", frozenset()) not in scrape(client)
        backup(database, data_dir, folder, lambda _: None)
        assert 0 <= value(scrape(client), "backup_age_seconds") < 600
        for file in (data_dir / MARK, *folder.iterdir()):
            os.utime(file, (time.time() - 7200,) * 2)
        assert 7200 <= value(scrape(client), "backup_age_seconds") < 7800
        (data_dir / MARK).unlink()
        assert 7200 <= value(scrape(client), "backup_age_seconds") < 7800
    database.close()
