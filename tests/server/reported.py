"""Plants reported runs in a database without the protocol by which programs report them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from server.database.connection import Database
from server.database.fence import add_transition, lock_run
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.lifecycle.reported import REPORTED, mark_lost
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.how import How, read_how
from tests.server.recording import nonfinite
from tests.server.storing import store_catalogue, store_flush

PATHS = ("backbone.layers.0.mixer", "backbone.layers.1.mixer")
WIDTH = 4
FORM = Form.of_map("exp", "continuous")
UNKNOWN = How()


def opened(
    database: Database, *, config: Any = None, how: How = UNKNOWN, layers: Sequence[str] = (), name: str | None = None,
    project: str = "", tags: Sequence[str] = (), **columns: Any,
) -> int:  # fmt: skip
    """A running reported run without numbers, attempt 1. layers: the paths of its layers. Returns the run's number."""
    described = [{"name": path.rpartition(".")[2], "path": path, "width": WIDTH, "note": None} for path in layers]
    with database.write() as session:
        run = Run(
            kind=REPORTED, external_id=str(uuid.uuid4()), project=project, name=name, tags=list(tags), config={},
            reported_config={} if config is None else config, how=how.data, layers=described or None, status="running", attempt=1,
            created_at=time.time(), started_at=time.time(), **columns,
        )  # fmt: skip
        session.add(run)
        session.flush()
        add_transition(session, run, "opened by a test")
        return run.id


def recorded(
    database: Database,
    run_id: int,
    points: int = 40,
    *,
    first: int = 1,
    bad: tuple[int, int, int] | None = None,
    loss: bool = True,
) -> None:
    """Record the loss, and the eigenvalues of each layer of the run, as a reporting program sends them.

    loss: False if the program reports no loss. bad: (layer, eigenvalue, step) of a gradient that is NaN; the loss is NaN from
    this step on.
    """
    rng = np.random.default_rng(run_id)
    with database.write() as session:
        run = lock_run(session, run_id, 1)
        layers = range(len(run.layers or ()))
        specs = [names.scalar(names.TRAIN_LOSS)] if loss else []
        for layer in layers:
            specs += names.layer_catalogue(layer, WIDTH, FORM)
            specs += names.following_catalogue(layer, WIDTH, FORM, length=read_how(run.how).length, every_eigenvalue=True)
        store_catalogue(session, run_id, 1, specs)
        losses = np.exp(-0.01 * np.arange(points))[None] + 0.1 * rng.random((1, points))
        blocks = []
        for layer in layers:
            ratio, weight = (
                rng.random((WIDTH, points)),
                np.log(1 + np.arange(WIDTH))[:, None] + 0.01 * rng.random((WIDTH, points)),
            )
            step_size = 0.1 + np.zeros((WIDTH, points))
            if bad is not None and bad[0] == layer:
                ratio[bad[1], bad[2] - first] = np.nan
            values = np.concatenate([ratio, weight, step_size]).astype(np.float32)
            blocks.append(Block(names.layer_group(layer), 0, first, 1, values))
        alerts: list[Alert] = []
        if bad is not None:
            losses[0, bad[2] - first :] = np.nan
            alerts = [nonfinite("nonfinite_gradient", bad[2], layer=bad[0], eigenvalue=bad[1], tensor="A_log")]
        if loss:
            blocks.append(Block(names.SCALARS, 0, first, 1, losses.astype(np.float32)))
        store_flush(session, run_id, 1, blocks, alerts, first + points - 1, 100.0, {"nearest_distance": 0.01})


def ended(
    database: Database, run_id: int, status: str, *, divergence: Mapping[str, Any] | None = None, result: Any = None
) -> None:
    """End the run with a final status, or set it to "lost"."""
    with database.write() as session:
        if status == "lost":
            assert mark_lost(session, run_id, 1, session.get_one(Run, run_id).beat, "no message for 60 s")
        elif status != "running":
            lifecycle.finish(session, run_id, 1, status, f"{status} as a test says", result, dict(divergence or {}) or None)
