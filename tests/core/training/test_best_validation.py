"""A run with a separate test set measures it whenever an evaluation is the best so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.tasks.base import Device
from stablessm_core.tasks.images import ImageTask
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training import run as run_module
from stablessm_core.training.checkpoint import load_checkpoint
from stablessm_core.training.train import Outcome, train

pytestmark = pytest.mark.slow

EVALUATIONS = [0.1, 0.5, 0.5, 0.4, 0.8, 0.7, 0.0]  # the validation accuracies of the planned task, in their order


class Planned(ImageTask):
    """Images without information. The n-th evaluation has the n-th accuracy of EVALUATIONS; the test's accuracy counts tests."""

    def __init__(self) -> None:
        pixels = np.random.default_rng(0).integers(0, 255, (50, 6)).astype(np.uint8)
        images = pixels, (np.arange(50) % 10).astype(np.uint8)
        super().__init__(images, images, images, permuted=False, mean=100.0, deviation=80.0)
        self.evaluated = self.tested = 0
        self.testing = self.lost = False

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        self.testing, self.evaluated = False, self.evaluated + 1
        yield next(super().evaluation_batches(50, device))

    def test_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        return self._test_batches(device)

    def _test_batches(self, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        self.testing, self.tested = True, self.tested + 1
        batches = super().test_batches(50, device)
        assert batches is not None
        yield next(batches)

    def accuracy(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(self.tested / 100 if self.testing else EVALUATIONS[self.evaluated - 1], dtype=torch.float64)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        lost = self.lost and not torch.is_grad_enabled() and not self.testing
        return super().loss(output, y) * (torch.nan if lost else 1.0)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Planned:
    planned = Planned()
    monkeypatch.setattr(run_module, "get_task", lambda *_: planned)
    return planned


def configured(**settings: Any) -> RunConfig:
    train_ = {"steps": 30, "batch_size": 10, "eval_every": 5, "checkpoint_every": 0, "device": "cpu"} | settings
    return parse_config({"task": {"name": "digits"}, "model": {"d_model": 4, "d_state": 3}, "train": train_})


def run_training(config: RunConfig, folder: Path, sink: MemorySink | None = None, **options: Any) -> tuple[Outcome, MemorySink]:
    sink = sink or MemorySink()
    return train(config, sink=sink, data_root=Path("/nonexistent"), checkpoint_dir=folder, **options), sink


def test_the_test_set_is_measured_at_every_new_best_validation_and_the_last_is_the_result(task: Planned, tmp_path: Path) -> None:
    outcome, sink = run_training(configured(), tmp_path)
    steps, accuracies = sink.series(names.TESTED_ACCURACY)
    assert steps.tolist() == [5, 10, 25], "an equal accuracy is no improvement"
    np.testing.assert_allclose(accuracies[:, 0], [0.01, 0.02, 0.03])
    assert sink.series(names.EVAL_ACCURACY)[0].tolist() == [5, 10, 15, 20, 25, 30]
    assert (outcome.result["best_eval_step"], outcome.result["test_accuracy_at_best"]) == (25, pytest.approx(0.03))
    assert outcome.result["test_loss_at_best"] == pytest.approx(sink.series(names.TESTED_LOSS)[1][-1, 0])
    assert outcome.result["eval_accuracy"] == 0.7
    assert outcome.result.keys() == set(names.RESULTS)


def test_a_resumed_run_knows_its_best_validation(task: Planned, tmp_path: Path) -> None:
    calls = iter(range(1, 100))
    _, sink = run_training(configured(), tmp_path, should_stop=lambda: "drain" if next(calls) == 12 else None)
    outcome, _ = run_training(configured(), tmp_path, sink, resume=sink.checkpoints[-1][1])
    assert sink.series(names.TESTED_ACCURACY)[0].tolist() == [5, 10, 25]
    assert (outcome.result["best_eval_step"], outcome.result["test_accuracy_at_best"]) == (25, pytest.approx(0.03))
    again, _ = run_training(configured(), tmp_path, resume=sink.checkpoints[-1][1])
    assert {name: again.result[name] for name in names.BEST_RESULTS} == {n: outcome.result[n] for n in names.BEST_RESULTS}


def test_a_fork_has_its_own_best_validation(task: Planned, tmp_path: Path) -> None:
    _, sink = run_training(configured(checkpoint_every=15), tmp_path / "original")
    path = next(path for step, path, _ in sink.checkpoints if step == 15)
    assert [best["step"] for best in load_checkpoint(path).state["progress"]["bests"]] == [5, 10]
    task.evaluated, task.tested = 2, 0  # the fork's evaluations have the accuracies 0.5, 0.4 and 0.8
    outcome, forked = run_training(configured(checkpoint_every=15), tmp_path / "fork", fork=path)
    assert forked.series(names.TESTED_ACCURACY)[0].tolist() == [20, 30]
    assert outcome.result["best_eval_step"] == 30


def test_an_evaluation_that_is_not_finite_is_never_the_best(task: Planned, tmp_path: Path) -> None:
    task.lost = True
    outcome, sink = run_training(configured(), tmp_path)
    assert task.tested == 0
    assert [outcome.result[name] for name in names.BEST_RESULTS] == [None, None, None]
    assert {alert.kind for alert in sink.alerts} >= {"nonfinite_evaluation"}


def test_a_run_without_a_separate_test_set_reports_no_test(tmp_path: Path) -> None:
    outcome, sink = run_training(configured(steps=2), tmp_path)
    assert not outcome.result.keys() & set(names.BEST_RESULTS)
    assert names.TESTED_LOSS not in sink.catalogue
