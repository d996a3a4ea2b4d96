"""Everything that is generated from the table of run fields contains every field, and each name once."""

from __future__ import annotations

import json

from server.database.connection import Database
from server.database.models import Run
from server.http.schemas.runs import RunAnswer
from server.lifecycle import transitions as lifecycle
from server.lifecycle.answers import run_rows, runs_json, runs_json_bytes
from server.lifecycle.run_fields import ANSWERED, FIELDS, FILTERED
from server.search.columns import KNOWN
from server.search.filter_fields import all_names, field
from tests.server.recording import config

NAMES = {known.name for known in ANSWERED}


def test_a_run_response_has_exactly_the_fields_of_the_table(sqlite: Database) -> None:
    with sqlite.write() as session:
        lifecycle.submit(session, config())
    with sqlite.read() as session:
        rows = run_rows(session, Run.id == 1)
        answer, text = runs_json(session, rows, 25.0)[0], runs_json_bytes(session, rows, 25.0)[0]
    assert set(answer) == NAMES
    assert json.loads(text) == answer
    assert set(RunAnswer.model_validate(answer).model_dump()) == NAMES


def test_filters_and_columns_contain_each_field_of_the_table_once() -> None:
    filters = [known.filter_name for known in FIELDS if known.filter]
    columns = [known.column_name for known in FIELDS if known.column]
    assert len(set(filters)) == len(filters)
    assert len(set(columns)) == len(columns)
    assert set(filters) == set(FILTERED) <= set(all_names())
    assert set(columns) <= set(KNOWN)
    for name in filters:
        assert field(name, "sqlite").kind == FILTERED[name].filter.kind  # type: ignore[union-attr]
