"""The SQL statements that the code of schema 0001 (release 0.1.0) sends. They are kept as long as that schema is supported."""

from __future__ import annotations

import json
import time
from typing import Any

from sqlalchemy import text

from server.database.connection import Database
from stablessm_core.spec.config import RunConfig

RUN = (
    "id, name, tags, notes, config, sweep_id, cloned_from, idempotency_key, status, status_reason, priority, needs_cuda, "
    "needs_data, created_at, started_at, finished_at, attempt, beat, owner, workers_lost, cancel_requested, seq, step, "
    "steps_per_second, environment, result, divergence"
)
INSERT = (
    "INSERT INTO runs (name, tags, config, sweep_id, cloned_from, idempotency_key, priority, needs_cuda, needs_data, created_at) "
    "VALUES (NULL, '[]', :config, NULL, NULL, NULL, 0, false, '', :at) ON CONFLICT (idempotency_key) DO NOTHING RETURNING id"
)
TRANSITION = (
    "INSERT INTO transitions (run_id, seq, status, reason, attempt, step, truncated_from, at) "
    "VALUES (:run, :seq, :status, :reason, :attempt, 0, NULL, :at)"
)
BLOCK = (
    "INSERT INTO blocks (run_id, group_name, level, first_step, last_step, stride, point_count, column_count, attempt, seq, "
    "payload) VALUES (:run, 'scalars', 0, :step, :step, 1, 1, 1, 1, :seq, :payload)"
)


def submitted_by_old_code(database: Database, config: dict[str, Any] | None = None) -> int:
    """Insert a queued run as the old server does, and return its id."""
    now = time.time()
    full = RunConfig.model_validate({"task": {"name": "polynomial_memory"}, **(config or {})}).model_dump(mode="json")
    with database.engine.begin() as connection:
        run = int(connection.scalar(text(INSERT), {"config": json.dumps(full), "at": now}) or 0)
        connection.execute(text("UPDATE runs SET seq = 1 WHERE id = :run"), {"run": run})
        event = {"run": run, "seq": 1, "status": "queued", "reason": "submitted", "attempt": 0, "at": now}
        connection.execute(text(TRANSITION), event)
    return run


def trained_by_old_code(database: Database, steps: int) -> int | None:
    """Claim the first queued run as the old worker does, write `steps` blocks under its fence, finish it, and return its id."""
    lock = "" if database.path else " FOR UPDATE SKIP LOCKED"
    with database.engine.begin() as connection:
        first = (
            "SELECT runs.id FROM runs WHERE runs.status = 'queued' AND runs.needs_data IN ('') AND runs.needs_cuda = false "
            f"ORDER BY runs.priority DESC, runs.id LIMIT 1{lock}"
        )
        run = connection.scalar(text(first))
        if run is None:
            return None
        row = connection.execute(text(f"SELECT {RUN} FROM runs WHERE id = :run"), {"run": run}).mappings().one()
        claim = "UPDATE runs SET status = 'running', owner = 'old', attempt = :attempt, beat = 0, seq = :seq WHERE id = :run"
        connection.execute(text(claim), {"run": run, "attempt": row["attempt"] + 1, "seq": row["seq"] + 1})
        event = {"run": run, "seq": row["seq"] + 1, "status": "running", "reason": "", "attempt": 1, "at": time.time()}
        connection.execute(text(TRANSITION), event)
    for step in range(1, steps + 1):
        with database.engine.begin() as connection:
            fence = (
                "UPDATE runs SET seq = seq + 1, step = :step WHERE id = :run AND attempt = 1 AND status = 'running' RETURNING seq"
            )
            seq = connection.scalar(text(fence), {"run": run, "step": step})
            assert seq is not None, "the old worker lost its lease"
            connection.execute(text(BLOCK), {"run": run, "seq": seq, "step": step, "payload": bytes([0, step % 256])})
    with database.engine.begin() as connection:
        end = "UPDATE runs SET status = 'finished', seq = seq + 1 WHERE id = :run AND attempt = 1 RETURNING seq"
        seq = connection.scalar(text(end), {"run": run})
        event = {"run": run, "seq": seq, "status": "finished", "reason": "", "attempt": 1, "at": time.time()}
        connection.execute(text(TRANSITION), event)
    return int(run)
