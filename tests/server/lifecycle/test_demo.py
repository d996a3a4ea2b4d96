"""The demo is submitted once, to an empty installation, and matches the description on the first page."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Run, Sweep
from server.lifecycle.demo import GRID, SWEEP, submit_demo, tour
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.paths import with_settings
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.train import train
from tests.server.recording import submitted

pytestmark = pytest.mark.slow


def test_the_demo_is_a_sweep_over_seeds_and_two_more_runs(database: Database) -> None:
    assert submit_demo(database) == 29
    with database.read() as session:
        runs = session.scalars(select(Run).order_by(Run.id)).all()
        sweep = session.scalars(select(Sweep)).one()
    of_sweep = [run.config for run in runs if run.sweep_id == sweep.id]
    cells = {(c["model"]["reparameterization"]["name"], c["optimizer"]["lr"], c["train"]["seed"]) for c in of_sweep}
    assert {name for name, _, _ in cells} == {"direct", "exp", "best"}
    assert len({lr for _, lr, _ in cells}) == len({seed for _, _, seed in cells}) == 3
    assert len(cells) == 27
    assert [(r.config["task"]["name"], r.config["optimizer"]["name"]) for r in runs if r.sweep_id is None] == [
        ("digits", "sgd"),
        ("digits", "adamw"),
    ]
    assert all(r.status == "queued" and r.tags == ["demo"] for r in runs)


def test_the_tour_shows_the_first_run_of_each_outcome(sqlite: Database) -> None:
    with sqlite.read() as session:
        assert tour(session) is None
    submit_demo(sqlite)
    with sqlite.write() as session:
        waiting = tour(session)
        assert waiting is not None
        assert waiting.lost is waiting.unstable is waiting.stable is None
        for run in session.scalars(select(Run).where(Run.sweep_id == waiting.sweep_id)):
            map_ = run.config["model"]["reparameterization"]["name"]
            run.status = "diverged" if map_ == "direct" and run.config["optimizer"]["lr"] == 0.2 else "finished"
            if map_ == "direct" and run.status == "finished":
                run.unstable = {"eigenvalues": 3, "of": 16}
    with sqlite.read() as session:
        shown = tour(session)
        assert shown is not None
        fates = [run and run.name for run in (shown.lost, shown.unstable, shown.stable)]
    assert fates == ["direct, lr 0.2, seed 0", "direct, lr 0.1, seed 0", "best, lr 0.2, seed 0"]


def test_the_demo_is_not_submitted_if_other_runs_exist(sqlite: Database) -> None:
    submitted(sqlite)
    assert submit_demo(sqlite) == 0


def test_the_demo_is_not_submitted_twice(sqlite: Database) -> None:
    submit_demo(sqlite)
    assert submit_demo(sqlite) == 0


@pytest.mark.parametrize("seed", GRID["train.seed"])
def test_the_map_direct_diverges_at_the_highest_learning_rate_with_every_seed(tmp_path: Path, seed: int) -> None:
    setting = {name: values[0] for name, values in GRID.items()}
    assert (setting["model.reparameterization.name"], setting["optimizer.lr"]) == ("direct", 0.2)
    config = parse_config(with_settings(SWEEP, {**setting, "train.seed": seed}))
    outcome = train(config, sink=MemorySink(), data_root=tmp_path, checkpoint_dir=tmp_path)
    assert outcome.status == "diverged"
    assert outcome.divergence is not None
    assert outcome.divergence["tensor"] == "blocks.0.ssm.state"
