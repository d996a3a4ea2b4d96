"""Two machines as network namespaces: one is disconnected, the other trains its run, and the first is reconnected."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import SeriesRow, Transition
from server.series.reading import read_series
from tests.end_to_end.machines import Unavailable, network, postgres, redis_server
from tests.installation import FINAL, Installation

pytestmark = [pytest.mark.both_engines, pytest.mark.long]

STEPS = 200
LEASE_SECONDS = 20  # long enough that a run does not lose its lease on a busy machine
CONFIG = {  # about 10 ms per step, slow enough that the test can interrupt the run
    "task": {"name": "polynomial_memory", "length": 200},
    "model": {"d_model": 16, "d_state": 8},
    "train": {"steps": STEPS, "batch_size": 64, "eval_every": 0, "checkpoint_every": 50},
}


@pytest.mark.timeout(900)
def test_a_disconnected_machine_loses_its_run_and_cannot_write_after_it_reconnects(
    tmp_path: Path, free_port: int, unavailable: Unavailable
) -> None:
    with (
        network("first", "second", unavailable=unavailable) as net,
        postgres(tmp_path / "postgres", net.address, unavailable) as database_url,
        redis_server(tmp_path / "redis", net.address, unavailable) as broker_url,
    ):
        database = Database(database_url)
        database.migrate()
        site = Installation(tmp_path / "server", free_port)
        shared = ("--database-url", database_url, "--broker-url", broker_url)
        try:
            site.start("serve", "--port", str(free_port), "--data-dir", str(site.data_dir), *shared)
            logs = {}
            # No shared disk: a run that moves to another machine restarts from the beginning and produces the same bits.
            for machine in net.names:
                own = ("--data-dir", str(tmp_path / machine), "--queues", f"default,{machine}", "--slots", "1")
                site.start("worker", *own, "--lease-seconds", str(LEASE_SECONDS), *shared, inside=net.enter(machine))
                logs[machine] = site.logs[-1]
            site.wait("server", lambda: _answers(site))
            with site.client() as client:
                _drive(site, client, database, logs, net)
        finally:
            for name in net.names:
                net.heal(name)
            site.kill_all()
            database.close()


def _drive(site: Installation, client: httpx.Client, database: Database, logs: dict[str, Path], net) -> None:  # type: ignore[no-untyped-def]
    def alive() -> dict[str, str]:
        workers = client.get("/api/workers").json()["workers"]
        return {w["capabilities"]["queues"][1]: w["id"] for w in workers if w["alive"] and w["capabilities"]}

    site.wait("two workers", lambda: len(alive()) == 2)
    machine_of = {worker: machine for machine, worker in alive().items()}
    runs: list[int] = []

    def training() -> dict[str, int] | None:
        known = client.get("/api/runs").json()["runs"]
        if sum(r["status"] not in FINAL for r in known) < 3:  # one run waits behind the two that train
            runs.append(client.post("/api/runs", json=CONFIG).json()["id"])
        owners = {r["worker"]: r["id"] for r in known if r["status"] == "running" and r["step"] >= 20}
        return {machine_of[worker]: run for worker, run in owners.items()} if len(owners) == 2 else None

    while True:
        lost = site.wait("two runs in training", training)["first"]
        net.cut("first")
        if client.get(f"/api/runs/{lost}").json()["status"] == "running":
            break
        net.heal("first")  # the run had already ended: try again
    site.wait("its run given to the other", lambda: client.get(f"/api/runs/{lost}").json()["attempt"] == 2)
    net.heal("first")
    for run in runs:
        ended = site.wait_for_end(client, run)
        assert (ended["status"], ended["attempt"]) == ("finished", 2 if run == lost else 1), ended
    site.wait("the refusal", lambda: "lease lost" in logs["first"].read_text() or "no longer owns" in logs["first"].read_text())

    with database.read() as session:
        reasons = list(session.scalars(select(Transition.reason).where(Transition.run_id == lost).order_by(Transition.seq)))
        series = {run: _everything(session, run) for run in runs}
    assert any("lost contact" in reason for reason in reasons), reasons
    undisturbed = next(run for run in runs if run != lost)
    for run in runs:
        assert series[run] == series[undisturbed]
    back = client.post("/api/runs", json=CONFIG | {"train": CONFIG["train"] | {"steps": 5}}, params={"queue": "first"}).json()
    assert site.wait_for_end(client, back["id"])["status"] == "finished"


def _everything(session, run: int) -> dict[str, tuple[list[int], bytes]]:  # type: ignore[no-untyped-def]
    """Steps and bits of every series that does not measure time or bytes. Asserts that every step of a series that has a value
    per step occurs exactly once."""
    names = session.scalars(select(SeriesRow.name).where(SeriesRow.run_id == run, SeriesRow.derived.is_(False)))
    found = {}
    for name in sorted(names):
        if name.startswith(("system/", "train/tokens_per", "train/step_seconds", "eval/")):
            continue
        data = read_series(session, run, name, max_points=1_000_000)
        if not name.startswith("memory/"):  # measured at few steps
            assert data.step.tolist() == list(range(1, STEPS + 1)), name
        found[name] = (data.step.tolist(), np.ascontiguousarray(data.value, np.float32).tobytes())
    assert len(found) >= 4
    return found


def _answers(site: Installation) -> bool:
    try:
        with site.client() as client:
            return client.get("/readyz").status_code == 200
    except (httpx.TransportError, FileNotFoundError):
        return False
