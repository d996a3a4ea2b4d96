"""Who reads the logs finds a run in every process by its number and attempt, and no secret; the numbers of writing are real."""

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
from stablessm_core.telemetry.sinks import Flush
from tests.worker.station import SMALL, Station
from worker.records import TruncateRecord
from worker.write_statistics import WriteStatistics, WriteTotals, zeros

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


def test_a_run_is_found_by_number_and_attempt_in_every_process_and_its_writes_are_counted(station: Station) -> None:
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

    def told() -> list[dict[str, Any]] | None:  # the worker hears of the end a moment after it is in the database
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
def test_no_secret_reaches_a_line(leak: str, form: str) -> None:
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
    assert "user" in out.getvalue() or "user" not in leak  # the rest of an address stays readable


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("step 12: loss 0.5", "http://127.0.0.1:8000/runs/1?series=a@b", "bearer of news", "time 12:30:11 a@b"):
        assert without_secrets(text) == text


def test_values_that_are_given_up_are_counted_as_dropped() -> None:
    import numpy as np

    from stablessm_core.telemetry.blocks import Block

    writes, flush = WriteStatistics(), Flush([Block("g", 0, 1, 1, np.zeros((3, 4), np.float32))], [], 4, None)
    for record in (flush, TruncateRecord(0, ""), flush, flush):
        writes.handed_over(record)
    writes.stored(70)
    writes.given_up()
    numbers = writes.numbers
    assert [numbers[f"values_{what}"] for what in ("recorded", "stored", "dropped")] == [36, 12, 24]
    assert (sum(numbers["counts"]), numbers["spool_bytes"]) == (1, 70)


def test_a_worker_adds_up_its_training_processes_and_keeps_those_that_are_gone() -> None:
    totals, one = WriteTotals(), zeros() | {"values_stored": 5, "spool_bytes": 7, "sum": 0.5}
    totals.update(1, 1, one)
    totals.update(1, 1, one | {"values_stored": 6})
    totals.update(2, 1, one)
    assert (totals.total()["values_stored"], totals.total()["spool_bytes"]) == (11, 14)
    totals.ended(1, 1)
    totals.ended(3, 1)
    assert (totals.total()["values_stored"], totals.total()["spool_bytes"], totals.total()["sum"]) == (11, 7, 1.0)
