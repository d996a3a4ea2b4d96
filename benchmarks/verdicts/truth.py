"""Establishes by measurement why a planted run died, without the verdict.

A planted fault is the cause if the same run without the fault lives. The cause of a death by configuration is found by training
again: with frozen eigenvalues, with a tenth of the rate, and by repeating the fatal step with eigenvalues that are clipped to
the stable region, in all layers or in one of them. The states of the fatal step are computed here in float64, by the formula.
"""

from __future__ import annotations

import copy
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.verdicts.audit.recorded_facts import state_after
from benchmarks.verdicts.faults import Plant
from benchmarks.verdicts.recorded import Config, Recorded, trained
from stablessm_core.layers import StableSSM
from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.tasks.loading import get_task
from stablessm_core.training.checkpoint import load_checkpoint

LARGEST = float(torch.finfo(torch.float32).max)
SQUARED = LARGEST**0.5  # a norm squares its input
CLIPPED = 0.99
SOON = 5  # a changed run that dies at most so many steps later died of the same cause
FAR = 10.0  # a finished run whose loss ends at this multiple of its start must say so
GREW = 100.0
CALM, EXPLODED = 3.0, 10.0  # the loss of the step before the death, divided by its best


class NotPlanted(ValueError):
    """The draw is no plant of its kind: the run dies without its fault too."""


@dataclass(frozen=True)
class Truth:
    """What the verdict must say.

    causes: every right cause. layers, eigenvalues: the guilty layers, and pairs (layer, eigenvalue); empty if not known. step:
    the step that a summary must name. not_thrown_by: answers that the measurements exclude. mentions: as in `Plant`. unstable:
    whether eigenvalues are outside the boundary at the end; None if not known. may_stop: whether ending the run early was
    right. measured: the measurements.
    """

    causes: frozenset[str | None]
    layers: frozenset[int] = frozenset()
    eigenvalues: frozenset[tuple[int, int]] = frozenset()
    step: int | None = None
    not_thrown_by: frozenset[str] = frozenset()
    mentions: str = ""
    unstable: bool | None = None
    may_stop: bool = True
    measured: dict[str, Any] = field(default_factory=dict)


def establish(plant: Plant, recorded: Recorded) -> Truth:
    """The truth about a trained plant. Raises NotPlanted if the run would die without its fault."""
    control = None if plant.control is None else trained(plant.config, plant.control)
    if plant.causes and control is not None and not control.lives:
        raise NotPlanted(f"{plant.kind}: without the fault the run is {control.outcome.status}")
    if not recorded.died:
        return _of_survivor(recorded, control)
    if plant.causes and control is not None:
        return Truth(plant.causes, step=plant.step, mentions=plant.mentions, measured={"without_the_fault": "lives"})
    return _of_death(plant.config)


def _of_survivor(recorded: Recorded, control: Recorded | None) -> Truth:
    evaluated, losses = recorded.outcome.result["eval_loss"], recorded.losses
    mentions, measured = "", {"eval_loss": evaluated, "first_loss": float(losses[0]), "last_loss": float(losses[-1])}
    if recorded.outcome.status == "finished" and (evaluated is None or not math.isfinite(evaluated)):
        mentions = "evaluation"
    elif recorded.outcome.status == "finished" and losses[-1] > FAR * losses[0] > 0:
        mentions = "loss"
    stopped = recorded.outcome.status == "cancelled"
    return Truth(
        frozenset({None}),
        mentions=mentions,
        unstable=_outside(recorded),
        may_stop=not (stopped and control is not None and control.lives),
        measured=measured,
    )


def _outside(recorded: Recorded) -> bool | None:
    """Whether an eigenvalue of a `direct` layer is outside the boundary in the last recorded row. There the weight is the
    eigenvalue."""
    if recorded.config["model"]["reparameterization"]["name"] != "direct":
        return None
    weights = [recorded.sink.series(name)[1][-1] for name in recorded.sink.catalogue if name.endswith("/weight")]
    return bool(weights) and any(bool((np.abs(w) > 1).any()) for w in weights)


def _of_death(config: Config) -> Truth:
    """The truth about a death by configuration."""
    complete = trained(config, {"telemetry.every": 1})  # the same run; its fatal step is the first that was not finite
    died_at = complete.outcome.step
    own = config["optimizer"]
    tenth = {"optimizer.lr": own["lr"] / 10, "optimizer.recurrent_lr": (own.get("recurrent_lr") or own["lr"]) / 10}
    frozen, slower = trained(config, {"optimizer.recurrent_lr": 0.0}), trained(config, tenth)
    measured: dict[str, Any] = {
        "died_at": died_at,
        "frozen": "lives" if frozen.lives else frozen.outcome.step,
        "tenth_of_rate": "lives" if slower.lives else slower.outcome.step,
        "loss_over_best": _loss_over_best(complete.losses),
    }
    without_recurrence = not frozen.lives and frozen.outcome.step <= died_at + SOON
    grown = _step_sizes_grew(complete)
    step = _fatal_step(parse_config(config), died_at)
    measured |= {"finite_if_clipped": step.finite_if_clipped, "float64_finite": step.float64_finite, "largest": step.largest}
    if grown is not None:
        measured["dt_grew"] = grown
        causes = {"step_size", "lr_too_large"} if grown >= GREW and not without_recurrence else {"lr_too_large", "explosion"}
        return Truth(frozenset(causes), measured=measured)
    if True in step.finite_if_clipped.values():
        guilty = frozenset(k for k, finite in step.finite_if_clipped.items() if finite and k >= 0)
        layers = guilty or frozenset(layer for layer, _ in step.overflowing)
        eigenvalues = frozenset(pair for pair in step.overflowing if pair[0] in layers)
        causes = {"eigenvalue_overflow"} | ({"explosion", "lr_too_large"} if without_recurrence else set())
        return Truth(frozenset(causes), layers, eigenvalues, not_thrown_by=_excluded(measured), measured=measured)
    causes = {"explosion", "lr_too_large"}
    if step.float64_finite and step.largest < SQUARED:
        causes.add("arithmetic")
    if step.overflowing:
        causes.add("eigenvalue_overflow")  # eigenvalues overflowed, but the step would have died without them
    return Truth(
        frozenset(causes),
        eigenvalues=step.overflowing,
        not_thrown_by=_excluded(measured) | {"optimizer_step", "gradient_spike"},
        measured=measured,
    )


def _excluded(measured: dict[str, Any]) -> frozenset[str]:
    """The answers to what moved the eigenvalue that the measurements exclude: the whole training, if the loss of the step
    before was ordinary; the recurrence alone, if the loss was high and the run dies with frozen eigenvalues too."""
    if measured["loss_over_best"] < CALM:
        return frozenset({"explosion"})
    if measured["loss_over_best"] >= EXPLODED and measured["frozen"] != "lives":
        return frozenset({"optimizer_step", "gradient_spike"})
    return frozenset()


def _loss_over_best(losses: np.ndarray) -> float:
    finite = losses[np.isfinite(losses)]
    return float(finite[-1] / finite.min()) if len(finite) else math.nan


def _step_sizes_grew(recorded: Recorded) -> float | None:
    """The largest step size of the last row divided by that of the first row; None in discrete time."""
    own = [recorded.sink.series(name)[1] for name in recorded.sink.catalogue if name.endswith("/dt")]
    if not own:
        return None
    with np.errstate(all="ignore"):
        return max(float(np.nanmax(dt[-1]) / np.nanmax(dt[0])) if np.isfinite(dt[-1]).any() else math.inf for dt in own)


@dataclass(frozen=True)
class FatalStep:
    """The fatal step, repeated. finite_if_clipped: layer -> whether the step is finite if only this layer's eigenvalues are
    clipped; -1: those of all layers. Empty if no map lets eigenvalues leave. overflowing: (layer, eigenvalue) outside the
    boundary whose float64 state exceeds SQUARED. float64_finite: loss and gradients. largest: the largest float64 magnitude of
    the forward pass."""

    finite_if_clipped: dict[int, bool]
    overflowing: frozenset[tuple[int, int]]
    float64_finite: bool
    largest: float


def _fatal_step(config: RunConfig, step: int) -> FatalStep:
    task = get_task(config.task, Path())
    x, y = task.batch(step, config.train.batch_size, config.train.seed, "cpu")
    model = build_model(config, task)
    if step > 1:
        model.load_state_dict(_weights_before(config, step))
    recurrent = [module for module in model.modules() if isinstance(module, StableSSM)]
    can_leave = config.model.reparameterization.name == "direct"
    clipped = {}
    for layer in [-1, *range(len(recurrent))] if can_leave else []:
        kept = [module.w.detach().clone() for module in recurrent]
        for index, module in enumerate(recurrent):
            if layer in (-1, index):
                module.w.data.clamp_(-CLIPPED, CLIPPED)
        narrow = _repeat(model, task, x, y, config.train.precision == "bfloat16")
        wide = _states(model, x)
        clipped[layer] = narrow and all(float(h.max()) < LARGEST for h in wide)
        for module, weight in zip(recurrent, kept, strict=True):
            module.w.data.copy_(weight)
    states = _states(model, x)
    overflowing = frozenset(
        (layer, i)
        for layer, (module, h) in enumerate(zip(recurrent, states, strict=True))
        for i in range(len(h))
        if abs(float(module.eigenvalues()[i])) > 1 and not float(h[i]) < SQUARED
    )
    model = model.double()
    largest = [0.0]
    for module in model.modules():
        module.register_forward_hook(lambda _m, _i, out: largest.append(_largest(out)))
    finite = _repeat(model, task, _double(x), _double(y), False)
    return FatalStep(clipped, overflowing, finite, max(largest, key=lambda v: math.inf if math.isnan(v) else v))


def _weights_before(config: RunConfig, step: int) -> dict[str, Tensor]:
    """The weights with which this step begins."""
    with tempfile.TemporaryDirectory() as folder:
        return load_checkpoint(state_after(config.model_dump(mode="json"), step - 1, Path(folder))).under("model")


def _repeat(model: nn.Module, task: Any, x: Tensor, y: Tensor, half: bool) -> bool:
    """Whether the loss and all gradients of this step are finite."""
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = task.loss(model(x), y)
    loss.backward()
    return bool(loss.isfinite()) and all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@torch.no_grad()
def _states(model: nn.Module, x: Tensor) -> list[Tensor]:
    """For each layer, the largest |h| of each eigenvalue over batch and time, (d_state,) float64, by the recurrence's formula."""
    wide = copy.deepcopy(model).double()
    inputs: list[Tensor] = []
    layers = [module for module in wide.modules() if isinstance(module, StableSSM)]
    for layer in layers:
        layer.register_forward_pre_hook(lambda _m, given: inputs.append(given[0]))
    wide(_double(x))
    found = []
    for layer, z in zip(layers, inputs, strict=True):
        lambda_bar, gain = layer._transition()
        driven = z @ (gain[:, None] * layer.B).T
        h, largest = torch.zeros_like(driven[:, 0]), torch.zeros_like(driven[0, 0])
        for t in range(driven.shape[1]):
            h = lambda_bar * h + driven[:, t]
            largest = torch.maximum(largest, h.abs().amax(0))
        found.append(largest)
    return found


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _largest(output: Any) -> float:
    if isinstance(output, tuple):
        return max((_largest(part) for part in output), default=0.0)
    return float(output.detach().abs().max()) if isinstance(output, Tensor) and output.numel() else 0.0
