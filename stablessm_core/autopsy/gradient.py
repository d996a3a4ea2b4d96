"""Compares the gradient of a suspect step with the loss itself, and with the gradient that the run recorded.

A backward pass can be wrong while every number of the forward pass is usual. Its gradient then throws the weights, and
everything after it looks like an explosion. Two measurements find it. The slope of the loss along the gradient, in float64, must
equal the norm of the gradient (`slope`). And the norm that the run recorded must equal the norm of the same step without fused
kernels, and in float64: a gradient that is wrong in the kernels alone shows only there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stablessm_core.autopsy.bench import Bench, Row
from stablessm_core.autopsy.deadline import Deadline
from stablessm_core.autopsy.instruments import Instruments, OperationByOperation
from stablessm_core.autopsy.repeat import exact_loss, norm_of, unfused_model
from stablessm_core.autopsy.replay import Replay, state_before
from stablessm_core.autopsy.request import AutopsyRequest
from stablessm_core.autopsy.slope import Slope, find_slope
from stablessm_core.autopsy.wide import StayWide
from stablessm_core.telemetry import series as names
from stablessm_core.training.checkpoint import Checkpoint, restore_training
from stablessm_core.training.optimizer import build_optimizer
from stablessm_core.training.step import autocast

# the norm of a gradient divided by its median before, or in the first step by the norm of all weights: at this ratio the step is
# the one to check
LARGE = 100.0
AGREES = 0.05  # relative difference of slope and norm up to which they agree
DIFFERS = 0.1  # relative difference above which the gradient is wrong; between the two, nothing is proved
PARTED = {"float32": 0.1, "bfloat16": 0.3}  # relative difference above which two norms of one step part
CLEARLY = 3.0  # the kernels differ only if they differ by more than so many times what rounding makes
FIRST_CHANGE = 1e-6  # relative change of the loss that the first distance is expected to make
LONGEST = 0.1  # the weights move at most by this share of their norm
SHORTEST = 1e-13  # and at least by this share of the norm of those that have a gradient, which is above the rounding of float64
MOST_DISTANCES = 1e14  # the longest distance divided by the shortest
SHARE = 0.01  # a tensor with a smaller share of the squared norm cannot make slope and norm differ by much
SHARE_OF_TIME = 0.4  # share of the remaining time that all comparisons may take


def check_gradient(bench: Bench, done: Replay, request: AutopsyRequest, deadline: Deadline) -> dict[str, Any] | None:
    """{step, norm, recorded, repeated, slope, converged, agrees, differs} of the step to check (docs/autopsy.md).

    The step to check is the first one since the trouble whose gradient was far above usual, else the one that shows the trouble.
    Near the fatal step the slope often does not converge. Then earlier steps of the trouble are compared too, and one of them is
    reported if it proves that the backward pass is wrong. None if the state before these steps is not known.
    """
    until = deadline.left() * (1 - SHARE_OF_TIME)
    checked = None
    for step in _steps(bench, done, request):
        before = state_before(bench, done, step, deadline)
        if before is None or (checked is not None and deadline.left() < until):
            continue
        found = _compare(bench, before, _recorded(done, request, step), lambda: deadline.left() >= until)
        if checked is None or found["agrees"] is False:
            checked = found
        if checked["agrees"] is not None:
            break
    return checked


def _steps(bench: Bench, done: Replay, request: AutopsyRequest) -> Iterator[int]:
    """The steps that may be checked, in the order of preference."""
    trouble = request.trouble
    shown = min(trouble.first_shown, request.step) if trouble else request.step
    start = min(trouble.step, request.step) if trouble else request.step
    suspect = _suspect(bench, start - 1, done.rows, request)
    yield from dict.fromkeys(step for step in (suspect, shown, start) if step is not None)


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


def _recorded(done: Replay, request: AutopsyRequest, step: int) -> float | None:
    if step in request.rows:
        return request.rows[step].grad_norm
    return next((float(row.grad_norm) for row in done.rows if row.step == step), None)


def _compare(bench: Bench, before: Checkpoint, recorded: float | None, may_go_on: Any) -> dict[str, Any]:
    """The findings about the step after `before`."""
    training = _Loss(bench, before, training=True)
    slope = training.slope(may_go_on)
    repeated = _repeated_norm(bench, before)
    agrees = _agree(training.norm, slope.value)
    if agrees is False and (training.is_rounded() or training.has_flat_parts(slope)):
        agrees = None
    differs = _parted(bench, recorded, repeated, training)
    if agrees is False and may_go_on():
        evaluation = _Loss(bench, before, training=False)
        if _agree(evaluation.norm, evaluation.slope(may_go_on).value):
            differs = "training_mode"
    return {
        "step": before.step + 1, "norm": training.norm, "recorded": recorded, "repeated": repeated, "slope": slope.value,
        "converged": slope.value is not None, "agrees": agrees, "differs": differs,
    }  # fmt: skip


def _agree(norm: float, slope: float | None) -> bool | None:
    """Whether the norm of a gradient equals the slope of the loss along it; None if that is not known."""
    if slope is None or not math.isfinite(norm):
        return None
    off = _distance(norm, slope)
    return True if off <= AGREES else False if off > DIFFERS else None


def _parted(bench: Bench, recorded: float | None, repeated: float, exact: _Loss) -> str | None:
    """Between which two ways to compute it the norm changes: "kernels", "precision", or None.

    Only if two ways that round differently agree, the third is to blame. So the kernels are named only if float32 without them
    agrees with float64. A step that draws random numbers may draw others in float64, which says nothing about rounding.
    """
    norm = exact.norm
    if recorded is None or not all(math.isfinite(value) for value in (recorded, repeated, norm)):
        return None
    within = PARTED[bench.config.train.precision]
    by_rounding, by_kernels = _distance(repeated, norm), _distance(recorded, repeated)
    if by_rounding > within:
        return None if exact.draws else "precision"
    return "kernels" if by_kernels > max(within, CLEARLY * by_rounding) else None


def _distance(one: float, other: float) -> float:
    """Their difference, as a share of the larger one."""
    return abs(one - other) / max(abs(one), abs(other)) if one != other else 0.0


def _repeated_norm(bench: Bench, before: Checkpoint) -> float:
    """The norm of the gradient in the run's precision, operation by operation."""
    model = unfused_model(bench).to(bench.device)
    restore_training(before, model, build_optimizer(model, bench.config.optimizer))
    x, y = bench.batches(before.step + 1)
    with OperationByOperation():  # type: ignore[no-untyped-call]
        with autocast(bench.device, bench.config.train.precision):
            loss = bench.task.loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
    return float(norm_of([p.grad for p in model.parameters() if p.grad is not None]))


class _Loss:
    """The loss of the step after `before` in float64, as a function of the distance by which the weights move along its gradient.

    Each evaluation draws the same random numbers, so the same units are dropped. norm: the norm of the
    gradient. draws: whether the step draws random numbers.
    """

    def __init__(self, bench: Bench, before: Checkpoint, *, training: bool) -> None:
        self._bench, self._random = bench, {name: t for name, t in before.tensors.items() if name.startswith("rng/")}
        self._model = unfused_model(bench).to(bench.device, torch.float64).train(training)
        restore_training(before, self._model, build_optimizer(self._model, bench.config.optimizer))
        self._batch = tuple(t.double() if t.is_floating_point() else t for t in bench.batches(before.step + 1))
        loss = self._evaluate()
        self._loss, self._epsilon = float(loss.detach()), torch.finfo(loss.dtype).eps
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        self._moved = [(p.detach(), p.detach().clone(), g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        self.norm = float(norm_of([g for _, _, g in self._moved]))

    def slope(self, may_go_on: Any) -> Slope:
        """The converged slope along the gradient. Not converged if the loss gives two answers for the same weights."""
        size = abs(self._loss)
        if not (math.isfinite(self.norm) and self.norm > 0 and math.isfinite(self._loss)):
            return Slope(None)
        if self._at(0.0) != self._loss:
            return Slope(None)
        weights = float(norm_of([w for _, w, _ in self._moved])) or 1.0
        rounded = sum(float((w * g).abs().sum()) for _, w, g in self._moved) / self.norm  # huge weights may have no gradient
        shortest = SHORTEST * (rounded or weights)
        longest = min(LONGEST * weights, MOST_DISTANCES * shortest)
        first = min(longest, max(shortest, FIRST_CHANGE * (size or 1.0) / self.norm))
        return find_slope(
            self._at, self.norm, first=first, shortest=shortest, longest=longest,
            rounding=self._epsilon * size, may_go_on=may_go_on,
        )  # fmt: skip

    def has_flat_parts(self, slope: Slope) -> bool:
        """Whether the loss does not change at all with a tensor of weights that has a gradient.

        A model that rounds has steps, between which the loss is flat, and a gradient that is meant to differ from the slope.
        """
        if slope.distance is None:
            return False
        base = self._at(0.0)
        for _, _, g in self._moved:
            size = float(norm_of([g]))
            if size**2 < SHARE * self.norm**2:
                continue
            if all(self._at(sign * slope.distance * self.norm / size, only=g) == base for sign in (1, -1)):
                return True
        return False

    @torch.no_grad()
    def is_rounded(self) -> bool:
        """Whether a part of the model or of the loss computes in less than float64 all the same."""
        with Instruments() as seen:
            self._evaluate()
        return bool(seen.narrow)

    @torch.no_grad()
    def _at(self, by: float, only: Tensor | None = None) -> float:
        for p, w, g in self._moved:
            p.copy_(w + by / self.norm * g if only is None or only is g else w)
        return float(self._evaluate())

    def _evaluate(self) -> Tensor:
        torch.set_rng_state(self._random["rng/cpu"])
        if "rng/cuda" in self._random and self._bench.device.type == "cuda":
            torch.cuda.set_rng_state(self._random["rng/cuda"], self._bench.device)
        x, y = self._batch
        before = self._random_numbers()
        with StayWide():
            loss = exact_loss(self._bench.task, self._model(x), y)
        self.draws = not all(torch.equal(one, other) for one, other in zip(before, self._random_numbers(), strict=True))
        return loss

    def _random_numbers(self) -> list[Tensor]:
        """The states of the random generators."""
        cuda = [torch.cuda.get_rng_state(self._bench.device)] if self._bench.device.type == "cuda" else []
        return [torch.get_rng_state(), *cuda]
