"""The memory function of a network, measured by its response to a step input, and the runs that record it at evaluations."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.base import Task

MOST_LAGS = 512
LEAST_STEPS = 50  # since the evaluation before: a measurement costs about one step, so it takes at most 2 % of the time


def unit_input(input_size: int, seed: int = 0) -> Tensor:
    """The vector u of `measure_memory`, (input_size,)."""
    return torch.randn(input_size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def measure_memory(model: nn.Module, input_size: int, *, length: int = 1024, seed: int = 0) -> NDArray[np.float64]:
    """M(t) = |r_t - r_(t-1)|_2 over the output channels for t = 0..length-1, (length,) float64.

    r_t is the output for the input u, u, u, ... minus the output for the input 0, 0, 0, ..., and r_(-1) = 0. u is one vector of
    standard normal numbers, drawn from `seed`. If the model is linear and time-invariant with the kernel k, M(t) = |k(t) u|.
    For other models, it is the paper's memory function (StableSSM, definition 2.1, with a Heaviside input; the authors'
    src/memoryfunction.py takes the same differences). `theory.fit_decay` fits its decay.

    model: maps (batch, steps, input_size) float32 to (batch, steps, channels), such as a Network of a regression task. The
    model's mode and the random state stay as they are. Raises ValueError for another output shape and for a length below 1.
    """
    if length < 1:
        raise ValueError(f"length is {length}; need at least 1")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    u = unit_input(input_size, seed).to(device)
    x = torch.stack([u.expand(length, input_size), torch.zeros(length, input_size, device=device)])
    training = model.training
    model.eval()
    try:
        y = model(x.contiguous())
    finally:
        model.train(training)
    if y.dim() != 3 or y.shape[1] != length:
        raise ValueError(f"the output has the shape {tuple(y.shape)}; need (2, {length}, channels), one output for each step")
    response = (y[0] - y[1]).double().cpu().numpy()
    memory: NDArray[np.float64] = np.linalg.norm(np.diff(response, axis=0, prepend=0.0), axis=1)
    return memory


def recorded_lags(config: RunConfig, task: Task) -> int:
    """The number of lags that the run records; 0 if it records none.

    Only tasks with real-valued inputs and an output for each step have a memory function. A run whose evaluations are fewer than
    LEAST_STEPS apart records none.
    """
    every, steps = config.train.eval_every, config.train.steps
    if task.kind != "regression" or (every or steps) < LEAST_STEPS or steps < LEAST_STEPS:
        return 0
    return min(task.length, MOST_LAGS)
