"""Faults of loops in development families."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.verdicts.families.moments import Moment
from benchmarks.verdicts.watched.loop import Loop, LoopFault


def _root_of_zero(loop: Loop, output: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual + (output - output.detach()).square().sum().sqrt()


def _nan_loss(loop: Loop, output: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual + torch.log(-1 - output.square().mean())


def _rate_jumps(loop: Loop, moment: Moment) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] = loop.options["lr"] * moment.size


def _rate_returns(loop: Loop, moment: Moment) -> None:  # noqa: ARG001
    for group in loop.optimizer.param_groups:
        group["lr"] = loop.options["lr"]


def _absurd_weight(loop: Loop, moment: Moment) -> None:
    with torch.no_grad():
        first = next(
            p for name, p in loop.model.layers[-1].named_parameters() if name in ("A_log", "log_A_real", "nu_log", "decay")
        )
        first.view(-1)[1] = moment.size


def _skipped(loop: Loop, moment: Moment) -> None:  # noqa: ARG001
    loop.skip = True


def _validation(loop: Loop, moment: Moment) -> None:  # noqa: ARG001
    loop.run.log({"val/loss": math.nan})


def _times_batch(loop: Loop, moment: Moment) -> None:
    loop.x, loop.y = loop.x * moment.size, loop.y * moment.size


LOOP_FAULTS = {
    "root_of_zero": LoopFault(loss=_root_of_zero),
    "nan_loss": LoopFault(loss=_nan_loss),
    "rate_jumps": LoopFault(step=_rate_jumps, after=_rate_returns),
    "absurd_weight": LoopFault(after=_absurd_weight),
    "skipped": LoopFault(step=_skipped),
    "validation": LoopFault(ended=_validation),
    "times_batch": LoopFault(batch=_times_batch),
}
