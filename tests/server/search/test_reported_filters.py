"""Filters, columns and comparisons read the free configuration of reported runs as `config.…`, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.compare.comparison import MAX_SETTINGS, compare, default_groups, differences_json, flat_settings
from server.compare.siblings import siblings_json
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle.answers import run_rows, runs_json
from server.search.columns import column, value
from server.search.filter_syntax import FilterError
from server.search.filters import parse_filter
from server.search.listing import list_runs
from server.search.reported_settings import setting_at, settings_of_config
from tests.server.recording import submitted
from tests.server.reported import opened

CONFIGS: list[Any] = [
    {"model": "mamba-130m", "optimizer": {"lr": 0.001, "betas": [0.9, 0.95]}, "amp": True, "layers": [{"d": 16}, {"d": 32}]},
    {"model": {"name": "s4", "d_state": 64}, "optimizer": {"lr": "0.001"}, "amp": False},
    ["a", {"lr": 3}],
    "just text",
    {},
]
OURS = len(CONFIGS) + 1  # the number of a trained run


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    sqlite = f"sqlite:///{tmp_path_factory.mktemp('reported') / 'x.db'}"
    database = Database(sqlite if request.param == "sqlite" else request.getfixturevalue("module_postgres_url"))
    database.migrate()
    for number, config in enumerate(CONFIGS):
        opened(database, config=config, project="hybrid" if number < 2 else "")
    submitted(database, optimizer__lr=0.5)
    yield database
    database.close()


def ids(session: Session, q: str) -> list[int]:
    conditions = parse_filter(q, session.get_bind().dialect.name)
    return list(session.scalars(select(Run.id).where(*conditions).order_by(Run.id)))


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("config.model=mamba-130m", [1]),
        ("config.model~s4", [2]),
        ("config.model.d_state>=64", [2, OURS]),  # the configuration of a trained run has the same path
        ("config.optimizer.lr<0.01", [1]),
        ("config.optimizer.lr=0.001", [1, 2]),  # a number and a text that spell the same
        ('config.optimizer.lr="0.001"', [1, 2]),
        ("config.optimizer.lr=0.5", [OURS]),
        ("config.optimizer.lr in (0.001, 0.5)", [1, 2, OURS]),
        ("config.amp=true", [1]),
        ("config.amp=false", [2]),
        ("config.layers.1.d=32", [1]),
        ("config.1.lr>2", [3]),
        ("config.model=null kind=reported", [3, 4, 5]),
        ("NOT config.amp=true kind=reported", [2, 3, 4, 5]),
        ("config.optimizer.lr=nan", []),
        ('"config.²"=1', []),
        ('"config.layers.٣"=1', []),
        ('"config.a}b"=1', []),
        ('"config.{a"=1', []),
        ('"config.optimizer,lr"=0.001', []),  # not another spelling of config.optimizer.lr
        (r'"config.a\"b"=1', []),
        (r'"config.a\\\\b"=1', []),
        ("project=hybrid", [1, 2]),
        ("NOT project=hybrid", [3, 4, 5, OURS]),
        ("kind=trained", [OURS]),
        ("layer=stable_ssm", [OURS]),
        ("layer!=mamba", [1, 2, 3, 4, 5, OURS]),
        ("d_state>0", [OURS]),
        ("lr>0", [OURS]),
    ],
)  # fmt: skip
def test_filters_read_the_free_configuration(filled: Database, q: str, expected: list[int]) -> None:
    with filled.read() as session:
        assert ids(session, q) == expected


def test_lists_sort_by_layer_and_project_page_by_page(filled: Database) -> None:
    with filled.read() as session:
        for sort in ("layer", "-layer", "project", "-project", "kind"):
            found, cursor = [], None
            while True:
                page = list_runs(session, sort=sort, cursor=cursor, limit=2)
                found += [run.id for run in page.runs]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert sorted(found) == list(range(1, OURS + 1)), sort
        with pytest.raises(FilterError):
            list_runs(session, sort="config.model")


def test_columns_show_values_of_the_free_configuration(filled: Database) -> None:
    with filled.read() as session:
        runs = runs_json(session, run_rows(session), 30.0)
    shown = {
        name: [value(run, column(name).name) for run in runs]
        for name in ("config.model", "config.optimizer.lr", "layer", "project")
    }
    assert shown["config.model"][:2] == ["mamba-130m", '{"name": "s4", "d_state": 64}']
    assert shown["config.optimizer.lr"] == [0.001, "0.001", None, None, None, 0.5]
    assert shown["layer"] == [None] * len(CONFIGS) + ["stable_ssm"]
    assert shown["project"] == ["hybrid", "hybrid", "", "", "", ""]


def test_comparisons_list_the_settings_that_differ_and_group_by_project(filled: Database) -> None:
    with filled.read() as session:
        runs = list(session.scalars(select(Run).order_by(Run.id)))
        found = compare(session, runs[:2], group_by=["project"], curves=False)
        assert [group["label"] for group in found.groups] == ["hybrid"]
        fields = {row["field"]: row["values"] for row in found.differences}
        assert fields["config.amp"] == [True, False]
        assert fields["config.model"] == ["mamba-130m", None]
        assert default_groups(runs[:5]) is None
        both = compare(session, runs, group_by=["kind"], curves=False)
        assert [group["label"] for group in both.groups] == ["reported", "trained"]
        assert not {"project", "kind"} & set(both.settings_within)
        assert siblings_json(session, runs[4]) == []


def test_comparisons_of_large_free_configurations_are_bounded() -> None:
    runs = [
        Run(id=number, kind="reported", project="", reported_config={f"a{number}.{i}": i for i in range(3000)})
        for number in range(60)
    ]
    rows, left_out = differences_json([flat_settings(run) for run in runs])
    assert (len(rows), left_out) == (MAX_SETTINGS, 59 * MAX_SETTINGS)
    assert rows[0] == {"field": "config.a0.0", "values": [0, *[None] * 59]}


def test_the_fields_that_differ_are_those_with_another_value_in_some_run() -> None:
    flat = [{"a": 1, "b": 1, "c": None, "d": [1]}, {"a": 1, "b": 2, "d": [1]}, {"a": 1, "b": 1, "e": 0, "name": "x"}]
    assert differences_json(flat) == (
        [
            {"field": "b", "values": [1, 2, 1]},
            {"field": "d", "values": [[1], [1], None]},
            {"field": "e", "values": [None, None, 0]},
        ],
        0,
    )


def test_every_json_has_settings_with_paths_that_lead_to_their_values() -> None:
    for config in CONFIGS:
        for path, found in settings_of_config(config).items():
            assert path == "config" or setting_at(config, path) == found
    assert settings_of_config({}) == {}
    assert settings_of_config("text") == {"config": "text"}
    assert settings_of_config([1, 2]) == {"config": [1, 2]}
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert list(settings_of_config({"a": deep}).values()) == [[1]]
