"""When a run that was trained on two machines is deleted, both machines remove its folder, even the one that was offline."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sqlalchemy import update

from server.database.connection import Database
from server.database.models import DeletedRun
from server.settings import run_folder
from tests.installation import Installation
from tests.server.http_service import application, client_of

pytestmark = pytest.mark.long

CONFIG = {
    "task": {"name": "polynomial_memory", "length": 8},
    "model": {"d_model": 4, "d_state": 4},
    "train": {"steps": 10_000_000, "batch_size": 4, "eval_every": 0, "device": "cpu"},
}


@pytest.mark.timeout(600)
def test_a_deleted_run_s_folder_is_removed_on_every_machine_even_on_one_that_was_offline(
    postgres_url: str, tmp_path: Path, free_port: int
) -> None:
    machines = [tmp_path / name for name in ("first", "second")]
    site = Installation(tmp_path / "server", free_port)
    database = Database(postgres_url)

    def start(machine: Path) -> subprocess.Popen[bytes]:
        return site.start("worker", "--database-url", postgres_url, "--data-dir", str(machine), "--slots", "1")

    try:
        with client_of(application(postgres_url, tmp_path, trash_hours=0)) as client:
            first = start(machines[0])
            runs = [client.post("/api/runs", json=CONFIG).raise_for_status().json()["id"] for _ in range(2)]
            run, kept = runs
            for number in runs:  # the runs train one after the other
                site.wait_for_step(client, number, 10)
                client.post(f"/api/runs/{number}/cancel").raise_for_status()
                site.wait_for_end(client, number)
            site.stop(first)
            start(machines[1])
            client.post(f"/api/runs/{run}/resume").raise_for_status()
            site.wait("it on the second machine", lambda: run_folder(machines[1], run).is_dir())
            assert client.delete(f"/api/runs/{run}").status_code == 409, "a running run must not be deleted"
            client.post(f"/api/runs/{run}/cancel").raise_for_status()
            site.wait_for_end(client, run)
            assert all(run_folder(machine, run).is_dir() for machine in machines)
            assert client.delete(f"/api/runs/{run}").status_code == 204
            with database.write() as session:
                session.execute(update(DeletedRun).values(at=1.0))  # the deletion happened long ago
            site.wait("the folder gone from the machine that works", lambda: not run_folder(machines[1], run).exists())
            assert run_folder(machines[0], run).is_dir(), "no worker of this machine is running to remove the folder"
            start(machines[0])
            site.wait("the folder gone from the late machine", lambda: not run_folder(machines[0], run).exists())
            assert any(run_folder(machines[0], kept).rglob("step-*.safetensors")), (
                "the folder of a run that was not deleted must stay"
            )
    finally:
        site.kill_all()
        database.close()
