"""A training loop as a user writes it, with a fault in some steps, recorded by `stablessm.watch` into a file."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stablessm
from benchmarks.verdicts.families.moments import Moment, is_active
from benchmarks.verdicts.watched.models import DECLARED, Stack


@dataclass
class Loop:
    """The state of a loop that a fault may change. seen: what the loop itself saw, without `stablessm`."""

    options: Mapping[str, Any]
    model: Any
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    run: Any = None
    losses: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    nonfinite: list[tuple[int, str]] = field(default_factory=list)
    skip: bool = False
    taken: int = 0


@dataclass(frozen=True)
class LoopFault:
    """What a fault does in an active step. batch: before the forward pass. loss: (loop, output, usual loss, moment) -> loss.
    gradient: after the backward pass. step: before the optimizer's step. after: after the step. ended: after the last step."""

    batch: Callable[[Loop, Moment], None] | None = None
    loss: Callable[[Loop, Tensor, Tensor, Moment], Tensor] | None = None
    gradient: Callable[[Loop, Moment], None] | None = None
    step: Callable[[Loop, Moment], None] | None = None
    after: Callable[[Loop, Moment], None] | None = None
    ended: Callable[[Loop, Moment], None] | None = None


NO_FAULT = LoopFault()


def faults() -> dict[str, LoopFault]:
    """The table of faults of loops."""
    from benchmarks.verdicts.families.held_out_watched import LOOP_FAULTS as HELD_OUT
    from benchmarks.verdicts.watched.faults import LOOP_FAULTS

    return {"none": NO_FAULT, **LOOP_FAULTS, **HELD_OUT}


def train_loop(options: Mapping[str, Any], folder: Path) -> Loop:
    """Train the loop that the options describe, and leave its file in `folder`."""
    torch.manual_seed(options["seed"])
    model = Stack(options["model"], options.get("layers", 1))
    optimizer = _optimizer(options, model)
    loop = Loop(options, model, optimizer, torch.empty(0), torch.empty(0))
    fault, declared = faults()[options.get("fault", "none")], None
    if options["model"] in DECLARED:
        declared = {"layers.*.decay": stablessm.eigenvalues(*DECLARED[options["model"]])}
    with contextlib.redirect_stderr(io.StringIO()):
        loop.run = stablessm.watch(
            model,
            optimizer,
            mode="offline",
            dir=folder,
            layers=declared,
            total_steps=options["steps"],
            every=options.get("every", 1),
        )
        status = "finished"
        for step in range(1, options["steps"] + 1):
            _train_step(loop, step, fault, _moment(options, step))
            if loop.nonfinite and options.get("stops", True):
                status = options.get("status", "diverged")
                break
        if fault.ended is not None:
            fault.ended(loop, Moment(options["steps"], options["at"], options["size"]))
        loop.run.finish(status)
    return loop


def _optimizer(options: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    lr, decay = options["lr"], options.get("weight_decay", 0.0)
    if options["optimizer"] == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    if options["optimizer"] == "adam":
        return torch.optim.Adam(model.parameters(), lr=lr)
    if options["optimizer"] == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), lr=lr)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=options.get("momentum", 0.0), weight_decay=decay)


def _moment(options: Mapping[str, Any], step: int) -> Moment | None:
    active = is_active(options.get("how", "once"), step, options["at"], options.get("period", 3))
    return Moment(step, options["at"], options["size"]) if active else None


def _batch(options: Mapping[str, Any], step: int) -> tuple[Tensor, Tensor]:
    """Noise, and its moving average: what a recurrence can learn."""
    random = torch.Generator().manual_seed(1000 * options["seed"] + step)
    x = torch.randn(options["batch"], options["length"], 1, generator=random)
    y, mean = [], torch.zeros_like(x[:, 0])
    for t in range(options["length"]):
        mean = 0.8 * mean + 0.6 * x[:, t]
        y.append(mean)
    return x, torch.stack(y, 1)


def _train_step(loop: Loop, step: int, fault: LoopFault, moment: Moment | None) -> None:
    loop.x, loop.y = _batch(loop.options, step)
    loop.skip = False
    if moment is not None and fault.batch is not None:
        fault.batch(loop, moment)
    output = loop.model(loop.x)
    loss = (output - loop.y).square().mean()
    if moment is not None and fault.loss is not None:
        loss = fault.loss(loop, output, loss, moment)
    loop.optimizer.zero_grad()
    loss.backward()
    if moment is not None and fault.gradient is not None:
        fault.gradient(loop, moment)
    if loop.options.get("clip"):
        loop.run.clip_grad_norm_(loop.model.parameters(), loop.options["clip"])
    if moment is not None and fault.step is not None:
        fault.step(loop, moment)
    loop.losses[step] = float(loss.detach())
    loop.rates[step] = float(loop.optimizer.param_groups[0]["lr"])
    gradients = [p.grad for p in loop.model.parameters() if p.grad is not None]
    loop.norms[step] = math.sqrt(sum(float(g.double().square().sum()) for g in gradients)) if gradients else 0.0
    loop.run.loss(loss)
    _look(loop, step)
    if not loop.skip:
        loop.optimizer.step()
        loop.taken += 1
    if moment is not None and fault.after is not None:
        fault.after(loop, moment)


def _look(loop: Loop, step: int) -> None:
    """Note what is not finite before the step."""
    if not math.isfinite(loop.losses[step]):
        loop.nonfinite.append((step, "loss"))
    if not math.isfinite(loop.norms[step]):
        loop.nonfinite.append((step, "gradient"))
    if not all(bool(p.detach().isfinite().all()) for p in loop.model.parameters()):
        loop.nonfinite.append((step, "weight"))
