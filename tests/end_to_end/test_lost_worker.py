"""When the only worker dies, the server alone detects its lost runs, exactly once, and the page shows the right status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.installation import Installation, hold_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

LEASE_SECONDS = 6
RUN: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 200},
    "model": {"d_model": 16, "d_state": 8},
    "train": {"steps": 1_000_000, "batch_size": 64, "eval_every": 0, "checkpoint_every": 30},
}


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with hold_port() as held:
        made = Installation(tmp_path / "state", held.getsockname()[1])
        made.environment["STABLESSM_LEASE_SECONDS"] = str(LEASE_SECONDS)
        try:
            yield made
        finally:
            made.kill_all()


def status_of(client: httpx.Client, run: int) -> str:
    return str(client.get(f"/api/runs/{run}").raise_for_status().json()["status"])


def test_the_server_recovers_lost_runs_when_no_worker_is_left(installation: Installation) -> None:
    site = installation
    site.start("migrate", "--data-dir", str(site.data_dir)).wait(180)
    site.start("serve", "--port", str(site.port), "--data-dir", str(site.data_dir))
    worker = site.start("worker", "--slots", "2", "--data-dir", str(site.data_dir))
    site.wait_until_ready()
    with site.client() as client:
        lost, unwanted = (int(client.post("/api/runs", json=RUN).raise_for_status().json()["id"]) for _ in range(2))
        for run in (lost, unwanted):
            site.wait_for_step(client, run, 40)
        trainers = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        worker.wait()
        site.processes.remove(worker)  # the test expects the end of this process
        psutil.wait_procs(trainers, 60)
        client.post(f"/api/runs/{unwanted}/cancel").raise_for_status()

        wanted = ["queued", "cancelled"]
        site.wait("the truth about both runs", lambda: [status_of(client, run) for run in (lost, unwanted)] == wanted)
        found = client.get(f"/api/runs/{lost}").json()
        assert "lost contact" in found["status_reason"]
        kinds = [alert["kind"] for alert in client.get(f"/api/runs/{lost}/alerts").json()["alerts"]]
        assert kinds == ["worker_lost"], "the run must be requeued only once"
        said = [json.loads(line) for line in site.output().splitlines() if line.startswith("{")]
        assert {(lost, 1), (unwanted, 1)} >= {
            (one["run"], one["attempt"]) for one in said if one["logger"] == "stablessm.lost_runs"
        }

        site.start("worker", "--slots", "1", "--data-dir", str(site.data_dir))
        site.wait("its second attempt", lambda: client.get(f"/api/runs/{lost}").json()["attempt"] == 2)
        site.wait_for_step(client, lost, 40)
