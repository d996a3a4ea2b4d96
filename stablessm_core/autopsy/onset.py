"""The step that first shows the trouble, compared with the step before it.

The fatal step shows the consequence. If the outputs and the batch of the first step of the trouble are usual but its loss is not,
the loss function made it. A yardstick tells: the error of the same outputs, computed here, which cannot have changed its scale.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.autopsy.batches import batch_facts
from stablessm_core.autopsy.bench import Bench
from stablessm_core.autopsy.deadline import Deadline
from stablessm_core.autopsy.replay import Replay, state_before
from stablessm_core.tasks.base import IGNORED, Task
from stablessm_core.training.checkpoint import Checkpoint
from stablessm_core.training.step import autocast

SAME_LOSS = {"float32": 0.01, "bfloat16": 0.1}  # relative difference that rounding may make, where losses are computed again


def measure_onset(
    bench: Bench, done: Replay, shown: int, deadline: Deadline
) -> tuple[dict[str, Any] | None, str | None]:  # fmt: skip
    """The findings about step `shown`, as docs/autopsy.md describes them, None if the state before it is not known; and a
    sentence if the task was asked twice for one loss and gave two answers."""
    here = state_before(bench, done, shown, deadline)
    if here is None or shown < 2:
        return None, None
    before = state_before(bench, done, shown - 1, deadline)
    now, then = _measure(bench, done, here), None if before is None else _measure(bench, done, before)
    earlier = {f"{name}_before": None if then is None else then[name] for name in ("loss", "output", "yardstick")}
    sentences = [_hidden_state(step, one, bench) for step, one in ((shown, now), (shown - 1, then)) if one is not None]
    onset = {"step": shown, "batch": batch_facts(bench, shown)} | now | earlier
    return onset, next((sentence for sentence in sentences if sentence is not None), None)


def _hidden_state(step: int, measured: dict[str, Any], bench: Bench) -> str | None:
    if _same(measured["loss"], measured["loss_again"], SAME_LOSS[bench.config.train.precision]):
        return None
    return (
        f"The task or its loss function keeps a hidden state: asked again for the loss of step {step:,}, with the same outputs "
        f"and targets, it answered {measured['loss_again']:.6g} instead of {measured['loss']:.6g}."
    )


@torch.no_grad()
def _measure(bench: Bench, done: Replay, before: Checkpoint) -> dict[str, Any]:
    """The loss of the step after `before`, asked twice with the same random numbers, and the outputs of the run's own network."""
    bench.restore(before)
    x, y = bench.batches(before.step + 1)
    devices = [bench.device] if bench.device.type == "cuda" else []

    def ask() -> float:
        with torch.random.fork_rng(devices=devices):
            return float(bench.task.loss(output, y))

    with autocast(bench.device, bench.config.train.precision):
        output = bench.model(x)
        first, again = ask(), ask()
    trained = next((float(row.loss) for row in done.rows if row.step == before.step + 1), first)
    if not _same(first, trained, SAME_LOSS[bench.config.train.precision]):
        first, again = trained, first  # the run itself asked first
    return {
        "loss": first,
        "loss_again": again,
        "output": float(output.detach().abs().max()),
        "yardstick": _yardstick(bench.task, output, y),
    }


def _yardstick(task: Task, output: Tensor, y: Tensor) -> float | None:
    """The mean squared error, or the cross-entropy, in float64; None if outputs and targets have other shapes or classes.

    On the host, because a class that does not exist would end the work of a GPU.
    """
    output, y = output.detach().double().cpu(), y.detach().cpu()
    try:
        if task.kind == "regression":
            return float(functional.mse_loss(output, y.double())) if output.shape == y.shape else None
        return float(functional.cross_entropy(output.reshape(-1, task.output_size), y.reshape(-1), ignore_index=IGNORED))
    except (RuntimeError, IndexError, ValueError):
        return None


def _same(one: float, other: float, within: float) -> bool:
    if math.isfinite(one) and math.isfinite(other):
        return math.isclose(one, other, rel_tol=within, abs_tol=1e-12)
    return math.isfinite(one) == math.isfinite(other)
