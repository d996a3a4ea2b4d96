"""The shipped dashboard and alert rules use only metrics that server and worker export, and each rule fires when it should."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from click import ClickException
from prometheus_client.parser import text_string_to_metric_families

from server.access.tokens import create_token
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from server.settings import Settings
from tests.ops.promql import Scrape, evaluate, grouped, selectors
from tests.server.http_service import application, client_of
from tests.server.recording import Recording, claimed, nonfinite, submitted
from tests.worker.station import away
from worker.gpus import Booking
from worker.lanes import Lanes
from worker.metrics import LaneCounts, serve_metrics
from worker.process_pool import ProcessPool
from worker.write_statistics import zeros

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
RULES = {rule["alert"]: rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]}
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
SCRAPED = {"job", "instance"}  # labels that Prometheus adds
UP = "up"  # a metric that Prometheus adds
HOUR = 3600.0


def samples(text: str, job: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    added = {"job": job, "instance": f"{job}:1"}
    return {
        (sample.name, frozenset((sample.labels | added).items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    } | {(UP, frozenset(added.items())): 1.0}


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU-1111, 1024, 81559, 37'\necho 'GPU-2222, 10, 81559, [N/A]'\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def worker_text(data_dir: Path) -> str:
    port = serve_metrics("127.0.0.1", 0, data_dir, lambda: LaneCounts(2, 1, 1), zeros)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())


@pytest.fixture
def scrape(sqlite_url: str, tmp_path: Path, nvidia_smi: None) -> Scrape:
    """The metrics of a healthy server and a healthy worker that have already handled requests and runs."""
    database = Database(sqlite_url)
    run = claimed(database)
    Recording(database, run).write(4, [nonfinite()])
    submitted(database)
    with database.write() as session:
        writes = zeros() | {"counts": [5, *[0] * 12], "values_recorded": 9, "values_stored": 9}
        lifecycle.register_worker(session, "worker", "here", 1, {"devices": ["cpu"], "writes": writes})
    backups = tmp_path / "backups"
    backups.mkdir()
    (backups / "stablessm-20260101-000000.backup").touch()
    with client_of(application(sqlite_url, tmp_path, backups=backups)) as client:
        client.get("/api/runs").raise_for_status()
        assert client.get("/api/runs/99").status_code == 404
        server = client.get("/metrics").raise_for_status().text
    database.close()
    return time.time(), samples(server, "stablessm") | samples(worker_text(tmp_path), "stablessm-worker")


def test_every_metric_and_label_of_the_rules_and_the_dashboard_exists(scrape: Scrape) -> None:
    labels: dict[str, set[str]] = {}
    for name, given in scrape[1]:
        labels.setdefault(name, set()).update(dict(given))
    queries = [*QUERIES, *((name, rule["expr"]) for name, rule in RULES.items())]
    assert len(queries) > 40
    for where, query in queries:
        tree = promql.parse(query)
        for selector in selectors(tree):
            assert selector.name in labels, f"{where}: {selector.name} is not exported by server or worker"
            for matcher in selector.matchers.matchers:
                assert matcher.name in labels[selector.name], f"{where}: {selector.name} has no label {matcher.name}"
        for inner, by in grouped(tree):
            for selector in selectors(inner):
                assert set(by) <= labels[selector.name], f"{where}: {selector.name} has no {set(by) - labels[selector.name]}"
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            named = {part.partition("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
            known = {label for s in selectors(promql.parse(target["expr"])) for label in labels[s.name]}
            assert named <= known, (panel["title"], named - known)


# The change that makes each rule fire: the new value of a metric, for all its label sets.
FIRES: dict[str, dict[str, float]] = {
    "Down": {UP: 0},
    "WorkerDown": {UP: 0},
    "DatabaseAway": {"stablessm_database_up": 0},
    "NoWorker": {"stablessm_workers_alive": 0},
    "QueueStands": {"stablessm_queue_oldest_seconds": 4000},
    "WorkerLost": {"stablessm_runs_reaped_total": 1},
    "ValuesDropped": {"stablessm_values_dropped_total": 1},
    "WritesSlow": {"stablessm_write_delay_seconds_bucket": 0},
    "LivePolls": {"stablessm_live_push": 0},
    "AuditLost": {"stablessm_audit_lost_total": 1},
    "RunsFail": {"stablessm_runs_ended_last_hour": 6},
    "WorkerFailsRuns": {"stablessm_runs_failed_last_hour": 6},
    "WorkerQuarantined": {"stablessm_quarantined": 1},
    "WebhookDisabled": {"stablessm_webhooks_disabled": 1},
    "BackupOld": {"stablessm_backup_age_seconds": 3 * 86_400},
    "DiskFull": {"stablessm_disk_free_bytes": 1},
    "FilesRunOut": {"process_open_fds": 1e9},
    "LaneWithoutProcess": {"stablessm_worker_prepared_processes": 0},
}


def test_each_alert_rule_is_silent_when_healthy_and_fires_on_its_condition(scrape: Scrape) -> None:
    at, healthy = scrape
    healthy |= {key: healthy[key] or 1.0 for key in healthy if key[0] == "stablessm_live_push"}
    healthy |= {key: 1e12 for key in healthy if key[0].startswith("stablessm_disk_")}
    before = (at - 60, healthy)
    assert {name for name, rule in RULES.items() if evaluate(promql.parse(rule["expr"]), [before, (at, healthy)])} == set()
    assert FIRES.keys() == RULES.keys()
    for name, changes in FIRES.items():
        changed = healthy | {key: changes[key[0]] for key in healthy if key[0] in changes}
        if name == "WritesSlow":  # adds an observation of more than ten minutes
            late = {key for key in healthy if key[0] in changes and ("le", "+Inf") in key[1]}
            changed = healthy | {key: healthy[key] + 1 for key in late}
        assert evaluate(promql.parse(RULES[name]["expr"]), [before, (at, changed)]), name


@pytest.mark.slow
def test_metrics_answer_during_a_database_outage_and_the_rule_database_away_fires(database_url: str, tmp_path: Path) -> None:
    database = Database(database_url)
    with database.write() as session:
        _, secret = create_token(session, "prometheus", "read", None)
    headers = {"Authorization": f"Bearer {secret}"}
    app = application(database_url, tmp_path)
    with client_of(app) as client:
        client.headers.update(headers)
        there = client.get("/metrics").raise_for_status().text
        app.state.access.token_cache._loaded -= 2 * HOUR  # imitates hours of an outage, after which the cached tokens are old
        with away(database):
            app.state.database.close()
            begun = time.monotonic()
            gone = client.get("/metrics")
            assert time.monotonic() - begun < 9, "Prometheus allows 10 s for a scrape"
            assert gone.status_code == 200, gone.text
            assert client.get("/api/runs").status_code == 503
            assert client.get("/metrics", headers={"Authorization": "Bearer ssm_" + "x" * 43}).status_code == 401
    shown = [(0.0, samples(there, "stablessm")), (30.0, samples(gone.text, "stablessm"))]
    rule = promql.parse(RULES["DatabaseAway"]["expr"])
    assert not evaluate(rule, shown[:1])
    assert evaluate(rule, shown)
    names = {name for name, _ in shown[1][1]}
    assert {"stablessm_database_up", "process_resident_memory_bytes", "stablessm_disk_free_bytes", "stablessm_live_push"} <= names
    assert "stablessm_runs" not in names
    assert "stablessm_runs" in {name for name, _ in shown[0][1]}
    database.close()


def test_the_metrics_of_a_worker_show_process_lanes_writes_disk_and_gpus(nvidia_smi: None, tmp_path: Path) -> None:
    shown = {
        (sample.name, sample.labels.get("uuid")): sample.value
        for family in text_string_to_metric_families(worker_text(tmp_path))
        for sample in family.samples
    }
    gib = 1 << 20
    assert shown["stablessm_gpu_memory_used_bytes", "GPU-1111"] == 1024 * gib
    assert shown["stablessm_gpu_memory_bytes", "GPU-2222"] == 81_559 * gib
    assert shown["stablessm_gpu_utilization_ratio", "GPU-1111"] == pytest.approx(0.37)
    assert ("stablessm_gpu_utilization_ratio", "GPU-2222") not in shown
    assert shown["stablessm_worker_lanes", None] == 2
    names = {name for name, _ in shown}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"} <= names
    assert {"stablessm_disk_free_bytes", "stablessm_worker_spool_bytes", "stablessm_worker_write_delay_seconds_count"} <= names


def test_gpu_metrics_are_absent_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "stablessm_worker_lanes 2.0" in (text := worker_text(tmp_path))
    assert "gpu" not in text


def test_a_worker_counts_its_lanes(sqlite_url: str, tmp_path: Path) -> None:
    lanes = Lanes(
        Settings(data_dir=tmp_path, database_url=sqlite_url), ProcessPool(3, Booking([], tmp_path)), spool_bytes=1 << 20
    )
    assert lanes.counts() == LaneCounts(3, 0, 0)
    assert lanes.writes()["values_dropped"] == 0


def test_an_occupied_metrics_port_gives_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ClickException, match="--metrics-port: cannot listen"):
        serve_metrics("127.0.0.1", taken.getsockname()[1], tmp_path, lambda: LaneCounts(1, 0, 1), zeros)


def test_every_counter_name_ends_in_total_and_the_metrics_page_is_short(scrape: Scrape, sqlite_url: str, tmp_path: Path) -> None:
    def each_route(app: Any) -> Iterator[str]:
        for route in app.state.routes:
            if "GET" in route.methods and not route.path.endswith(("/stream", "/metrics")):
                yield route.path.replace("{run_id}", "1").replace("{", "").replace("}", "")

    app = application(sqlite_url, tmp_path)
    with client_of(app) as client:
        for path in each_route(app):
            client.get(path)
            client.get(f"{path}?nonsense=1")
        text = client.get("/metrics").text
    counters = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" counter")]
    assert len(counters) > 10
    assert [name for name in counters if not name.endswith("_total")] == []
    lines = [line for line in text.splitlines() if "stablessm_http_" in line]
    assert 60 < len(lines) < 220, f"{len(lines)} lines about requests"
