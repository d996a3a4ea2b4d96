"""A run with several kinds of layers, recorded without a trainer, and the numbers that a reader must find. The layers are a
selective layer with an additional record, a complex layer, a fixed layer, and a layer that depends only on its gates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.forms import GATES, Form, spread
from tests.server.recording import claimed
from tests.server.storing import store_catalogue, store_flush

MODEL = {"layers": ["rg_lru", "s4d", "lru", "rwkv4"], "d_model": 8}
SELECTIVE = replace(Form.of_map("exp", "continuous"), dt=None, gate=True)
COMPLEX = replace(Form.of_map("exp", "continuous"), phase="imaginary")
# record id -> numbers of eigenvalues, form, numbers of step sizes and of gates
RECORDS: dict[str, tuple[int, Form, int | None, int]] = {
    "0": (8, SELECTIVE, None, 4),
    "0.dt_bias": (4, Form("none", "discrete", "none"), None, 0),
    "1": (6, COMPLEX, 2, 0),
    "2": (4, Form("fixed", "discrete", "none"), None, 0),
    "3": (4, Form("gate", "discrete", "none", gate=True), None, 2),
}
MEASURED = {"true_eigenvalue": 6, "true_boundary_distance": 6, "certified_gain": 1, "measured_gain": 1}


def mixed_run(database: Database, steps: int = 60) -> dict[str, np.ndarray]:
    """Record a run of MODEL. Returns the expected values of every recorded and derived series, (steps, width)."""
    claim = claimed(database, model=MODEL)
    catalogue = [names.scalar(names.TRAIN_LOSS)]
    for id_, (width, form, dts, gates) in RECORDS.items():
        catalogue += names.layer_catalogue(id_, width, form, steps=dts, gates=gates, gradient=id_ == "0")
        catalogue += names.following_catalogue(id_, width, form, length=20, every_eigenvalue=False)
    catalogue += names.measured_catalogue(names.measured_group("1"), {names.layer_series("1", k): n for k, n in MEASURED.items()})
    with database.write() as session:
        store_catalogue(session, claim.run_id, claim.attempt, catalogue)
    rng = np.random.default_rng(1)
    truth: dict[str, np.ndarray] = {}
    blocks: list[Block] = []
    _add(truth, blocks, names.SCALARS, {names.TRAIN_LOSS: np.exp(rng.normal(size=(1, steps)))}, {}, 1)
    for id_, (_, form, _, _) in RECORDS.items():
        own = [s for s in catalogue if s.group == names.layer_group(id_)]
        recorded = {s.name: _numbers(s.name, s.width, steps, rng) for s in own if not s.derived}
        if id_ == "0":  # as in the first step of a layer with initial weights of 0
            recorded["ssm/0/weight"][[0, 2], 0], recorded["ssm/0/grad_over_weight"][[0, 2], 0] = 0, np.inf
        inputs = {kind: recorded[f"ssm/{id_}/{kind}"].astype(np.float32).astype(np.float64) for kind in form.inputs}
        wide = spread(inputs, RECORDS[id_][0], axis=0)
        derived = {names.layer_series(id_, kind): form.derive(kind, wide) for kind in form.derived}
        _add(truth, blocks, names.layer_group(id_), recorded, derived, 1)
    group = names.measured_group("1")
    for step in (20, 40, 60):
        blocks.append(Block(group, 0, step, 1, rng.uniform(0.5, 1, (sum(MEASURED.values()), 1)).astype(np.float32)))
    with database.write() as session:
        store_flush(session, claim.run_id, claim.attempt, blocks, [], steps, 100.0)
        lifecycle.finish(session, claim.run_id, claim.attempt, "finished")
    return truth


def _numbers(name: str, width: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Random values of a series: weights change slowly, and gates are positive."""
    kind = name.rpartition("/")[2]
    walk = rng.normal(size=(width, 1)) + 0.05 * rng.normal(size=(width, steps)).cumsum(axis=1)
    if kind in GATES:
        return np.exp(walk - 2) * 3.0 ** (GATES.index(kind) - 1)
    if kind == "phase_weight":
        return 3 * np.arange(width)[:, None] + walk
    return np.exp(walk - 1) if kind == "dt" or kind.startswith("grad") else walk + (2 if width == 4 else 0)


def _add(
    truth: dict[str, np.ndarray], blocks: list[Block], group: str, recorded: dict[str, np.ndarray],
    derived: dict[str, np.ndarray], first: int,
) -> None:  # fmt: skip
    values = np.concatenate([part.astype(np.float32) for part in recorded.values()])
    truth |= {name: part.astype(np.float32).T for name, part in recorded.items()} | {n: part.T for n, part in derived.items()}
    blocks.append(Block(group, 0, first, 1, values))
    coarse = np.concatenate([values, *(part.astype(np.float32) for part in derived.values())])
    blocks += LevelBuilder(group, 1).feed(first, coarse)
