"""The demo of an empty installation: four maps at two learning rates, where `direct` diverges, and one classification."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Run
from server.runs import lifecycle
from server.runs.submission import expand
from stablessm_core.config import parse_config, with_settings

SWEEP: dict[str, Any] = {
    "name": "memory",
    "tags": ["demo"],
    "task": {"name": "polynomial_memory"},
    "model": {"d_model": 32, "d_state": 32},
    "optimizer": {"warmup_steps": 100},
    "train": {"steps": 300, "batch_size": 32, "eval_every": 100},
}
GRID: dict[str, list[Any]] = {
    "model.reparameterization.name": ["direct", "best", "softplus", "exp"],
    "optimizer.lr": [0.4, 0.01],  # at 0.4 `direct`, which comes first, diverges; at 0.2 rounding decides
}
DIGITS: dict[str, Any] = {
    "name": "digits, pixel by pixel",
    "tags": ["demo"],
    "task": {"name": "digits"},
    "model": {"n_layers": 2, "d_model": 32, "d_state": 32},
    "optimizer": {"lr": 0.004},
    "train": {"steps": 600, "batch_size": 64, "eval_every": 100},
}


def submit_demo(database: Database) -> int:
    """Queue the demo if nothing was ever submitted here; how many runs that made."""
    with database.write() as session:
        if session.scalar(select(Run.id).limit(1)) is not None:
            return 0
        sweep = lifecycle.new_sweep(session, SWEEP, GRID)
        count = 0
        for setting, _ in expand(SWEEP, GRID):
            name = f"{setting['model.reparameterization.name']}, lr {setting['optimizer.lr']:g}"
            lifecycle.submit(session, parse_config(with_settings(SWEEP, {**setting, "name": name})), sweep_id=sweep.id)
            count += 1
        lifecycle.submit(session, parse_config(DIGITS))
        return count + 1
