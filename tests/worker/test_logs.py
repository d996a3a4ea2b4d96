"""The logs of every process contain run and attempt but no secret, and the metrics of writes are correct."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.database.connection import Database
from server.database.models import Worker
from server.logs import LineFormatter, without_secrets
from stablessm_core.report.messages import TruncateMessage
from stablessm_core.telemetry.sink import Flush
from tests.worker.station import SMALL, Station
from worker.write_statistics import WriteStatistics, WriteTotals, zeros

pytestmark = pytest.mark.spread

SECRET = "s3cret-s3cret-s3cret"
LEAKS = [
    f"GET /?a=1&token={SECRET}&b=2",
    f"cannot connect to postgresql+psycopg://user:{SECRET}@host:5432/name",
    f"redis://:{SECRET}@redis:6379/0 is away",
    f"Authorization: Bearer {SECRET}",
    f"headers {{'authorization': 'Bearer {SECRET}'}}",
    f"cookie stablessm_session={SECRET}; other=1",
]


@pytest.fixture
def station(sqlite_url: str, tmp_path: Path) -> Iterator[Station]:
    station = Station(Database(sqlite_url), tmp_path / "state")
    yield station
    station.close()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_process_logs_run_and_attempt_and_the_run_s_writes_are_counted(station: Station) -> None:
    station.start("--slots", "1")
    run = station.submit(SMALL)
    station.until_ended(run)

    def writes() -> dict[str, Any] | None:
        with station.database.read() as session:
            rows = [worker.capabilities.get("writes") for worker in session.query(Worker)]
        return next((row for row in rows if row and row["values_stored"] == row["values_recorded"] > 0), None)

    numbers = station.until("the numbers of its writes", writes)
    assert numbers["values_dropped"] == numbers["spool_bytes"] == 0
    assert sum(numbers["counts"]) > 0
    assert numbers["sum"] > 0

    def told() -> list[dict[str, Any]] | None:  # the worker logs the end shortly after it is stored
        lines = [line for line in lines_of(station.log) if line.get("run") == run]
        return lines if {"claimed", "training", "run finished"} <= {line["msg"] for line in lines} else None

    of_worker = station.until("the run's story in the worker's log", told)
    assert {line["attempt"] for line in of_worker} == {1}
    of_training = lines_of(station.data_dir / "runs" / str(run) / "log.txt")
    assert all((line["run"], line["attempt"]) == (run, 1) for line in of_training)
    for line in [*of_worker, *of_training]:
        assert {"time", "level", "logger", "msg"} <= set(line)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("leak", LEAKS)
def test_no_log_line_contains_a_secret(leak: str, form: str) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter({"run": 1}, form))
    log = logging.Logger("x")
    log.addHandler(handler)
    log.warning("it says %s", leak, extra={"address": leak})
    try:
        raise ValueError(leak)
    except ValueError:
        log.exception("failed")
    assert SECRET not in out.getvalue()
    assert "run" in out.getvalue()
    assert "user" in out.getvalue() or "user" not in leak  # the rest of a URL stays readable


def test_text_without_secrets_is_logged_unchanged() -> None:
    for text in ("step 12: loss 0.5", "http://127.0.0.1:8000/runs/1?series=a@b", "bearer of news", "time 12:30:11 a@b"):
        assert without_secrets(text) == text


def test_discarded_values_are_counted_as_dropped() -> None:
    import numpy as np

    from stablessm_core.telemetry.blocks import Block

    writes, flush = WriteStatistics(), Flush([Block("g", 0, 1, 1, np.zeros((3, 4), np.float32))], [], 4, None)
    for record in (flush, TruncateMessage(0, ""), flush, flush):
        writes.count_recorded(record)
    writes.count_stored(70)
    writes.count_dropped()
    numbers = writes.numbers
    assert [numbers[f"values_{what}"] for what in ("recorded", "stored", "dropped")] == [36, 12, 24]
    assert (sum(numbers["counts"]), numbers["spool_bytes"]) == (1, 70)


def test_write_totals_sum_over_current_and_ended_training_processes() -> None:
    totals, one = WriteTotals(), zeros() | {"values_stored": 5, "spool_bytes": 7, "sum": 0.5}
    totals.update(1, 1, one)
    totals.update(1, 1, one | {"values_stored": 6})
    totals.update(2, 1, one)
    assert (totals.total()["values_stored"], totals.total()["spool_bytes"]) == (11, 14)
    totals.ended(1, 1)
    totals.ended(3, 1)
    assert (totals.total()["values_stored"], totals.total()["spool_bytes"], totals.total()["sum"]) == (11, 7, 1.0)
