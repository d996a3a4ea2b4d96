"""Fills a database of any schema version with rows in every table and every kind of value, and computes checksums."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
from sqlalchemy import Connection, Table, insert, inspect, select

from server.database.connection import Database
from server.database.models import Base
from server.database.payloads import checksum
from stablessm_core.telemetry.blocks import encode
from stablessm_core.telemetry.statuses import STATUSES
from tests.server.recording import WEIRD

HOSTILE = "<b>\u202e'\"; DROP TABLE runs; -- \U0001f525"
CONFIG = {"task": {"name": "digits"}, "train": {"steps": 10}, "x": [1e-300, 0.1 + 0.2, 2**53 + 1, None, True, "NaN", HOSTILE]}
FORM = {"map": "best", "time": "discrete", "rule": "none", "scale": 1.0, "a": 1 / 3, "b": 0.5, "dt": None}
TRAINED = {"kind": "trained", "project": "", "external_id": None, "reported_config": None, "how": None, "layers": None}
REPORTED = {
    "kind": "reported", "project": HOSTILE, "external_id": "00000000-0000-4000-8000-000000000000", "config": {},
    "reported_config": [CONFIG, HOSTILE, [[[]]]], "how": {"optimizer": HOSTILE, "lr": 1 / 3, "total_steps": None},
    "layers": [{"name": HOSTILE, "path": HOSTILE, "width": 2**20, "note": None}],
}  # fmt: skip
PAYLOADS = [encode(np.tile(WEIRD, (3, 4)).astype(np.float32)), b"", bytes(range(256)) * 500]


def rows() -> dict[str, list[dict[str, Any]]]:
    """Rows by table, parents first: every status, nullable columns with and without a value, extreme bytes and floats."""
    runs, blocks, alerts, transitions, checkpoints, series = [], [], [], [], [], []
    logs, tracebacks = [], []
    for number, status in enumerate(STATUSES, 1):
        run_id, full = number * 10, number % 2 == 0
        runs.append({
            "id": run_id, "name": HOSTILE if full else None, "tags": [HOSTILE] if full else [],
            "notes": "n\x01\n" if full else "", "config": CONFIG,
            "sweep_id": 3 if full else None, "cloned_from": 10 if full else None,
            "idempotency_key": f"key-{number}" if full else None, "status": status, "status_reason": HOSTILE, "priority": -number,
            "needs_cuda": full, "needs_data": "digits" if full else "", "queue": "gpu" if full else "default",
            "needs_gpu": "H200" if full else "", "submitted_by": 7 if full else None, "created_at": 1763726045.1234567,
            "started_at": math.pi if full else None, "finished_at": 5e-324 if full else None, "attempt": number, "beat": 2**60,
            "owner": "host:1:2" if full else None, "workers_lost": number, "cancel_requested": full, "seq": number, "step": 2**40,
            "steps_per_second": 1 / 3 if full else None, "environment": {"device": "cpu"} if full else None,
            "result": {"loss": "NaN"} if full else None, "divergence": {"value": "-Infinity"} if full else None,
            "compacted_at": 1.5 if full else None, "forms": [FORM] if full else None,
            "bytes_stored": 2**50 if full else 0, "deleted_at": 1e9 / 7 if status == "diverged" else None,
            "deleted_by": HOSTILE if status == "diverged" else None,
            "user_id": 9 if full else None, "worker": "host:1:2" if full else None, "host": HOSTILE if full else None,
            "gpu_name": "NVIDIA H200" if full else None,
        } | (REPORTED if status == "lost" else TRAINED))  # fmt: skip
        for level, payload in enumerate(PAYLOADS):
            blocks.append({
                "run_id": run_id, "group_name": "layer0", "level": level, "first_step": 1, "last_step": 128, "stride": 16**level,
                "point_count": 4, "column_count": 3, "attempt": 1, "seq": 1, "payload": payload,
                "checksum": checksum(payload, 1, 4) if full else None,
            })  # fmt: skip
        alerts.append({
            "id": number * 100, "run_id": run_id, "seq": 1, "attempt": 1, "kind": "nonfinite_loss", "severity": "critical",
            "step": 3, "series": "", "layer": 0 if full else None, "eigenvalue": None, "tensor": HOSTILE, "value": "NaN",
            "message": HOSTILE, "created_at": 1e300,
        })  # fmt: skip
        transitions.append({"run_id": run_id, "seq": number, "status": status, "reason": HOSTILE, "attempt": 1,
                            "step": 0, "truncated_from": 5 if full else None, "at": 0.1,
                            "worker": "host:1:2" if full else None})  # fmt: skip
        logs.append({"run_id": run_id, "start": 2**40, "attempt": 1, "text": f"{HOSTILE}\n", "at": 0.3})
        tracebacks.append({"run_id": run_id, "attempt": 1, "text": HOSTILE, "at": 0.4})
        checkpoints.append({"run_id": run_id, "step": 4, "attempt": 1, "path": f"runs/{run_id}/checkpoints/step-4.safetensors",
                            "sha256": "0" * 64, "bytes": 2**40, "created_at": 2.5,
                            "stored_at": 3.5 if full else None})  # fmt: skip
        series.append({"run_id": run_id, "name": "train/loss", "group_name": "scalars", "column_offset": 0, "width": 1,
                       "unit": "", "derived": full, "form": FORM if full else None})  # fmt: skip
    return {
        "sweeps": [{"id": 3, "base": CONFIG, "grid": {"train.seed": [1, 2]}, "created_at": 1.0, "name": HOSTILE,
                    "submitted_by": 7, "idempotency_key": "sha256:" + "c" * 64},
                   {"id": 4, "base": CONFIG, "grid": {"train.seed": [3]}, "created_at": 2.0, "name": None, "submitted_by": None,
                    "idempotency_key": None}],
        "searches": [{"sweep_id": 3, "search": {"seed": 2**53 - 1, "space": {HOSTILE: {"values": [None]}}},
                      "round": 2, "ended_at": 1 / 3},
                     {"sweep_id": 4, "search": {}, "round": 0, "ended_at": None}],
        "workers": [{"id": "host:1:2", "host": HOSTILE, "slots": 2, "capabilities": {"devices": ["cpu"]}, "beat": 9,
                     "started_at": 1.0, "seen_at": 2.0}],
        "deleted_runs": [{"run_id": 5, "at": 1 / 3, "files": [["runs/5/checkpoints/x", "0" * 64]]}],
        "installation": [{"number": 1, "name": HOSTILE}],
        "runs": runs, "blocks": blocks, "alerts": alerts, "transitions": transitions, "checkpoints": checkpoints,
        "rungs": [{"run_id": 20, "rung": 1, "sweep_id": 3, "step": 2**40, "value": math.pi, "outcome": "continued",
                   "reason": HOSTILE, "at": 0.1},
                  {"run_id": 20, "rung": 2, "sweep_id": 3, "step": 2**41, "value": None, "outcome": "unstable", "reason": "",
                   "at": 0.2}],
        "autopsies": [{"run_id": 20, "attempt": 2, "state": "done", "reason": HOSTILE, "step": 2**40,
                       "findings": {"largest": ["NaN", math.pi * 1e-38, HOSTILE]}, "requested_at": 0.1, "requested_by": HOSTILE,
                       "started_at": 0.2, "ended_at": 1 / 3, "owner": None, "beat": 2**60, "losses": 1, "seq": 2**40},
                      {"run_id": 30, "attempt": 3, "state": "queued", "reason": "", "step": None, "findings": None,
                       "requested_at": 1.0, "requested_by": None, "started_at": None, "ended_at": None, "owner": None, "beat": 0,
                       "losses": 0, "seq": 1}],
        "series": series, "run_logs": logs, "tracebacks": tracebacks,
        "queues": [{"name": "gpu", "max_running": 2, "paused": True}, {"name": "cpu", "max_running": None, "paused": False}],
        "tokens": [{"id": 7, "name": HOSTILE, "scope": "submit", "sha256": "a" * 64, "created_at": 1.0, "expires_at": None,
                    "revoked_at": 3.0, "last_used_at": None, "user_id": 9, "names_users": True}],
        "users": [{"id": 0, "name": "the owner", "identity": None, "may_change_all": False, "max_running": None,
                   "max_queued": None, "max_bytes": None, "created_at": 1.0},
                  {"id": 9, "name": HOSTILE, "identity": "a@example.org", "may_change_all": True, "max_running": 0,
                   "max_queued": 2**31 - 1, "max_bytes": 2**60, "created_at": 0.1}],
        "ended_sessions": [{"id": 4, "sha256": "b" * 64, "until": 1e10 / 3}],
        "audit": [{"id": 5, "at": 1.0, "token_id": 7, "token_name": "t", "address": "::1", "method": "POST", "path": "/api/runs",
                   "status": 201, "run_id": 20, "user_name": HOSTILE},
                  {"id": 6, "at": 2.0, "token_id": None, "token_name": "", "address": "", "method": "PUT", "path": HOSTILE,
                   "status": 401, "run_id": None, "user_name": ""}],
        "webhooks": [{"id": 2, "url": "https://example.org/hook", "events": ["ended"], "cursor": {"20": 4}, "failures": 1,
                      "last_error": HOSTILE, "created_at": 1.0, "format": "slack", "last_sent_at": 1 / 3,
                      "last_answer": HOSTILE}],
        "notifications": [{"id": 3, "webhook_id": 2, "destination": HOSTILE, "run_id": 20, "kind": "nonfinite_loss",
                           "severity": "critical", "count": 1000, "first_at": 0.1, "last_at": 0.2, "step": 2**40,
                           "message": HOSTILE, "state": "sent", "due_at": 0.3, "due_by": 0.4, "sent_at": 1 / 3,
                           "repeat_at": 1e10 / 3, "repeated": 1, "tries": 2, "answer": HOSTILE},
                          {"id": 4, "webhook_id": 2, "destination": "", "run_id": 10, "kind": "run.lost", "severity": "warning",
                           "count": 1, "first_at": 0.1, "last_at": 0.1, "step": 0, "message": "", "state": "waiting",
                           "due_at": 0.3, "due_by": 0.4,
                           "sent_at": None, "repeat_at": None, "repeated": 0, "tries": 0, "answer": ""}],
        "silences": [{"id": 5, "run_id": 20, "project": None, "kind": None, "until": 1e10 / 3, "created_at": 0.1,
                      "created_by": HOSTILE},
                     {"id": 6, "run_id": None, "project": HOSTILE, "kind": "boundary_distance", "until": 0.2,
                      "created_at": 0.1, "created_by": ""}],
    }  # fmt: skip


def fill(database: Database) -> None:
    """Insert all rows for which the database's schema has tables and columns. A schema without kinds of runs has no reported
    run."""
    with database.engine.begin() as connection:
        kinds = "kind" in present(connection, "runs").c
        reported = {run["id"] for run in rows()["runs"] if run["kind"] == "reported" and not kinds}
        for name, values in rows().items():
            if inspect(connection).has_table(name):
                table = present(connection, name)
                number = "id" if name == "runs" else "run_id"
                values = [row for row in values if row.get(number) not in reported]
                connection.execute(insert(table), [{k: v for k, v in row.items() if k in table.c} for row in values])


def present(connection: Connection, name: str) -> Table:
    """The model's table, reduced to the columns that the database has."""
    from sqlalchemy import Column, MetaData

    there = {column["name"] for column in inspect(connection).get_columns(name)}
    model = Base.metadata.tables[name]
    return Table(name, MetaData(), *(Column(c.name, c.type, primary_key=c.primary_key) for c in model.c if c.name in there))


def checksums(database: Database, columns: dict[str, list[str]] | None = None) -> dict[str, str]:
    """SHA-256 of all values by table; `columns` limits it to the columns of an older schema."""
    found = {}
    with database.engine.connect() as connection:
        for name in Base.metadata.tables:
            if not inspect(connection).has_table(name) or (columns is not None and name not in columns):
                continue
            table = present(connection, name)
            chosen = [table.c[c] for c in (columns[name] if columns else sorted(table.c.keys()))]
            digest = hashlib.sha256()
            for row in connection.execute(select(*chosen).order_by(*table.primary_key)):
                digest.update(json.dumps([_exact(value) for value in row], sort_keys=True).encode() + b"\n")
            found[name] = digest.hexdigest()
    return found


def columns_of(database: Database) -> dict[str, list[str]]:
    with database.engine.connect() as connection:
        names = [name for name in Base.metadata.tables if inspect(connection).has_table(name)]
        return {name: sorted(present(connection, name).c.keys()) for name in names}


def _exact(value: Any) -> Any:
    if isinstance(value, bytes):
        return [len(value), hashlib.sha256(value).hexdigest()]  # payloads are large and are read hundreds of times
    return value.hex() if isinstance(value, float) else value
