"""The verdict on a stored run equals the verdict on its numbers in memory, is stored at its end, and is cheap for long runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from server.lifecycle.verdicts import describe_run, judge_ended, judge_run
from stablessm_core.report.messages import EndMessage
from stablessm_core.telemetry.blocks import LEVELS, Block, LevelBuilder
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import (
    EVAL,
    EVAL_LOSS,
    GRAD_NORM,
    LARGEST_TARGET,
    LR,
    SCALARS,
    TRAIN_LOSS,
    SeriesSpec,
    layer_catalogue,
    layer_group,
    scalar,
)
from stablessm_core.verdict import trouble_start
from tests.server.recording import claimed, nonfinite, run_of
from tests.server.storing import store_catalogue, store_flush
from worker.writer import Writer

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "task__length": 100, "model__d_model": 16, "model__d_state": 16, "model__activation": "gelu", "optimizer__lr": 0.1,
    "model__reparameterization__name": "direct", "train__steps": 20, "train__batch_size": 16, "train__device": "cpu",
    "train__eval_every": 0,
}  # fmt: skip


def _never() -> None:
    pytest.fail("lease lost")


def trained(database: Database, folder: Path, **changes: Any) -> int:
    """A run that the trainer trained and the worker's writer stored."""
    from stablessm_core.spec.config import parse_config
    from stablessm_core.training.train import train

    claim = claimed(database, **(SMALL | changes))
    writer = Writer(
        database, claim.run_id, claim.attempt, data_dir=folder, outbox=folder / "spool", outbox_bytes=1 << 20,
        publish=lambda _: None, on_lease_lost=_never,
    )  # fmt: skip
    config = parse_config(claim.config)
    outcome = train(config, sink=writer, data_root=folder, checkpoint_dir=folder / "c", on_ready=writer.environment)
    writer.finish(EndMessage(str(outcome.status), "", outcome.result, outcome.divergence))
    return claim.run_id


def test_the_cause_of_a_divergence_is_stored_when_the_run_ends(sqlite: Database, tmp_path: Path) -> None:
    run_id = trained(sqlite, tmp_path)
    run = run_of(sqlite, run_id)
    assert (run.status, run.step, run.cause) == ("diverged", 13, "eigenvalue_overflow")
    assert run.judged_at is not None
    assert run.unstable is not None
    assert (run.unstable["of"], run.unstable["overflows_at_length"]) == (16, 100)
    with sqlite.read() as session:
        found = judge_run(session, run)
    assert (found["thrown_by"], found["unstable"]) == ("optimizer_step", run.unstable)
    assert [event["step"] for event in found["events"] if event["kind"] == "nonfinite"] == [13]
    assert any("R_f" in one["text"] for one in found["evidence"])


def test_a_finished_run_stores_its_unstable_eigenvalues_and_a_resumed_run_is_judged_again(
    sqlite: Database, tmp_path: Path
) -> None:
    run_id = trained(sqlite, tmp_path, train__steps=8)
    run = run_of(sqlite, run_id)
    assert (run.status, run.cause) == ("finished", None)
    assert run.unstable is not None
    assert run.unstable["overflows_at_length"] > 100
    with sqlite.write() as session:  # as an older release would have stored it, and with another end
        row = session.get(type(run), run_id)
        assert row is not None
        row.status, row.unstable, row.judged_at = "cancelled", None, None
    assert judge_ended(sqlite) == 1
    assert run_of(sqlite, run_id).unstable == run.unstable
    with sqlite.write() as session:
        lifecycle.resume_run(session, run_id)
    assert run_of(sqlite, run_id).judged_at is None


def _long(database: Database, steps: int, width: int, layers: int, crossing: int) -> int:
    """A run of `direct` with generated numbers: an eigenvalue crosses the boundary at a step and overflows at the end."""
    claim = claimed(database, model__reparameterization__name="direct", model__d_state=width, model__n_layers=layers,
                    task__length=100, train__steps=steps)  # fmt: skip
    form = Form.of_map("direct", "discrete")
    scalars = [scalar(name) for name in (TRAIN_LOSS, LR, GRAD_NORM)]
    catalogue = scalars + [one for k in range(layers) for one in layer_catalogue(k, width, form)]
    builders = {group: LevelBuilder(group, 1) for group in (SCALARS, *map(layer_group, range(layers)))}
    with database.write() as session:
        store_catalogue(session, claim.run_id, claim.attempt, catalogue)
    size = 4096
    for first in range(1, steps + 1, size):
        step = np.arange(first, min(first + size, steps + 1))
        blocks = []
        for group in builders:
            if group == SCALARS:
                raw = np.stack([np.full(len(step), 0.5), np.full(len(step), 0.01), np.ones(len(step))])
                coarse = raw = raw.astype(np.float32)
            else:
                weight = np.tile(np.linspace(0.5, 0.99, width)[:, None], len(step))
                if group == layer_group(layers - 1):
                    weight[3, step >= crossing] = 1.01
                    weight[3, step == steps] = 2.5
                ratio = np.full_like(weight, 0.1)
                raw = np.concatenate([ratio, weight]).astype(np.float32)
                coarse = np.concatenate([raw, weight.astype(np.float32), (1 - weight).astype(np.float32)])
            blocks += [Block(group, 0, first, 1, raw), *builders[group].feed(first, coarse)]
        with database.write() as session:
            store_flush(session, claim.run_id, claim.attempt, blocks, [], int(step[-1]), 100.0)
    alert = nonfinite("nonfinite_state", steps, layer=layers - 1, eigenvalue=3, tensor="blocks.ssm.state", value=float("inf"))
    with database.write() as session:
        store_flush(session, claim.run_id, claim.attempt, [], [alert], steps, 100.0)
        place = {"step": steps, "layer": layers - 1, "eigenvalue": 3, "tensor": "blocks.ssm.state", "value": "Infinity"}
        lifecycle.finish(session, claim.run_id, claim.attempt, "diverged", divergence=place)
    return claim.run_id


def test_a_long_run_is_judged_quickly_and_exactly(sqlite: Database) -> None:
    assert LEVELS >= 2
    run_id = _long(sqlite, 40_000, 16, 2, crossing=12_345)
    began = time.perf_counter()
    with sqlite.read() as session:
        found = judge_run(session, run_of(sqlite, run_id))
    assert time.perf_counter() - began < 5  # 0.1 s on a quiet machine
    assert (found["cause"], found["culprit"]) == ("eigenvalue_overflow", {"layer": 1, "eigenvalue": 3})
    assert [event["step"] for event in found["events"] if event["kind"] == "crossing"] == [12_345]
    assert "first left the stability boundary at step 12,345" in found["summary"]


def test_a_stored_evaluation_that_is_not_finite_and_a_stored_large_batch_reach_the_verdict(sqlite: Database) -> None:
    claim, steps = claimed(sqlite, optimizer__name="sgd", optimizer__weight_decay=0.0), 30
    catalogue = [scalar(TRAIN_LOSS), SeriesSpec(LARGEST_TARGET, "magnitudes", 1, "", "Largest target."), scalar(EVAL_LOSS, EVAL)]
    loss, largest = np.ones((1, steps), np.float32), np.full((1, steps), 3.8, np.float32)
    loss[0, -1], largest[0, -1] = np.inf, 1e30
    blocks = [
        Block(SCALARS, 0, 1, 1, loss),
        Block("magnitudes", 0, 1, 1, largest),
        Block(EVAL, 0, 10, 1, np.array([[np.nan]], np.float32)),
    ]
    with sqlite.write() as session:
        store_catalogue(session, claim.run_id, claim.attempt, catalogue)
        store_flush(session, claim.run_id, claim.attempt, blocks, [], steps, 1.0)
    with sqlite.read() as session:
        so_far = judge_run(session, run_of(sqlite, claim.run_id))
    assert "the loss of the evaluation at step 10 is NaN" in so_far["summary"]
    place = {"step": steps, "layer": None, "eigenvalue": None, "tensor": "loss", "value": "Infinity"}
    with sqlite.write() as session:
        lifecycle.finish(session, claim.run_id, claim.attempt, "diverged", divergence=place)
    with sqlite.read() as session:
        found = judge_run(session, run_of(sqlite, claim.run_id))
        assert (found["cause"], found["confidence"]) == ("bad_input", "measured")
        described, source = describe_run(session, run_of(sqlite, claim.run_id))
        start = trouble_start(described, source)
    assert start is not None
    assert (start.step, start.kind) == (steps, "batch")
    assert found["trouble"] == {"step": steps, "kind": "batch", "shown": steps, "exact": True}
