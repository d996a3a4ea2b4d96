"""Bytes per recorded value of a real training run, and the time to read its series, on both database engines, before and after
compaction.

    python -m benchmarks.load.storage '{"url", "data_dir", "steps"}'    # the process that trains

The worker's own code trains the run, which has 4 layers of 64 eigenvalues. The recorded values are the ratio and the weight of
every eigenvalue, and the scalars. The bytes also include the coarser levels, the index and the overhead of the rows.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sqlalchemy import insert, select, text

from benchmarks.service import HttpClient, Row, child, new_database, recorded_values, serving, submit_and_claim, timed
from server.database.connection import Database
from server.database.models import Base, Run
from server.series.compaction import compact
from stablessm_core.spec.config import parse_config

PROMISED = 3.5


def measure(url: str, folder: Path, *, steps: int) -> list[Row]:
    rows = []
    with new_database("sqlite", folder / "storage") as small:
        order = {"url": small.url, "data_dir": str(folder / "storage"), "steps": steps}
        training = child("benchmarks.load.storage", json.dumps(order))
        training.communicate()
        if training.returncode:
            raise RuntimeError(f"the training ended with {training.returncode}")
        with new_database(url, folder / "storage-postgres") as large:
            _copy(small, large)
            for name, database in (("PostgreSQL", large), ("SQLite", small)):
                before, count = bytes_of(database), _rows(database)
                reads = _reads(database, folder / f"served-{name}-before")
                if not compact(database, 1):
                    raise RuntimeError("the run was not compacted")
                after, left = bytes_of(database), _rows(database)
                again = _reads(database, folder / f"served-{name}-after")
                values = recorded_values(database)
                rows += [
                    Row(f"{name}: bytes per value of {values:,}, as written", f"{before / values:.2f} ({count} rows)"),
                    Row(f"{name}: after compaction, levels included", f"{after / values:.2f} ({left} rows)", f"<= {PROMISED}"),
                    Row(f"{name}: one eigenvalue over HTTP, before, after", f"{reads[0]:.1f}, {again[0]:.1f} ms", "15 ms"),
                    Row(f"{name}: whole heat map over HTTP, before, after", f"{reads[1]:.0f}, {again[1]:.0f} ms", "120 ms"),
                ]
    return rows


def bytes_of(database: Database) -> int:
    """The size of the table `blocks` with its index, in bytes. VACUUM runs first, so that freed pages are not counted."""
    if database.path is not None:
        with database.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            connection.rollback()
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raw.execute("VACUUM")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return database.path.stat().st_size
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM FULL blocks"))
        return int(connection.execute(text("SELECT pg_total_relation_size('blocks')")).scalar_one())


def _rows(database: Database) -> int:
    with database.read() as session:
        return int(session.scalar(text("SELECT count(*) FROM blocks")) or 0)


def _copy(source: Database, target: Database) -> None:
    for table in Base.metadata.sorted_tables:
        with source.read() as session:
            rows = [dict(row) for row in session.execute(select(table)).mappings()]
        if rows:
            with target.write() as session:
                session.execute(insert(table), rows)


def _reads(database: Database, folder: Path) -> tuple[float, float]:
    with serving(database, folder) as server:
        client = HttpClient(server.port, server.token)
        one, _ = timed(lambda: client.get("/api/runs/1/series/ssm/0/grad_over_weight?eigenvalues=37"), 15)
        layers = [f"/api/runs/1/series/ssm/{i}/grad_over_weight?format=typed&max_points=2500" for i in range(4)]
        whole, _ = timed(lambda: [client.get(path) for path in layers], 15)
    return one, whole


def train(url: str, data_dir: str, steps: int) -> None:
    """Submit, claim and train one run in this process."""
    import torch

    from worker.attempt import Attempt

    torch.set_num_threads(1)
    config = parse_config({
        "task": {"name": "polynomial_memory", "length": 32}, "model": {"n_layers": 4, "d_state": 64},
        "train": {"steps": steps, "batch_size": 8},
    })  # fmt: skip
    database = Database(url)
    claim = submit_and_claim(database, config)
    order = {"run_id": claim.run_id, "attempt": claim.attempt, "config": claim.config, "checkpoints": [], "data_dir": data_dir,
             "data_root": data_dir, "database_url": url, "broker_url": None, "spool_bytes": 1 << 28}  # fmt: skip
    Attempt(order).run(on_ready=lambda: None)
    with database.read() as session:
        ended = session.get_one(Run, claim.run_id).status == "finished"
    os._exit(0 if ended else 1)


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
