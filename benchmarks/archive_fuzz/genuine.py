"""The archive from which all mutated archives are made: three ended runs that hold every kind of record, without a trainer.

Run 1 diverged; it has two layers, alerts and merged blocks. Run 2 is a fork of run 1 in the same sweep and finished. Run 3 has
layers of several kinds: with gates, with complex eigenvalues, with a further record, and so wide that only extremes are
recorded.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from server.database.connection import Database
from server.database.models import Run
from server.ingest.post import store
from server.keep.exports import write_archive
from server.lifecycle import transitions as lifecycle
from server.series.compaction import compact
from stablessm_core.report.messages import CatalogueMessage
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import GATES, Form
from stablessm_core.telemetry.sink import Flush

CAPABILITIES: dict[str, Any] = {"devices": ["cpu"], "data": {}}
FLUSH, FLUSHES = 64, 6  # steps per flush, flushes per run
EXP = Form.of_map("exp", "continuous")
# record id -> number of eigenvalues, form, numbers of step sizes and gates
PLAIN = {str(layer): (4, replace(Form.of_map("direct", "discrete"), length=30), None, 0) for layer in range(2)}
MIXED: dict[str, tuple[int, Form, int | None, int]] = {
    "0": (8, replace(EXP, dt=None, gate=True), None, 4),
    "0.dt_bias": (4, Form("none", "discrete", "none"), None, 0),
    "1": (6, replace(EXP, phase="imaginary"), 2, 0),
    "2": (4, Form("fixed", "discrete", "none"), None, 0),
    "3": (4, Form("gate", "discrete", "none", gate=True), None, 2),
}
MEASURED = {"true_eigenvalue": 6, "true_boundary_distance": 6, "certified_gain": 1, "measured_gain": 1}


def genuine_archive() -> bytes:
    """The archive of the three runs."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'source.db'}")
        database.migrate()
        try:
            file = io.BytesIO()
            write_archive(database, _record_runs(database), file, "http://there:8000")
            return file.getvalue()
        finally:
            database.close()


def _record_runs(database: Database) -> list[int]:
    grid = {"train.seed": [0, 1]}
    with database.write() as session:
        sweep = lifecycle.new_sweep(session, {"task": {"name": "polynomial_memory"}}, grid, name="seeds").id
    stable = {"reparameterization": {"name": "direct", "time": "discrete"}, "n_layers": 2}
    lost = _record(database, {"model": stable, "tags": ["paper"], "name": "seed 0"}, PLAIN, sweep)
    _end(database, lost, "diverged", {"step": FLUSH * FLUSHES, "layer": 1, "eigenvalue": 2, "tensor": "w", "value": "NaN"})
    compact(database, lost)
    fork = _record(database, {"model": stable, "train": {"seed": 1}}, PLAIN, sweep)
    _end(database, fork, "finished", None)
    with database.write() as session:
        run = session.get_one(Run, fork)
        run.forked_from, run.forked_at_step, run.fork_changes = lost, FLUSH, {"train.seed": 1}
    mixed = _record(
        database, {"model": {"layers": ["rg_lru", "s4d", "lru", "rwkv4", "lru"], "d_model": 8}}, MIXED, None, wide="4"
    )
    _end(database, mixed, "finished", None)
    return [lost, fork, mixed]


def _record(
    database: Database, settings: dict[str, Any], records: dict[str, Any], sweep: int | None, wide: str | None = None
) -> int:  # fmt: skip
    config = parse_config({"task": {"name": "polynomial_memory"}} | settings)
    with database.write() as session:
        lifecycle.submit(session, config, sweep_id=sweep)
    with database.write() as session:
        claim = lifecycle.claim(session, "gpu3:7:1", CAPABILITIES)
    assert claim is not None
    catalogue = [names.scalar(name) for name in (names.TRAIN_LOSS, names.LR, names.GRAD_NORM, names.WEIGHT_NORM)]
    catalogue += [names.scalar(names.EVAL_LOSS, names.EVAL), names.scalar(names.BATCH_NONFINITE, names.BATCH)]
    for id_, (width, form, dts, gates) in records.items():
        catalogue += names.layer_catalogue(id_, width, form, steps=dts, gates=gates, gradient=id_ == "0")
        catalogue += names.following_catalogue(id_, width, form, length=30, every_eigenvalue=True)
    if wide is not None:
        catalogue += names.wide_layer_catalogue(wide, Form.of_map("exp", "discrete"))
        measured = {names.layer_series("1", kind): width for kind, width in MEASURED.items()}
        catalogue += names.measured_catalogue(names.measured_group("1"), measured)
    with database.write() as session:
        store(session, claim.run_id, claim.attempt, CatalogueMessage(catalogue))
        data = {"kind": "regression", "length": 30, "output_size": 1}
        lifecycle.set_environment(
            session,
            claim.run_id,
            claim.attempt,
            {"device": "cpu", "versions": {"torch": "2.13.0"}, "parameters": 99, "data": data},
        )
    _write(database, claim, catalogue)
    return claim.run_id


def _write(database: Database, claim: lifecycle.Claim, catalogue: Sequence[names.SeriesSpec]) -> None:
    rng, builders = np.random.default_rng(claim.run_id), {}
    groups: dict[str, list[names.SeriesSpec]] = {}
    for series in sorted(catalogue, key=lambda one: one.derived):
        groups.setdefault(series.group, []).append(series)
    for flush in range(FLUSHES):
        blocks, first = [], flush * FLUSH + 1
        for group, own in groups.items():
            values = {one.name: _values(one, rng) for one in own}
            raw = [values[one.name] for one in own if not one.derived]
            if group in (names.EVAL, names.measured_group("1")):
                blocks.append(Block(group, 0, first + FLUSH - 1, 1, np.concatenate(raw)[:, :1]))
                continue
            if raw:
                blocks.append(Block(group, 0, first, 1, np.concatenate(raw)))
            blocks += builders.setdefault(group, LevelBuilder(group, 1)).feed(first, np.concatenate(list(values.values())))
        where: dict[str, Any] = {"layer": 1, "eigenvalue": 2, "series": "ssm/1/weight", "value": math.nan}
        kinds = ("unstable_eigenvalue",) if flush else ("nonfinite_loss", "overflow_near")
        alerts = [KINDS[kind].alert(step=first + 3, message="a message", **where) for kind in kinds]
        with database.write() as session:
            flush = Flush(blocks, alerts, first + FLUSH - 1, 100.0, {"largest_ratio": 3.5})
            store(session, claim.run_id, claim.attempt, flush)


def _values(series: names.SeriesSpec, rng: np.random.Generator) -> np.ndarray:
    kind = series.name.rpartition("/")[2]
    values = rng.normal(size=(series.width, FLUSH)).astype(np.float32)
    if kind.endswith("_index"):
        return np.floor(np.abs(values) * 5)
    if kind in ("dt", "lr", "loss", "grad_norm", *GATES):
        values = np.exp(values - 2)
    values[0, rng.integers(FLUSH)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    return values


def _end(database: Database, run_id: int, status: str, divergence: dict[str, Any] | None) -> None:
    loss: float | str = "NaN" if divergence else 0.3
    with database.write() as session:
        result = {"train_loss": loss, "eval_loss": 0.5, "eval_accuracy": None, "seconds": 3.2, "rollbacks": 0}
        lifecycle.finish(session, run_id, 1, status, "as it ended", result, divergence)
        run = session.get_one(Run, run_id)
        run.nearest_distance, run.overflow_budget = -math.inf, math.inf
