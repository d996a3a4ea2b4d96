"""Lists show the layers of a run, whether its configuration has a name, a section or a list of sections."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from server.compare.sweep_grid import sweep_grid
from server.compare.sweep_table import run_table
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.lifecycle.answers import run_rows, runs_json
from server.lifecycle.sweep_submission import expand
from server.search.columns import column, value
from server.search.filters import parse_filter
from server.search.layers import eigenvalues_per_layer, layer_label
from server.search.listing import list_runs
from stablessm_core.spec.layers import layers_text
from tests.server.recording import config

pytestmark = pytest.mark.both_engines

MODELS: list[dict[str, Any]] = [
    {"d_state": 8},
    {"layer": "mamba", "d_model": 16},
    {"layer": {"name": "s4d", "d_state": 6}, "d_model": 16},
    {"layers": ["lru", {"name": "mamba", "d_state": 4}], "d_model": 16},
    {"layers": ["stable_ssm", "rg_lru"], "d_state": 5},
]


@pytest.fixture
def filled(database_url: str) -> Database:
    """A database with runs 1 to 5 from MODELS, and run 6 as stored by a release in which layers could not be chosen."""
    database = Database(database_url)
    with database.write() as session:
        for model in [*MODELS, {}]:
            lifecycle.submit(session, config(model=model))
        old = session.get_one(Run, 6).config
        stored = {**old, "model": {k: v for k, v in old["model"].items() if k not in ("layer", "layers")}}
        session.execute(update(Run).where(Run.id == 6).values(config=stored))
    return database


def test_a_filter_finds_every_run_that_has_the_layer(filled: Database) -> None:
    expected = {
        "layer=mamba": [2, 4],
        "layer!=mamba": [1, 3, 5, 6],
        "NOT layer=mamba": [1, 3, 5, 6],
        "layer=stable_ssm": [1, 5, 6],
        "layer in (s4d, lru)": [3, 4],
        "layer~lru": [4, 5],
        "layer=null": [],
        "d_state=6": [3],
        "d_state>=6": [1, 2, 3, 4, 6],
        "model.layer.d_state=6": [3],
        "reparam=null": [2, 3, 4, 5],
        "reparam=best": [1, 6],
    }
    with filled.read() as session:
        dialect = session.get_bind().dialect.name
        found = {q: list(session.scalars(select(Run.id).where(*parse_filter(q, dialect)).order_by(Run.id))) for q in expected}
        assert found == expected
        assert [run.id for run in list_runs(session, sort="layer").runs] == [4, 2, 3, 1, 5, 6]
    filled.close()


def test_columns_show_layer_names_and_eigenvalues_per_layer(filled: Database) -> None:
    with filled.read() as session:
        runs = [{"config": run.config} for run in session.scalars(select(Run).order_by(Run.id))]
    shown = ["stable_ssm", "mamba", "s4d", "lru, mamba", "stable_ssm, rg_lru", "stable_ssm"]
    assert [value(run, "layer") for run in runs] == shown
    assert [value(run, "d_state") for run in runs] == [8, 16 * 2 * 16, 16 * 6 // 2, 4 * 2 * 16, 64, 64]
    assert (column("layer").title, column("layer").sort) == ("Layer", "layer")
    filled.close()


def test_a_run_that_starts_outside_the_boundary_says_so_wherever_its_layer_is_shown(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as session:
        for start in (0.5, -0.5):
            model = {"layer": {"name": "s4d", "real_start": start}, "reparameterization": {"name": "direct"}, "d_model": 4}
            lifecycle.submit(session, config(model=model))
        lifecycle.submit(session, config())
    with database.read() as session:
        runs = runs_json(session, run_rows(session), lease_seconds=10)
    assert [run["unstable_start"] for run in runs] == [True, False, False]
    assert [value(run, "layer") for run in runs] == ["s4d (unstable start)", "s4d", "stable_ssm"]
    database.close()


def test_an_unknown_layer_is_shown_by_its_name() -> None:
    config = {"model": {"layer": {"name": "of_elsewhere", "options": [1]}}}
    assert layers_text(config) == "of_elsewhere"
    assert eigenvalues_per_layer(config) is None
    assert layer_label(config) == config["model"]["layer"]


LAYERS_AND_MAPS: dict[str, list[Any]] = {
    "model.layer": ["stable_ssm", "mamba", {"name": "mamba", "d_state": 4}],
    "model.reparameterization.name": ["native", "exp"],
}
MODELS_AND_SEEDS: dict[str, list[Any]] = {
    "model": [{"layer": "mamba", "d_model": 16, "reparameterization": {"name": name}} for name in ("native", "exp")],
    "train.seed": [0, 1],
}


@pytest.mark.parametrize(("grid", "rows"), [(LAYERS_AND_MAPS, "model.layer"), (MODELS_AND_SEEDS, "model")])
def test_every_run_of_a_sweep_over_layers_is_in_exactly_one_grid_cell(
    database_url: str, grid: dict[str, list[Any]], rows: str
) -> None:
    database = Database(database_url)
    base = {"task": {"name": "polynomial_memory"}, "model": {"d_model": 16}}
    with database.write() as session:
        sweep = lifecycle.new_sweep(session, base, grid)
        for _, made in expand(base, grid):
            lifecycle.submit(session, made, sweep_id=sweep.id)
        columns = next(path for path in grid if path != rows)
        found = sweep_grid(session, sweep, rows, columns)
        table = run_table(session, sweep)
        usual = sweep_grid(session, sweep)
    assert {usual.row, usual.column} == ({*grid} if rows == "model.layer" else {None, "model"})
    assert [[len(cell.runs) for cell in line] for line in found.cells] == [[1] * len(grid[columns])] * len(grid[rows])
    numbers = [run for line in found.cells for cell in line for run in cell.runs]
    assert sorted(numbers) == sorted(set(numbers))
    if rows == "model.layer":
        said = [row[table.names.index("model.layer")] for row in table.rows]
        assert said == [*["stable_ssm"] * 2, *["mamba"] * 2, *['{"name": "mamba", "d_state": 4}'] * 2]
    database.close()
