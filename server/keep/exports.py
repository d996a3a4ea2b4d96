"""Writes ended runs with all their recorded data into an archive (server.keep.archive), without the names of their users."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from sqlalchemy import Table, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import AlertRow, AutopsyRow, Base, BlockRow, Run, SeriesRow, Sweep, Transition
from server.database.payloads import verify
from server.errors import Conflict
from server.keep.archive import ArchiveWriter
from server.keep.trash import why_absent
from server.lifecycle.autopsy_findings import check_findings
from stablessm_core import __version__
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.telemetry.series import SO_FAR
from stablessm_core.telemetry.statuses import AT_REST

MAX_RUNS = 500
# Columns that describe the run itself. Queue, user and lease belong to the installation and are not exported, and neither is the
# UUID by which a reporting program finds its run.
RUN_FIELDS = (
    "name", "tags", "notes", "config", "status", "status_reason", "created_at", "started_at", "finished_at", "attempt", "seq",
    "step", "steps_per_second", "environment", "result", "divergence", "compacted_at", "forms", "worker", "host", "gpu_name",
    "forked_from", "forked_at_step", "fork_changes", "kind", "project", "reported_config", "how", "layers", "rules",
)  # fmt: skip
SWEEP_FIELDS = ("base", "grid", "created_at", "name")
PARTS: dict[str, type[Base]] = {"series": SeriesRow, "alerts": AlertRow, "history": Transition}
AUTOPSY_FIELDS = ("step", "findings", "requested_at", "started_at", "ended_at")
LEFT_OUT = ("id", "run_id", "payload", "checksum")  # columns of series, alerts, transitions and blocks
FETCH_ROWS = 50


def check_ended(runs: Sequence[Run]) -> None:
    """Raises Conflict if one of the runs has not ended."""
    for run in runs:
        if run.status not in AT_REST:
            raise Conflict(f"run {run.id} is {run.status}", field="runs", allowed=f"runs that are {', '.join(AT_REST)}")


def write_archive(database: Database, run_ids: Sequence[int], file: IO[bytes], source: str) -> None:
    """Write an archive of these runs. The data of each run comes from one snapshot of the database. source: the name of this
    installation. Raises LookupError, Conflict.
    """
    writer = ArchiveWriter(file)
    runs: list[dict[str, Any]] = []
    sweeps: dict[int, dict[str, Any]] = {}
    for run_id in run_ids:
        with database.read() as session:
            run = session.get(Run, run_id)
            if run is None or run.deleted_at is not None:
                raise LookupError(why_absent(run, run_id))
            check_ended([run])
            if run.sweep_id is not None and run.sweep_id not in sweeps:
                sweep = session.get_one(Sweep, run.sweep_id)
                sweeps[sweep.id] = {"id": sweep.id} | {name: getattr(sweep, name) for name in SWEEP_FIELDS}
            runs.append({"id": run.id, "sweep": run.sweep_id})
            parts = {name: list(_rows(session, table, run_id)) for name, table in PARTS.items()}
            so_far = {name: json_safe(getattr(run, name)) for name in SO_FAR}  # these values may be infinite
            described: dict[str, Any] = {"run": {name: getattr(run, name) for name in RUN_FIELDS} | so_far} | parts
            described["autopsy"] = _autopsy(session, run)
            writer.add(f"runs/{run_id}/run.json", json.dumps(described, allow_nan=False).encode())
            writer.add_blocks(run_id, _blocks(session, run_id))
    facts = {"version": __version__, "source": source, "exported_at": time.time(), "sweeps": list(sweeps.values()), "runs": runs}
    writer.close(facts)


def columns_of(table: type[Base]) -> list[str]:
    """The names of the table's columns that are in an archive."""
    return [column.name for column in table_of(table).c if column.name not in LEFT_OUT]


def table_of(table: type[Base]) -> Table:
    assert isinstance(table.__table__, Table)
    return table.__table__


def _autopsy(session: Session, run: Run) -> dict[str, Any] | None:
    """The run's autopsy, if it is done; None otherwise, because an open or failed autopsy says nothing about the run."""
    row = session.get(AutopsyRow, run.id)
    if row is None or row.findings is None or row.attempt != run.attempt:
        return None
    # PostgreSQL returns 1e38 as a whole number of 39 digits, which readers of archives refuse; `check_findings` makes it a float
    return {name: getattr(row, name) for name in AUTOPSY_FIELDS} | {"findings": check_findings(row.findings)}


def _rows(session: Session, table: type[Base], run_id: int) -> Iterator[dict[str, Any]]:
    of, names = table_of(table), columns_of(table)
    chosen = select(*(of.c[name] for name in names)).where(of.c.run_id == run_id).order_by(*of.primary_key)
    for row in session.execute(chosen):
        yield dict(zip(names, row, strict=True))


def _blocks(session: Session, run_id: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    """(columns, payload) of each block. Raises DamagedPayload, because the digests of the archive would declare a damaged
    payload intact."""
    of, names = table_of(BlockRow), columns_of(BlockRow)
    chosen = select(*of.c).where(of.c.run_id == run_id).order_by(*of.primary_key).execution_options(yield_per=FETCH_ROWS)
    for row in session.execute(chosen):
        verify(row)
        yield {name: getattr(row, name) for name in names}, bytes(row.payload)
