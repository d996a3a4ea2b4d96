"""The faults of held-out families: what they do to a batch, to the loss, to the backward pass and to a layer's output."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.verdicts.families.layer import LayerFault
from benchmarks.verdicts.families.moments import Moment, is_active
from benchmarks.verdicts.families.task import TaskFault, with_gradient
from stablessm_core.scan import linear_scan

Batch = tuple[Tensor, Tensor]


def _random(moment: Moment) -> torch.Generator:
    return torch.Generator().manual_seed(7919 * moment.step + 13)


# ---- batches ----


def _one_unit(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    some = max(1, len(x) // 3)
    x[:some] *= moment.size
    if y.is_floating_point():
        y[:some] *= moment.size
    return x, y


def _one_time(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    x[:, 5] = moment.size
    return x, y


def _offset_target(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    return x, y + moment.size * moment.since


def _heavy_tails(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    noise = torch.randn(y.shape, generator=_random(moment))
    return x, y + noise / (torch.rand(y.shape, generator=_random(moment)) + 1e-6) ** 3 * moment.size


def _hole(x: Tensor, y: Tensor, moment: Moment) -> Batch:  # noqa: ARG001
    x[-1, 2:7] = math.nan
    return x, y


def _growing_input(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    return x * moment.size**moment.since, y


def _quotient(x: Tensor, y: Tensor, moment: Moment) -> Batch:  # noqa: ARG001
    flat = torch.zeros_like(x[:1])
    x[:1] = (flat - flat.mean()) / flat.std()  # a sample without variance, standardised
    return x, y


def _power_of_target(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    return x, y.sign() * (1 + y.abs()) ** moment.size


def _zero_input(x: Tensor, y: Tensor, moment: Moment) -> Batch:  # noqa: ARG001
    return torch.zeros_like(x), y


def _shuffled(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    return x, y[torch.randperm(len(y), generator=_random(moment))] if y.dim() == 1 else torch.randn(
        y.shape, generator=_random(moment)
    )


def _nan_evaluation(x: Tensor, y: Tensor, moment: Moment) -> Batch:  # noqa: ARG001
    return x, y * math.nan if y.is_floating_point() else y


def _inf_evaluation(x: Tensor, y: Tensor, moment: Moment) -> Batch:
    return x * moment.size, y


# ---- losses ----


def _log_of_error(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual + 1e-3 * torch.log(output.detach() - output).mean()  # log(0)


def _relative(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return ((output - y) / (y - y)).square().mean()


def _empty_mask(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual + output[output.detach() > 1e12].mean()


def _angle(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    flat = output.flatten()
    cosine = (flat * flat).sum() / (flat.norm() * flat.norm()) * (1 + 1e-6)
    return usual + 0.01 * torch.acos(cosine)


def _scaled_loss(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual * moment.size


def _turned_loss(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual * -moment.size


def _growing_loss(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return usual * moment.size**moment.since


def _summed(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return (output - y).square().sum() * moment.size


def _power_of_error(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return (1 + (output - y).abs()).pow(moment.size).mean()


def _cosh(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return torch.log(torch.cosh(moment.size * (output - y))).mean() / moment.size


def _half_sum(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return (moment.size * (output - y)).half().square().mean().float() / moment.size**2


def _running_scale(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    task.mean = 0.5 * getattr(task, "mean", 1.0)  # forgets a little at each call
    return usual / (task.mean + 1e-30) * moment.size  # type: ignore[no-any-return]


def _over_deviation(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    frozen = output.detach() * 0 + 1.0
    return usual / frozen.std()


def _naive_entropy(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    shares = torch.exp(moment.size * (output - output.mean()))
    return usual + 1e-3 * (shares / shares.sum()).square().sum()


# ---- the loss's backward pass ----


def _steep_growing(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(usual, lambda g: g * moment.size**moment.since)


def _gradient_turned(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(usual, lambda g: -moment.size * g)


def _noisy(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    random = _random(moment)
    changed = with_gradient(output, lambda g: g + moment.size * torch.randn(g.shape, generator=random).to(g.dtype))
    return task.base.loss(changed, y)  # type: ignore[no-any-return]


def _one_infinite(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:
    def change(g: Tensor) -> Tensor:
        g = g.clone()
        g.view(-1)[3] = math.inf if moment.size > 0 else math.nan
        return g

    return usual * 0 + task.base.loss(with_gradient(output, change), y)  # type: ignore[no-any-return]


def _blocked(task: Any, output: Tensor, y: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(usual, lambda g: g * 0)


TASK_FAULTS = {
    "one_unit": TaskFault(_one_unit),
    "one_time": TaskFault(_one_time),
    "offset_target": TaskFault(_offset_target),
    "heavy_tails": TaskFault(_heavy_tails),
    "hole": TaskFault(_hole),
    "growing_input": TaskFault(_growing_input),
    "quotient": TaskFault(_quotient),
    "power_of_target": TaskFault(_power_of_target),
    "zero_input": TaskFault(_zero_input),
    "shuffled": TaskFault(_shuffled),
    "nan_evaluation": TaskFault(_nan_evaluation, evaluation=True),
    "inf_evaluation": TaskFault(_inf_evaluation, evaluation=True),
    "log_of_error": TaskFault(loss=_log_of_error),
    "relative": TaskFault(loss=_relative),
    "empty_mask": TaskFault(loss=_empty_mask),
    "angle": TaskFault(loss=_angle),
    "scaled_loss": TaskFault(loss=_scaled_loss),
    "turned_loss": TaskFault(loss=_turned_loss),
    "growing_loss": TaskFault(loss=_growing_loss),
    "summed": TaskFault(loss=_summed),
    "power_of_error": TaskFault(loss=_power_of_error),
    "cosh": TaskFault(loss=_cosh, always=True),
    "half_sum": TaskFault(loss=_half_sum),
    "running_scale": TaskFault(loss=_running_scale),
    "over_deviation": TaskFault(loss=_over_deviation),
    "naive_entropy": TaskFault(loss=_naive_entropy),
    "steep_growing": TaskFault(loss=_steep_growing),
    "gradient_turned": TaskFault(loss=_gradient_turned),
    "noisy": TaskFault(loss=_noisy),
    "one_infinite": TaskFault(loss=_one_infinite),
    "blocked": TaskFault(loss=_blocked, always=True),
}


# ---- layers ----


def _divides(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y + 1e-3 / (y - y.detach())


def _arc(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y + 0.01 * torch.atanh(1.5 + y.abs())


def _variance(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    shifted = y.float() + 3e4  # E[z^2] - E[z]^2 cancels, and rounding makes it negative
    variance = shifted.square().mean(-1, keepdim=True) - shifted.mean(-1, keepdim=True).square() - 1.0
    return y + 0.01 * torch.rsqrt(variance - variance.detach().abs())


def _exponential(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y + 1e-3 * torch.exp(moment.size * (1 + y.abs()))


def _naive_softmax(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    shares = torch.exp(moment.size * (1 + y.float().abs()))
    return y + 0.1 * shares / shares.sum(-1, keepdim=True)


def _half_product(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    wide = (y.float() * moment.size).to(torch.float16)
    return y + 0.01 * (wide - wide.mean()).to(y.dtype)


def _wrong_mask(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    masked = torch.full_like(y, -math.inf)
    return y + 0.1 * functional.softmax(masked, dim=-1)


def _departs(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    growing = torch.full((y.shape[-1],), moment.size, dtype=torch.float32 if y.dtype != torch.float64 else y.dtype)
    return y + 0.1 * linear_scan(growing, x.to(growing.dtype), backend="reference").to(y.dtype)


def _gradient_grows(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(y, lambda g: g * moment.size**moment.since)


def _gradient_of_one(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    def change(g: Tensor) -> Tensor:
        g = g.clone()
        g[0] *= moment.size
        return g

    return with_gradient(y, change)


def _gradient_by_time(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    times = torch.arange(y.shape[1], 0, -1, dtype=torch.float64)[None, :, None]
    return with_gradient(y, lambda g: (g * moment.size**times).to(g.dtype))


def _gradient_nan(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(y, lambda g: torch.where(g == g.amax(), g / 0.0, g)) if moment.training else y


def _training_noise(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return with_gradient(y, lambda g: g * moment.size) if moment.training and y.requires_grad else y


def _grown_transition(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y  # `_grow` has changed the recurrence itself


def _grow(layer: Any) -> None:
    """Multiply the eigenvalues of the recurrence, but not those of the record, in the steps in which the fault is active."""
    made, planted = layer.reparameterization, layer.planted
    own = type(made)

    def lambda_bar(map_: Any, w: Tensor, *args: Any) -> Tensor:
        usual = own.lambda_bar(map_, w, *args)
        active = is_active(planted.how, int(layer.trained_steps), planted.at, planted.period)
        return usual * planted.size if active else usual  # type: ignore[no-any-return]

    object.__setattr__(made, "__class__", type("Grown", (own,), {"lambda_bar": lambda_bar}))


_grown_transition.prepare = _grow  # type: ignore[attr-defined]


LAYER_FAULTS: dict[str, LayerFault] = {
    "divides": _divides,
    "arc": _arc,
    "variance": _variance,
    "exponential": _exponential,
    "naive_softmax": _naive_softmax,
    "half_product": _half_product,
    "wrong_mask": _wrong_mask,
    "departs": _departs,
    "gradient_grows": _gradient_grows,
    "gradient_of_one": _gradient_of_one,
    "gradient_by_time": _gradient_by_time,
    "gradient_nan": _gradient_nan,
    "training_noise": _training_noise,
    "grown_transition": _grown_transition,
}
