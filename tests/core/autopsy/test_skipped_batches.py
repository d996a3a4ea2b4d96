"""The autopsy replays a run that leaves out bad batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from stablessm_core.autopsy import bench as bench_module
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.training import run as run_module
from tests.core.autopsy.runs import NOWHERE, config_of, trained


@pytest.mark.slow
def test_a_run_that_skipped_a_batch_is_replayed_bit_for_bit_and_survives_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_damaged(*given: Any) -> Any:
        task = get_task(*given)
        whole = task.batch

        def batch(step: int, *rest: Any) -> tuple[Tensor, Tensor]:
            x, y = whole(step, *rest)
            return (x * math.nan if step == 4 else x), y

        monkeypatch.setattr(task, "batch", batch)
        return task

    for module in (run_module, bench_module):
        monkeypatch.setattr(module, "get_task", get_damaged)
    config = config_of({"train.on_bad_batch": "skip", "train.steps": 8, "optimizer.lr": 0.01})
    outcome, sink, environment = trained(config, tmp_path)
    assert outcome.status == "finished"
    rows = bench_module.build_bench(config, NOWHERE, environment).train(8)
    assert np.array_equal([row.loss for row in rows], sink.series(names.TRAIN_LOSS)[1][:, 0], equal_nan=True)
    assert all(row.finite for row in rows)
