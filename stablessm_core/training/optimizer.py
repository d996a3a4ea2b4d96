"""The optimizer of a run: parameter groups, the learning rate of each step, and the update, which runs entirely on the
device."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from stablessm_core.spec.config import Optimizer as OptimizerConfig
from stablessm_core.watch.watchable import WatchedRecord, watched_records


class Scheduled(torch.optim.Optimizer):
    """An optimizer that keeps every number in a tensor with a fixed address, so that a CUDA graph can capture `update`.

    factor: (), the multiplier of the learning rates. It is the only number that the host passes to a training step. rates:
    (groups + 1,), the learning rates of the groups, followed by the common rate. Both are float64, like Python's numbers; on
    CUDA they are float32, because the fused kernels read float32. The moments are allocated at the start, and a checkpoint is
    copied into them.
    """

    factor: Tensor
    rates: Tensor
    _base: Tensor

    # PyTorch wraps these methods to exclude them from torch.compile. The wrapper imports the compiler, and that import takes as
    # long as importing torch.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    def allocate(self, common_lr: float, moments: Callable[[Tensor], dict[str, Tensor]]) -> None:
        """Create the tensors. moments: returns the initial optimizer state of a parameter."""
        device = self.param_groups[0]["params"][0].device
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self.factor = torch.ones((), dtype=dtype, device=device)
        self._base = torch.tensor([g["base_lr"] for g in self.param_groups] + [common_lr], dtype=dtype, device=device)
        self.rates = self._base.clone()
        for group, rate in zip(self.param_groups, self.rates.unbind(), strict=False):
            group["lr"] = rate
            for p in group["params"]:
                self.state[p] = moments(p)

    def set_unscheduled_rates(self, rates: Sequence[float]) -> None:
        """Change the unscheduled rates of the groups and, last, the common rate. `base_lr` of the groups stays as it was."""
        self._base.copy_(torch.tensor(rates, dtype=self._base.dtype))

    def schedule(self) -> None:
        """Set every rate to `factor` times its unscheduled rate."""
        torch.mul(self._base, self.factor, out=self.rates)

    def update(self, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient, with operations on the device only.

        skip: float32 (), or None for 0. If it is 1, no weight and no moment changes, whatever the gradients contain. If it is 0,
        the update has the same bits as without it.
        """
        raise NotImplementedError


class AdamW(torch.optim.AdamW, Scheduled):
    """AdamW, decoupled weight decay: p <- (1 - lr * decay) p - lr * mean / (sqrt(mean of squares) + eps)."""

    def __init__(self, groups: list[dict[str, Any]], common_lr: float) -> None:
        # the fused version reads memory only once and, unlike the default, keeps no copy of the step counters on the host
        super().__init__(groups, fused=True)
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._steps = torch.zeros(len(parameters), device=parameters[0].device)  # so that one operation increments all counters
        counters = iter(self._steps.unbind())
        self.allocate(
            common_lr,
            lambda p: {"step": next(counters), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)},
        )

    @torch.no_grad()
    def update(self, skip: Tensor | None = None) -> None:
        """The same update, bit for bit, as PyTorch's `step`. It calls only PyTorch's fused kernel, because the rest of `step`
        takes longer on the host than the kernel call."""
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        if sum(map(len, moved)) == self._steps.shape[0]:
            self._steps.add_(1 if skip is None else 1 - skip)
        else:
            counted = [self.state[p]["step"] for some in moved for p in some]
            torch._foreach_add_(counted, 1 if skip is None else 1 - skip)
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
                found_inf=skip,  # the kernel then changes nothing
            )


class SGD(Scheduled):
    """Gradient descent: p <- (1 - lr * decay) p - lr * v with v <- momentum * v + gradient; Nesterov: gradient + momentum * v.

    The update has the same bits as that of the fused torch.optim.SGD, except for the weight decay. The weight decay is
    decoupled as in AdamW, so that `weight_decay` has the same meaning for both optimizers. PyTorch's SGD adds decay * p to the
    gradient instead. With momentum, this also changes the velocity.
    """

    def __init__(self, groups: list[dict[str, Any]], common_lr: float, *, momentum: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(groups, {"momentum": momentum, "nesterov": nesterov})
        self.allocate(common_lr, lambda p: {"momentum_buffer": torch.zeros_like(p)} if momentum else {})

    @torch.no_grad()
    def update(self, skip: Tensor | None = None) -> None:
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if group["weight_decay"]:
                decay = group["lr"] * group["weight_decay"] * (1 if skip is None else 1 - skip)
                torch._foreach_mul_(moved, (1 - decay).to(moved[0].dtype))
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
                found_inf=skip,  # the kernel then changes nothing
            )


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    recurrent_lr: float | None = None,
    weight_decay: float = 0.01,
    recurrent_weight_decay: float = 0.0,
    vector_weight_decay: float = 0.0,
    records: Sequence[WatchedRecord] | None = None,
) -> list[dict[str, Any]]:
    """Up to three parameter groups with different weight decay, for any PyTorch optimizer.

    recurrent: the weights of every record of every layer in `model` (eigenvalues, their angles and step sizes), with their own
    rate (`lr` by default) and decay. matrices: every other parameter of two dimensions or more. vectors: biases, gains and other
    vectors, by default without decay. Empty groups are omitted. records: `watched_records(model)` by default.
    """
    recurrent_ids: set[int] = set()
    for watched in watched_records(model) if records is None else records:
        recurrent_ids |= {id(p) for p in watched.record.parameters}
    parameters = [p for p in model.parameters() if p.requires_grad]
    recurrent = [p for p in parameters if id(p) in recurrent_ids]
    others = [p for p in parameters if id(p) not in recurrent_ids]
    own = lr if recurrent_lr is None else recurrent_lr
    groups: list[dict[str, Any]] = [
        {"name": "recurrent", "params": recurrent, "lr": own, "weight_decay": recurrent_weight_decay},
        {"name": "matrices", "params": [p for p in others if p.ndim >= 2], "lr": lr, "weight_decay": weight_decay},
        {"name": "vectors", "params": [p for p in others if p.ndim < 2], "lr": lr, "weight_decay": vector_weight_decay},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, config: OptimizerConfig, records: Sequence[WatchedRecord] | None = None) -> Scheduled:
    """The configuration's optimizer over `parameter_groups`. Each group keeps its unscheduled learning rate in `base_lr`."""
    everything = config.decay == "all"
    groups = parameter_groups(
        model,
        lr=config.lr,
        recurrent_lr=config.recurrent_lr,
        weight_decay=config.weight_decay,
        recurrent_weight_decay=config.weight_decay if everything else config.recurrent_weight_decay,
        vector_weight_decay=config.weight_decay if everything else 0.0,
        records=records,
    )
    groups = [group | {"base_lr": group["lr"]} for group in groups]
    if config.name == "sgd":
        return SGD(groups, config.lr, momentum=config.momentum, nesterov=config.nesterov)
    return AdamW(groups, config.lr)


def steps_per_epoch(examples: int | None, batch_size: int) -> int | None:
    """The number of steps in an epoch, with a smaller last batch; None if the task has no epochs (`Task.train_examples`)."""
    return None if examples is None else -(-examples // batch_size)


def lr_factor(config: OptimizerConfig, step: int, steps: int, epoch_steps: int | None = None) -> float:
    """The schedule's multiplier of the learning rates at training step `step` of 1..`steps`.

    During warm-up it is step / warmup_steps. After that it is constant 1, or falls from 1 along a half cosine or a line. Both
    curves would reach 0 one step after the last step, so that no step has a rate of 0.

    cosine_per_epoch: (1 + cos(pi e / E)) / 2 in epoch e = 0..E - 1, as PyTorch's CosineAnnealingLR with T_max = E gives if it is
    stepped after each epoch. epoch_steps: the number of steps in an epoch (`steps_per_epoch`); only this schedule needs it.
    """
    if config.schedule == "cosine_per_epoch":
        if epoch_steps is None:
            raise ValueError(
                "optimizer.schedule is 'cosine_per_epoch'; the task has no epochs, because every batch is drawn anew"
            )
        return 0.5 * (1 + math.cos(math.pi * ((step - 1) // epoch_steps) / -(-steps // epoch_steps)))
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
    """Scale all gradients so that their global L2 norm is at most `max_norm`. norm: (), the norm before the scaling."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0).float())


def describe_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Name, learning rate, weight decay and number of parameters of each group, for the environment of the run."""
    return [
        {
            "name": group["name"],
            "lr": group["base_lr"],
            "weight_decay": group["weight_decay"],
            "count": sum(p.numel() for p in group["params"]),
        }
        for group in optimizer.param_groups
    ]
