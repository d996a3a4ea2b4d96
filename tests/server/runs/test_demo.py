"""The demo is submitted once, to an empty installation, and is what the first page promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Run, Sweep
from server.runs.demo import GRID, SWEEP, submit_demo
from stablessm_core.config import parse_config, with_settings
from stablessm_core.telemetry.sinks import MemorySink
from stablessm_core.training.train import train
from tests.server.recording import submitted


def test_an_empty_installation_gets_a_sweep_and_a_classification(database: Database) -> None:
    assert submit_demo(database) == 9
    with database.read() as session:
        runs = session.scalars(select(Run).order_by(Run.id)).all()
        sweep = session.scalars(select(Sweep)).one()
    cells = {
        (r.config["model"]["reparameterization"]["name"], r.config["optimizer"]["lr"]) for r in runs if r.sweep_id == sweep.id
    }
    assert {name for name, _ in cells} == {"direct", "softplus", "exp", "best"}
    assert len({lr for _, lr in cells}) == 2
    assert len(cells) == 8
    assert [r.config["task"]["name"] for r in runs if r.sweep_id is None] == ["digits"]
    assert all(r.status == "queued" and r.tags == ["demo"] for r in runs)


def test_it_is_never_submitted_twice_nor_beside_other_runs(sqlite: Database) -> None:
    submitted(sqlite)
    assert submit_demo(sqlite) == 0


def test_a_second_start_finds_the_first_demo(sqlite: Database) -> None:
    submit_demo(sqlite)
    assert submit_demo(sqlite) == 0


@pytest.mark.parametrize("seed", range(3))  # one configuration, other roundings
def test_its_first_run_diverges(tmp_path: Path, seed: int) -> None:
    setting = {name: values[0] for name, values in GRID.items()}
    assert setting["model.reparameterization.name"] == "direct"
    config = parse_config(with_settings(SWEEP, {**setting, "train.seed": seed}))
    outcome = train(config, sink=MemorySink(), data_root=tmp_path, checkpoint_dir=tmp_path)
    assert outcome.status == "diverged"
