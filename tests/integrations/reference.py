"""Reads weights and gradients at each optimizer step, independently of the adapters, and compares recorded numbers with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.core.outside.reading import Recorded

Steps = list[list[Tensor]]


@contextmanager
def received() -> Iterator[tuple[Steps, Steps]]:
    """(weights, gradients) of every A_log at each step of any optimizer, as the optimizer receives them."""
    weights: Steps = []
    gradients: Steps = []

    def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.dim() == 2 and is_a_log(p)]
        weights.append([p.detach().clone() for p in parameters])
        gradients.append([p.grad.detach().clone() for p in parameters])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield weights, gradients
    finally:
        handle.remove()


def is_a_log(parameter: nn.Parameter) -> bool:
    return parameter.shape[1] == 4 and parameter.shape[0] > 4


def check_steps(found: Recorded, weights: Steps, gradients: Steps, first: int = 1) -> None:
    """Every weight and gradient of every step was recorded, with the bits of the reference."""
    assert len(weights) > 1
    for layer in range(len(weights[0])):
        for kind, expected in (("weight", weights), ("gradient", [[g.abs() for g in step] for step in gradients])):
            steps, values = found.sink.series(f"ssm/{layer}/{kind}")
            assert steps.tolist() == list(range(first, first + len(weights)))
            assert values.tobytes() == torch.stack([step[layer].flatten() for step in expected]).numpy().tobytes(), kind


def recorded(found: Recorded, name: str) -> np.ndarray:
    return found.sink.series(name)[1][:, 0]
