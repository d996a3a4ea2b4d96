"""Runs are filtered, sorted and shown by the newest value of any scalar, recorded or logged, on both engines."""

from __future__ import annotations

import math

import pytest

from server.database.connection import Database
from server.lifecycle.answers import run_rows, runs_json
from server.search.columns import column, columns, value
from server.search.completion import fields_json
from server.search.filter_syntax import FilterError
from server.search.filters import parse_filter
from server.search.listing import list_runs
from stablessm_core.report.messages import MetricsMessage
from tests.server.recording import Recording, claimed
from tests.server.storing import store_metrics

pytestmark = pytest.mark.both_engines

LOGGED = [0.5, 2.5, math.nan, math.inf, -1e-7]


@pytest.fixture
def measured(database: Database) -> Database:
    """Runs 1 to 5 with the values LOGGED of val/loss. Runs 1 to 4 also log "val acc" and record train/loss. Run 6 has nothing."""
    for i, loss in enumerate(LOGGED):
        own = claimed(database)
        if i < 4:
            Recording(database, own).write(32)
        values = {"val/loss": [9.0, loss]} | ({"val acc": [None, i / 4]} if i < 4 else {})
        with database.write() as session:
            store_metrics(session, own.run_id, own.attempt, MetricsMessage([10, 500], values))
    claimed(database)
    return database


FILTERS = {
    "val/loss < 2": [1, 5],
    "val/loss >= 0.5": [1, 2, 4],
    "val/loss=nan": [3],
    "val/loss = Infinity": [4],
    "val/loss = null": [6],
    "NOT val/loss<2": [2, 3, 4, 6],
    "val/loss in (0.5, 2.5)": [1, 2],
    '"val acc" > 0.3': [3, 4],
    "train/loss != null": [1, 2, 3, 4],
    "nobody/logs-this.one:@2 > 0": [],
    'metric.loss>0 OR "val/loss" = 2.5': [2],
}


def test_a_filter_compares_the_newest_value(measured: Database) -> None:
    with measured.read() as session:
        found = {q: [run.id for run in list_runs(session, q=q, sort="id").runs] for q in FILTERS}
    assert found == FILTERS


def test_runs_are_sorted_by_a_scalar_across_pages(measured: Database) -> None:
    with measured.read() as session:
        first = list_runs(session, sort="-val/loss", limit=2)
        second = list_runs(session, sort="-val/loss", limit=2, cursor=first.next_cursor)
        third = list_runs(session, sort="-val/loss", limit=2, cursor=second.next_cursor)
    assert [run.id for page in (first, second, third) for run in page.runs] == [4, 2, 1, 5, 6, 3]


def test_a_scalar_is_a_column_and_part_of_the_answer(measured: Database) -> None:
    names = ["val/loss", "metric.val acc", "train/loss"]
    shown = columns(names)
    assert [(c.title, c.sort) for c in shown] == [
        ("val/loss", "val/loss"),
        ("val acc", "metric.val acc"),
        ("train/loss", "train/loss"),
    ]
    with measured.read() as session:
        rows = run_rows(session)
        some = runs_json(session, rows, 30.0, ["val/loss", "val acc"])
        everything = runs_json(session, rows, 30.0, None)
    assert [value(run, "val/loss") for run in some] == [0.5, 2.5, "NaN", "Infinity", -1e-7, None]
    assert [value(run, "metric.val acc") for run in some] == [0.0, 0.25, 0.5, 0.75, None, None]
    assert [sorted(run["metrics"]) for run in everything][3:] == [["train/loss", "val acc", "val/loss"], ["val/loss"], []]


def test_filters_suggest_the_scalars_of_recent_runs(measured: Database) -> None:
    with measured.read() as session:
        names = [field["name"] for field in fields_json(session)]
    assert names[-3:] == ["val/loss", "train/loss", '"val acc"']


@pytest.mark.parametrize("name", ["metric.", "a/" + "b" * 200, "ssm/0/weight"])
def test_a_name_that_no_scalar_can_have_is_refused(sqlite: Database, name: str) -> None:
    with pytest.raises(FilterError):
        parse_filter(f"{name} > 0", "sqlite")
    with pytest.raises(FilterError):
        column(name)
