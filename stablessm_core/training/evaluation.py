"""Evaluations of a run, and the test at the best validation.

A task may have a test set besides the validation set that evaluations measure (`Task.test_batches`). Whenever an evaluation is
the best so far, the run also measures the test set. So the newest test belongs to the best validation, although the weights of
that step are not kept. This is what the StableSSM authors report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.raised_elsewhere import NONFINITE_EVALUATION
from stablessm_core.telemetry.nonfinite import as_text
from stablessm_core.training.memory import LEAST_STEPS, measure_memory, recorded_lags, unit_input
from stablessm_core.training.run import Run
from stablessm_core.training.step import autocast

EVALUATION_NUMBERS = 1 << 22  # maximum number of elements per activation in an evaluation batch, unless a training batch has more

Results = dict[str, float | None]


def evaluate_and_log(run: Run, step: int) -> None:
    """Evaluate, record the results, and raise an alert if the loss is not finite."""
    with run.recorder.pause():
        run.results = evaluate(run)
        measured = run.probe.measured()
        tested = _test_if_best(run, step)
        memory = _measured_memory(run, step)
    run.recorder.log(step, names.EVAL, {name: value for name, value in run.results.items() if value is not None})
    if tested:
        run.recorder.log(step, names.TEST, {name: value for name, value in tested.items() if value is not None})
    if memory is not None:
        run.recorder.log(step, names.MEMORIES, {names.MEMORY: memory})
    for group, numbers in measured.items():
        run.recorder.log(step, group, numbers)
    _alert_nonfinite_evaluation(run, step)


def evaluate(run: Run) -> Results:
    """Mean loss and accuracy (None if the task has none) over the task's evaluation batches."""
    loss, accuracy = _means(run, run.task.evaluation_batches(_batch_size(run), run.device))
    return {names.EVAL_LOSS: loss, names.EVAL_ACCURACY: accuracy}


def best_results(run: Run) -> dict[str, Any]:
    """The test at the best validation, for the run's result; {} if the task has no separate test set."""
    if not _has_test(run):
        return {}
    if not run.progress.bests:
        return dict.fromkeys(names.BEST_RESULTS)
    best = run.progress.bests[-1]
    accuracy = best["test_accuracy"]
    values = best["step"], float(best["test_loss"]), None if accuracy is None else float(accuracy)
    return dict(zip(names.BEST_RESULTS, values, strict=True))


def _test_if_best(run: Run, step: int) -> Results:
    """The results on the test set if this evaluation is the best so far; {} otherwise.

    The best evaluation has the highest accuracy, or the lowest loss if the task has no accuracy. The first of equal evaluations
    counts, and an evaluation with a loss that is not finite never does.
    """
    loss, accuracy = run.results[names.EVAL_LOSS], run.results[names.EVAL_ACCURACY]
    assert loss is not None
    score, bests = -loss if accuracy is None else accuracy, run.progress.bests
    if not _has_test(run) or not math.isfinite(loss) or (bests and score <= bests[-1]["score"]):
        return {}
    batches = run.task.test_batches(_batch_size(run), run.device)
    assert batches is not None
    test_loss, test_accuracy = _means(run, batches)
    accuracy_text = None if test_accuracy is None else as_text(test_accuracy)
    bests.append({"step": step, "score": score, "test_loss": as_text(test_loss), "test_accuracy": accuracy_text})
    return {names.TESTED_LOSS: test_loss, names.TESTED_ACCURACY: test_accuracy}


def _measured_memory(run: Run, step: int) -> NDArray[np.float32] | None:
    """The memory function for an input of norm 1, (lags,); None if the run records none, or if this evaluation is too soon."""
    lags = recorded_lags(run.config, run.task)
    every = run.config.train.eval_every
    before = (step - 1) // every * every if every else 0
    if not lags or step - before < LEAST_STEPS:
        return None
    size = run.task.input_size
    assert size is not None
    memory = measure_memory(run.model, size, length=lags) / float(unit_input(size).norm())
    return memory.astype(np.float32)


def _has_test(run: Run) -> bool:
    return run.task.test_batches(1, run.device) is not None


def _batch_size(run: Run) -> int:
    numbers = run.task.evaluation_length * run.config.model.widest()
    return max(run.config.train.batch_size, EVALUATION_NUMBERS // numbers)


@torch.no_grad()
def _means(run: Run, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Mean loss and accuracy (None if the task has none) over the batches, weighted by the batch sizes.

    The task chooses the examples and their number. Random states are unchanged. Waits for the device once.
    """
    model, task, config, device = run.model, run.task, run.config, run.device
    count = 0
    loss = torch.zeros((), dtype=torch.float64, device=device)
    accuracy: Tensor | None = torch.zeros((), dtype=torch.float64, device=device)
    model.eval()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for x, y in batches:
            with autocast(device, config.train.precision):
                output = model(x)
                loss += task.loss(output, y) * len(x)
            right = task.accuracy(output, y)
            accuracy = None if right is None or accuracy is None else accuracy + right * len(x)
            count += len(x)
    model.train()
    return float(loss) / count, None if accuracy is None else float(accuracy) / count


def _alert_nonfinite_evaluation(run: Run, step: int) -> None:
    """Raise an alert if the evaluation loss is not finite. As long as it stays so, later evaluations extend this alert."""
    loss, progress = run.results[names.EVAL_LOSS], run.progress
    assert loss is not None
    if math.isfinite(loss):
        progress.nonfinite_evaluations = []
        return
    progress.nonfinite_evaluations.append(step)
    first, count = progress.nonfinite_evaluations[0], len(progress.nonfinite_evaluations)
    text = f"evaluation loss is {loss}, so this evaluation says nothing about the model"
    if count > 1:
        text += f"; this lasted for {count} evaluations, from step {first:,} to step {step:,}"
    alert = NONFINITE_EVALUATION.alert(step=first, message=text, series=names.EVAL_LOSS, tensor="evaluation loss", value=loss)
    run.recorder.alert(step, replace(alert, lasted=count))
