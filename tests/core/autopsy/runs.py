"""Real runs for the tests of the autopsy, and requests made from what they recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablessm_core.autopsy.request import AutopsyRequest, RecordedRow, SavedState
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.paths import with_settings
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.train import Outcome, train

NOWHERE = Path("/nonexistent")  # the tasks of these tests need no data

SMALL: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 100},
    "model": {"d_model": 16, "d_state": 16, "reparameterization": {"name": "direct"}},
    "optimizer": {"lr": 0.2},
    "train": {"steps": 60, "batch_size": 16, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
}


def config_of(changes: Mapping[str, Any] | None = None) -> RunConfig:
    return parse_config(with_settings(SMALL, changes or {}))


def trained(config: RunConfig, folder: Path, **options: Any) -> tuple[Outcome, MemorySink, dict[str, Any]]:
    """The outcome of a run, its sink and its environment."""
    sink = MemorySink()
    environment: dict[str, Any] = {}
    outcome = train(config, sink=sink, data_root=NOWHERE, checkpoint_dir=folder, on_ready=environment.update, **options)
    return outcome, sink, environment


def request_of(
    config: RunConfig, outcome: Outcome, sink: MemorySink, environment: Mapping[str, Any], **changes: Any
) -> AutopsyRequest:
    """The request that the service would make for a run that has just died."""
    steps, losses = sink.series(names.TRAIN_LOSS)
    _, norms = sink.series(names.GRAD_NORM)
    rows = {
        int(step): RecordedRow(float(loss), float(norm))
        for step, loss, norm in zip(steps, losses[:, 0], norms[:, 0], strict=True)
    }
    saved = tuple(SavedState(*checkpoint) for checkpoint in reversed(sink.checkpoints))
    given = {
        "config": config, "data_root": NOWHERE, "step": outcome.step, "rows": rows, "checkpoints": saved,
        "environment": environment,
    }  # fmt: skip
    return AutopsyRequest(**(given | changes))
