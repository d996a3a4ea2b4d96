"""The demo for an empty installation, and a guide to the demo. The demo is a sweep over maps, learning rates and seeds, and two
more runs.

Under AdamW at lr 0.2 the map `direct` diverges with every seed. At lr 0.1, `direct` usually stays finite, but with eigenvalues
outside the stability boundary. At lr 0.01, all maps perform equally well. One more run uses plain SGD, where a single gradient
can push an eigenvalue outside the boundary. The last run classifies digits with a larger model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import NOT_IN_TRASH, Run, Sweep
from server.lifecycle import transitions as lifecycle
from server.lifecycle.sweep_submission import expand
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.paths import with_settings

NAME = "which map lives?"
SMALL = {"d_model": 16, "d_state": 16}
SWEEP: dict[str, Any] = {
    "name": NAME,
    "tags": ["demo"],
    "task": {"name": "polynomial_memory"},
    "model": SMALL,
    "train": {"steps": 300, "batch_size": 16, "eval_every": 100},
}
GRID: dict[str, list[Any]] = {
    "model.reparameterization.name": ["direct", "exp", "best"],
    "optimizer.lr": [0.2, 0.1, 0.01],  # at 0.2 the first map, `direct`, diverges with every seed
    "train.seed": [0, 1, 2],
}
THROWN: dict[str, Any] = {
    "name": "direct under plain SGD",
    "tags": ["demo"],
    "task": {"name": "digits"},
    "model": SMALL | {"reparameterization": {"name": "direct"}},
    "optimizer": {"name": "sgd", "lr": 0.3},
    "train": {"steps": 300, "batch_size": 16, "eval_every": 100, "seed": 2},
}
DIGITS: dict[str, Any] = {
    "name": "digits, pixel by pixel",
    "tags": ["demo"],
    "task": {"name": "digits"},
    "model": {"n_layers": 2, "d_model": 32, "d_state": 32},
    "optimizer": {"lr": 0.004},
    "train": {"steps": 600, "batch_size": 64, "eval_every": 100},
}
MANY = 200  # number of runs above which the guide is not shown


@dataclass(frozen=True)
class Tour:
    """A guide to the demo: its sweep, and the first run with each outcome (None if no run has the outcome)."""

    sweep_id: int
    lost: Run | None  # a run that diverged
    unstable: Run | None  # a run that finished with eigenvalues outside the boundary
    stable: Run | None  # a run that finished with the map `best`


def submit_demo(database: Database) -> int:
    """Queue the demo if the database contains no run, and return the number of queued runs."""
    with database.write() as session:
        if session.scalar(select(Run.id).limit(1)) is not None:
            return 0
        sweep = lifecycle.new_sweep(session, SWEEP, GRID)
        count = 0
        for setting, _ in expand(SWEEP, GRID):
            map_, lr, seed = setting.values()
            name = f"{map_}, lr {lr:g}, seed {seed}"
            lifecycle.submit(session, parse_config(with_settings(SWEEP, {**setting, "name": name})), sweep_id=sweep.id)
            count += 1
        for config in (THROWN, DIGITS):
            lifecycle.submit(session, parse_config(config))
            count += 1
        return count


def tour(session: Session) -> Tour | None:
    """The guide to the demo; None if there is no demo, or if there are more than MANY runs."""
    name = Sweep.base["name"].as_string()
    sweep_id = session.scalar(select(Sweep.id).where(name == NAME).order_by(Sweep.id).limit(1))
    if sweep_id is None or (session.scalar(select(func.count()).select_from(Run)) or 0) > MANY:
        return None
    runs = session.scalars(select(Run).where(Run.sweep_id == sweep_id, NOT_IN_TRASH).order_by(Run.id)).all()
    if not runs:
        return None
    finished = [run for run in runs if run.status == "finished"]
    return Tour(
        sweep_id,
        lost=next((run for run in runs if run.status == "diverged"), None),
        unstable=next((run for run in finished if run.unstable), None),
        stable=next((run for run in finished if run.config["model"]["reparameterization"]["name"] == "best"), None),
    )
