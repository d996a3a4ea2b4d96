"""Compares the gradient of a suspect step with the loss itself: does the loss change as fast as its gradient says?

A backward pass of one's own can be wrong while every number of the forward pass is usual. Its gradient then throws the weights,
and everything after it looks like an explosion. The loss is computed twice more, a little along the gradient and a little
against it. Everything is computed in float64.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from stablessm_core.autopsy.bench import Bench, Row
from stablessm_core.autopsy.repeat import exact_loss, unfused_model
from stablessm_core.autopsy.request import AutopsyRequest
from stablessm_core.telemetry import series as names
from stablessm_core.training.checkpoint import Checkpoint, restore_training
from stablessm_core.training.optimizer import build_optimizer

# the norm of a gradient divided by its median before, or in the first step by the norm of all weights: at this ratio the gradient
# is checked
LARGE = 100.0
WRONG = 10.0  # the gradient's norm divided by the measured slope: at this ratio the backward pass is wrong
ENOUGH = 0.01  # relative change of the loss that is far above rounding, also that of a loss summed in float32
FARTHEST = 0.1  # the weights move at most by this share of their norm


def check_gradient(bench: Bench, start: Checkpoint, rows: Sequence[Row], request: AutopsyRequest) -> dict[str, Any] | None:
    """{step, norm, slope, agrees} of the first step after `start` whose gradient was far above usual; None without such a step.

    start: the state before the trouble. norm: |dL/dw|, by the backward pass. slope: (L(w + hd) - L(w - hd)) / 2h, where d is the
    gradient divided by its norm. A right gradient has slope = norm. agrees: False if the norm is at least WRONG times the slope;
    None if a number is not finite.
    """
    step = _suspect(bench, start.step, rows, request)
    if step is None:
        return None
    bench.restore(start)
    while bench.progress.step < step - 1:
        bench.train(step - 1)
    norm, slope = _compared(bench, bench.state())
    finite = math.isfinite(norm) and math.isfinite(slope)
    return {"step": step, "norm": norm, "slope": slope, "agrees": norm < WRONG * abs(slope) if finite else None}


def _suspect(bench: Bench, start: int, rows: Sequence[Row], request: AutopsyRequest) -> int | None:
    norms = {step: row.grad_norm for step, row in request.rows.items()} | {row.step: float(row.grad_norm) for row in rows}
    for row in rows:
        if row.step <= start or not math.isfinite(row.grad_norm):
            continue
        before = [norm for step, norm in norms.items() if step < row.step and math.isfinite(norm)]
        usual = statistics.median(before) if before else float(row.values[bench.columns[names.WEIGHT_NORM]][0])
        if row.grad_norm >= LARGE * usual:
            return row.step
    return None


def _compared(bench: Bench, before: Checkpoint) -> tuple[float, float]:
    """(norm, slope) in the step after `before`. Dropout is off, because it would differ from one loss to the next."""
    model = unfused_model(bench).to(bench.device, torch.float64).eval()
    restore_training(before, model, build_optimizer(model, bench.config.optimizer))
    x, y = (t.double() if t.is_floating_point() else t for t in bench.batches(before.step + 1))
    loss = exact_loss(bench.task, model(x), y)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    used = [(p.detach(), p.detach().clone(), g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    norm = math.sqrt(sum(float(g.square().sum()) for _, _, g in used))
    if not math.isfinite(norm) or norm == 0 or not math.isfinite(float(loss.detach())):
        return norm, math.nan
    farthest = FARTHEST * math.sqrt(sum(float(w.square().sum()) for _, w, _ in used))
    size = abs(float(loss.detach()))

    @torch.no_grad()
    def moved(by: float) -> float:
        for p, w, g in used:
            p.copy_(w + by / norm * g)
        return float(exact_loss(bench.task, model(x), y))

    h = min(farthest, ENOUGH / 100 * size / norm)
    while True:
        change = moved(h) - moved(-h)
        if not abs(change) < ENOUGH * size or h >= farthest:
            return norm, change / (2 * h)
        h = min(farthest, 10 * h)
