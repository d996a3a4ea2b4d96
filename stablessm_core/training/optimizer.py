"""Which parameters learn how fast: their groups, the learning rate of each step, and the update as device work alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from stablessm_core.config import Optimizer as OptimizerConfig
from stablessm_core.telemetry.watch import watched_records


class Scheduled(torch.optim.Optimizer):
    """An optimizer whose every number lies in a tensor with a fixed address, so that a captured graph of `update` is an update.

    factor: (), what the learning rates are multiplied by; the only number a training step is given by the host. rates: (groups
    + 1,), rates of the groups and, last, the common one; float64, because that is what a Python number is, but on CUDA float32,
    which is what the fused kernels read there. Moments exist from the start; a restored checkpoint is copied into them.
    """

    factor: Tensor
    rates: Tensor
    _base: Tensor

    def hold(self, common_lr: float, moments: Callable[[Tensor], dict[str, Tensor]]) -> None:
        """Give every number its place. `moments`: what the update keeps of a parameter, as it is before the first step."""
        device = self.param_groups[0]["params"][0].device
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self.factor = torch.ones((), dtype=dtype, device=device)
        self._base = torch.tensor([g["base_lr"] for g in self.param_groups] + [common_lr], dtype=dtype, device=device)
        self.rates = self._base.clone()
        for group, rate in zip(self.param_groups, self.rates.unbind(), strict=False):
            group["lr"] = rate
            for p in group["params"]:
                self.state[p] = moments(p)

    def schedule(self) -> None:
        """Every rate to `factor` times its unscheduled one."""
        torch.mul(self._base, self.factor, out=self.rates)

    def update(self) -> None:
        """One step of every parameter that has a gradient; device work alone."""
        raise NotImplementedError


class AdamW(torch.optim.AdamW, Scheduled):
    """AdamW, decoupled weight decay: p <- (1 - lr * decay) p - lr * mean / (sqrt(mean of squares) + eps)."""

    def __init__(self, groups: list[dict[str, Any]], common_lr: float) -> None:
        # fused: one pass over memory, and unlike the default no host copy of the step counters
        super().__init__(groups, fused=True)
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._steps = torch.zeros(len(parameters), device=parameters[0].device)  # counted by one operation, not by one each
        counters = iter(self._steps.unbind())
        self.hold(
            common_lr,
            lambda p: {"step": next(counters), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)},
        )

    @torch.no_grad()
    def update(self) -> None:
        """What `step` does, bit for bit, by its kernel alone: what it does on the host around that is most of a small step."""
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        if sum(map(len, moved)) == self._steps.shape[0]:
            self._steps.add_(1)
        else:
            torch._foreach_add_([self.state[p]["step"] for some in moved for p in some], 1)
        for group, some in zip(self.param_groups, moved, strict=True):
            if not some:
                continue
            states = [self.state[p] for p in some]
            torch._fused_adamw_(
                some,
                [p.grad for p in some],
                [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states],
                [],
                [s["step"] for s in states],
                amsgrad=False,
                maximize=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
            )


class SGD(Scheduled):
    """Gradient descent: p <- (1 - lr * decay) p - lr * v with v <- momentum * v + gradient; Nesterov: gradient + momentum * v.

    The bits of torch.optim.SGD, fused, but for the weight decay: that is decoupled as AdamW's is, so that the field of the
    configuration means one thing. PyTorch's would add decay * p to the gradient, and with momentum to the velocity.
    """

    def __init__(self, groups: list[dict[str, Any]], common_lr: float, *, momentum: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(groups, {"momentum": momentum, "nesterov": nesterov})
        self.hold(common_lr, lambda p: {"momentum_buffer": torch.zeros_like(p)} if momentum else {})

    @torch.no_grad()
    def update(self) -> None:
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if group["weight_decay"]:
                torch._foreach_mul_(moved, (1 - group["lr"] * group["weight_decay"]).to(moved[0].dtype))
            sgd(
                moved,
                [p.grad for p in moved if p.grad is not None],
                [self.state[p].get("momentum_buffer") for p in moved],
                fused=True,
                weight_decay=0.0,
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=0.0,
                nesterov=group["nesterov"],
                maximize=False,
            )


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    recurrent_lr: float | None = None,
    weight_decay: float = 0.01,
    recurrent_weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Three groups for any optimizer of PyTorch, empty ones left out: what should decay does, and nothing else.

    recurrent: the weights of every record of every layer in `model` (of eigenvalues, their angles and step sizes), with their
    own rate (`lr` without one) and decay. matrices: every other parameter of two dimensions or more, decayed. vectors: biases,
    gains and other vectors, never decayed.
    """
    recurrent_ids: set[int] = set()
    for watched in watched_records(model):
        recurrent_ids |= {id(p) for p in watched.record.parameters}
    parameters = [p for p in model.parameters() if p.requires_grad]
    recurrent = [p for p in parameters if id(p) in recurrent_ids]
    others = [p for p in parameters if id(p) not in recurrent_ids]
    own = lr if recurrent_lr is None else recurrent_lr
    groups: list[dict[str, Any]] = [
        {"name": "recurrent", "params": recurrent, "lr": own, "weight_decay": recurrent_weight_decay},
        {"name": "matrices", "params": [p for p in others if p.ndim >= 2], "lr": lr, "weight_decay": weight_decay},
        {"name": "vectors", "params": [p for p in others if p.ndim < 2], "lr": lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Scheduled:
    """The configuration's optimizer over `parameter_groups`; each group keeps its unscheduled rate in `base_lr`."""
    groups = parameter_groups(
        model,
        lr=config.lr,
        recurrent_lr=config.recurrent_lr,
        weight_decay=config.weight_decay,
        recurrent_weight_decay=config.recurrent_weight_decay,
    )
    groups = [group | {"base_lr": group["lr"]} for group in groups]
    if config.name == "sgd":
        return SGD(groups, config.lr, momentum=config.momentum, nesterov=config.nesterov)
    return AdamW(groups, config.lr)


def lr_factor(config: OptimizerConfig, step: int, steps: int) -> float:
    """What the learning rates are multiplied by at training step `step` of 1..`steps`.

    Warm-up: step / warmup_steps. Then constant 1, or down from 1 by a half cosine or a line that would be 0 at the step after
    the last one, so that no step is wasted.
    """
    if step <= config.warmup_steps:
        return step / config.warmup_steps
    progress = (step - 1 - config.warmup_steps) / (steps - config.warmup_steps)
    match config.schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            return 1 - progress
        case "constant":
            return 1.0


def clip_gradients(model: nn.Module, max_norm: float, norm: Tensor) -> None:
    """Scale all gradients so that their global L2 norm, given as `norm` (), is at most `max_norm`."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0).float())


def describe_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Name, rates and number of parameters of each group, as the run's environment shows them."""
    return [
        {
            "name": group["name"],
            "lr": group["base_lr"],
            "weight_decay": group["weight_decay"],
            "count": sum(p.numel() for p in group["params"]),
        }
        for group in optimizer.param_groups
    ]
