"""Compares our service with MLflow's server on the same PostgreSQL server: the speed of ingesting values, reading values and
listing runs, and the size of the stored values."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg
from sqlalchemy import make_url

from benchmarks import peers
from benchmarks.service import (
    HttpClient,
    Row,
    child,
    database_url,
    free_port,
    new_database,
    recorded_values,
    running,
    serving,
    stored_bytes,
    timed,
)
from benchmarks.workload import make_values
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import parse_config

TOGETHER = 3  # number of steps per call; MLflow accepts at most 1,000 metrics per call


class OnPostgres(peers.MLflow):
    """`peers.MLflow` with its tables in a PostgreSQL database."""

    def __init__(self, folder: Path, port: int, url: str) -> None:
        super().__init__(folder, port)
        # disable MLflow's evaluation jobs, which are not used here and would take CPU time from its server
        self.environment |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self.url = make_url(url).set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)

    def server(self, python: Path) -> list[str]:
        command = super().server(python)
        command[command.index("--backend-store-uri") + 1] = self.url
        return command

    def bytes_stored(self) -> int:
        with psycopg.connect(make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)) as connection:
            return int(connection.execute("SELECT pg_database_size(current_database())").fetchall()[0][0])


def measure(url: str, folder: Path, *, steps: int) -> list[Row]:
    home = Path(tempfile.gettempdir()) / "stablessm-peers"
    python = peers.interpreter("mlflow", home)
    if isinstance(python, str):
        return [Row("MLflow", python)]
    ours, theirs = _ours(url, folder / "beside", 2000, steps), _theirs(url, folder / "mlflow", python, steps)
    title = f"MLflow {peers.version('mlflow', python)}"
    kinds = (
        f"values/s taken in, 257 values a step (2,000 steps; MLflow {steps}, {TOGETHER} a call)",
        "bytes per value stored",
        f"one series over HTTP, {steps} points, ms",
        "list of runs over HTTP (there is one), ms",
    )
    return [
        Row(kind, f"StableSSM {a:,.4g}, {title} {b:,.4g}", "side by side") for kind, a, b in zip(kinds, ours, theirs, strict=True)
    ]


def _ours(url: str, folder: Path, steps: int, read: int) -> tuple[float, float, float, float]:
    with new_database(url, folder) as database:
        values = folder / "values.npy"
        np.save(values, make_values(steps))
        with database.write() as session:
            model, train = {"n_layers": 4, "d_state": 64}, {"on_nonfinite": "continue"}
            lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}, "model": model, "train": train}))
        before = stored_bytes(database)
        order = {"url": database.url, "data_dir": str(folder), "values": str(values), "full": False}
        reports = json.loads(child("benchmarks.recording", json.dumps(order)).communicate()[0].splitlines()[-1])
        held = (stored_bytes(database) - before) / recorded_values(database)
        with serving(database, folder) as server:
            client = HttpClient(server.port, server.token)
            one, _ = timed(lambda: client.get(f"/api/runs/1/series/ssm/0/grad_over_weight?eigenvalues=37&to_step={read}"), 15)
            runs, _ = timed(lambda: client.get("/api/runs?limit=50"), 15)
    return steps * 257 / reports["stored_s"], held, one, runs


def _theirs(url: str, folder: Path, python: Path, steps: int) -> tuple[float, float, float, float]:
    with database_url(url, folder) as own:
        _run([str(python), "-m", "pip", "install", "-q", "psycopg2-binary"])
        driven = OnPostgres(folder, free_port(), own)
        rows = make_values(steps)
        with running(driven.server(python), folder, driven.port, driven.environment):
            driven.prepare()
            before = driven.bytes_stored()
            began = time.perf_counter()
            _log(driven, rows)
            took = time.perf_counter() - began
            held = (driven.bytes_stored() - before) / rows.size
            one, _ = timed(lambda: driven.one(peers.KEYS[37]), 5)
            runs, _ = timed(lambda: driven._post("runs/search", experiment_ids=["1"], max_results=50), 5)
    return rows.size / took, held, one, runs


def _log(driven: OnPostgres, rows: np.ndarray) -> None:
    # call MLflow's REST batch API directly, with as many steps per call as possible, so that the client takes little time
    run = (driven.folder / "run").read_text()
    now = int(time.time() * 1000)
    metrics = [{"key": key, "value": value, "timestamp": now, "step": step}
               for step, row in enumerate(np.nan_to_num(rows, nan=0.0, posinf=1e30, neginf=-1e30).tolist(), start=1)
               for key, value in zip(["loss", *peers.KEYS], row, strict=True)]  # fmt: skip
    call = TOGETHER * rows.shape[1]
    for first in range(0, len(metrics), call):
        driven._post("runs/log-batch", run_id=run, metrics=metrics[first : first + call])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)
