"""The study of all systems: which runs it submits, when it considers them ended, and what it reads from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.systems_600 import add_rates
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from stablessm_core.client import Client
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.model import Model
from studies.systems import LONG, QUICK, SEEDS, Row, Size, models, parse_layers, reproduce, submit
from tests.server.http_service import TOKEN, InProcess, application
from tests.server.recording import Recording, claim

TINY = Size("tiny", {"memory": {"name": "polynomial_memory", "length": 8}}, {"d_model": 4}, 20, 4, 0.01, (0.1,))
RUNS = 2 * 2 * SEEDS  # the native map and `best`, each at two learning rates


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.close()


@pytest.mark.parametrize("size", [QUICK, LONG], ids=lambda size: size.name)
def test_every_layer_has_a_valid_row_and_layers_that_can_use_best_have_a_second_row(size: Size) -> None:
    rows = models(size)
    assert {one["layer"] for one in rows} == set(LAYERS)
    best = {one["layer"] for one in rows if one["reparameterization"]["name"] == "best"}
    can = {
        name
        for name in LAYERS
        if (section := LAYERS[name].model_validate({"name": name})).time_of_map() and section.native != "best"
    }
    assert best == can - {name for name in can if name == "hyena"}
    for one in rows:
        for task in size.tasks.values():
            parse_config({"task": dict(task), "model": one})
        Model.model_validate(one)


def test_an_unknown_layer_is_refused_by_name() -> None:
    assert parse_layers(" s4d, mamba,") == ["s4d", "mamba"]
    with pytest.raises(ValueError, match="'s4x'; allowed: stable_ssm"):
        parse_layers("s4d,s4x")


@pytest.mark.slow
def test_the_rows_count_the_runs_of_every_sweep(database: Database, tmp_path: Path) -> None:
    progress: list[str] = []

    def act_as_worker(line: str) -> None:
        """Act as the worker once the runs are submitted: the first run diverges, and all others finish."""
        progress.append(line)
        for number in range(RUNS if len(progress) == 1 else 0):
            claimed = claim(database)
            if number == SEEDS:  # the first run with `best`
                claimed.config["model"]["reparameterization"]["time"] = "discrete"  # Recording needs this field
                Recording(database, claimed, width=4, weird=False).write(20)
            status, loss = ("finished", 0.25) if number else ("diverged", float("nan"))
            with database.write() as session:
                result = {"train_loss": loss, "eval_loss": 0.5, "seconds": 2.0}
                lifecycle.set_environment(session, claimed.run_id, claimed.attempt, {"parameters": 12})
                lifecycle.finish(session, claimed.run_id, claimed.attempt, status, "", result)

    with Client("http://127.0.0.1:8000", TOKEN, transport=InProcess(application(database.url, tmp_path))) as client:
        native, best = reproduce(client, TINY, ["rwkv4"], act_as_worker)
    assert progress[0] == "sweeps 1, 2 at http://127.0.0.1:8000/sweeps"
    assert progress[1] == f"{RUNS} of {RUNS} runs have ended"
    assert [(row.layer, row.map) for row in (native, best)] == [("rwkv4", "native"), ("rwkv4", "best")]
    assert native.scores == {"memory": (0.5, 4, 5)}
    assert native.rates == {0.01: (4, 5), 0.1: (5, 5)}
    assert best.rates == {0.01: (5, 5), 0.1: (5, 5)}
    assert native.largest_rate is None
    assert (native.parameters, best.steps_per_second) == (12, 10.0)
    assert native.ratios is None
    assert best.ratios is not None


@pytest.mark.slow
def test_a_size_without_learning_rates_has_one_sweep_for_each_task(database: Database, tmp_path: Path) -> None:
    with Client("http://127.0.0.1:8000", TOKEN, transport=InProcess(application(database.url, tmp_path))) as client:
        assert len(submit(client, replace(TINY, rates=()), ["gla"])) == len(TINY.tasks)
        assert {run["config"]["optimizer"]["lr"] for run in client.runs()} == {TINY.lr}


def test_the_grid_of_deaths_gives_each_row_its_rates() -> None:
    rows = [Row("lru", "native", rates={0.01: (5, 5)}), Row("lru", "best")]
    record = {"layer": "lru", "map": "native", "lr": 1.0, "died": None}
    add_rates(rows, [record, record | {"died": 7}, record | {"map": "best", "lr": 3.0}, record | {"layer": "gla"}])
    assert [row.rates for row in rows] == [{0.01: (5, 5), 1.0: (1, 2)}, {3.0: (1, 1)}]
    assert rows[0].largest_rate == 0.01
