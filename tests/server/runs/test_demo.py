"""The demo is submitted once, to an empty installation, and is what the first page promises."""

from __future__ import annotations

from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Run, Sweep
from server.runs.demo import submit_demo
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
