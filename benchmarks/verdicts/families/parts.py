"""The faults of development families: what they do to a batch, to the loss, to the backward pass and to a layer's output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.verdicts.families.layer import LayerFault
from benchmarks.verdicts.families.moments import Moment
from benchmarks.verdicts.families.task import TaskFault, with_gradient
from stablessm_core.tasks.base import IGNORED


def _times_input(x: Tensor, y: Tensor, moment: Moment) -> tuple[Tensor, Tensor]:
    return x * moment.size, y


def _times_target(x: Tensor, y: Tensor, moment: Moment) -> tuple[Tensor, Tensor]:
    return x, y * moment.size


def _ignored(x: Tensor, y: Tensor, moment: Moment) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return x, torch.full_like(y, IGNORED)


def _random_labels(x: Tensor, y: Tensor, moment: Moment) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(moment.step)
    return x, torch.randint(0, 10, y.shape, generator=random)


def _noise_target(x: Tensor, y: Tensor, moment: Moment) -> tuple[Tensor, Tensor]:
    return x, torch.randn(y.shape, generator=torch.Generator().manual_seed(moment.step))


def _divided(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual / moment.size


def _ascent(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return -moment.size * usual


def _steeper(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(usual, lambda g: g * moment.size)


def _unreset_sum(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    task.total = getattr(task, "total", 1.0) * moment.size
    return usual * task.total  # type: ignore[no-any-return]


def _half_cast(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return ((output - y) * moment.size).half().float().square().mean() / moment.size**2


def _zero_by_zero(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    chosen = (output > 1e9).float()
    return usual + ((output * chosen).sum() / chosen.sum())


def _root_of_zero(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual + (output - output.detach()).square().sum().sqrt()


def _cosine_of_zero(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    zero = 0.0 * output.flatten()
    return usual + (zero * output.flatten()).sum() / (zero.norm() * output.norm())  # type: ignore[no-any-return]


TASK_FAULTS = {
    "times_input": TaskFault(_times_input),
    "times_target": TaskFault(_times_target),
    "ignored": TaskFault(_ignored),
    "random_labels": TaskFault(_random_labels),
    "noise_target": TaskFault(_noise_target),
    "divided": TaskFault(loss=_divided),
    "ascent": TaskFault(loss=_ascent),
    "steeper": TaskFault(loss=_steeper),
    "unreset_sum": TaskFault(loss=_unreset_sum),
    "half_cast": TaskFault(loss=_half_cast),
    "zero_by_zero": TaskFault(loss=_zero_by_zero),
    "root_of_zero": TaskFault(loss=_root_of_zero),
    "cosine_of_zero": TaskFault(loss=_cosine_of_zero),
}


def _log_of_output(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y + 0.01 * torch.log(y - y.amax())  # the logarithm of negative numbers


def _root_of_negative(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y + torch.sqrt(1 - (1 + y.square()))


def _half_layer(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return (y * moment.size).half().to(y.dtype) / moment.size


def _one_row_deviation(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y + y[:1].std(dim=0)  # of one row: 0/0


def _training_gradient(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(y, lambda g: g * moment.size) if moment.training else y


LAYER_FAULTS: dict[str, LayerFault] = {
    "log_of_output": _log_of_output,
    "root_of_negative": _root_of_negative,
    "half_layer": _half_layer,
    "one_row_deviation": _one_row_deviation,
    "training_gradient": _training_gradient,
}
