"""How good a model is on its task's evaluation examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablessm_core.config import RunConfig
from stablessm_core.tasks.base import Task
from stablessm_core.telemetry import series as names
from stablessm_core.training.step import autocast

EVALUATION_NUMBERS = 1 << 22  # without gradients, batches may be larger than the training's: numbers per activation


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, config: RunConfig, device: torch.device) -> dict[str, float | None]:
    """Mean loss and accuracy (None where the task has none) over the task's evaluation batches, weighted by their size.

    Which examples, and how many at most, is the task's choice. Random states are left as they were. Waits for the device once.
    """
    count = 0
    loss = torch.zeros((), dtype=torch.float64, device=device)
    accuracy: Tensor | None = torch.zeros((), dtype=torch.float64, device=device)
    model.eval()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        batch_size = max(config.train.batch_size, EVALUATION_NUMBERS // (task.evaluation_length * config.model.widest()))
        for x, y in task.evaluation_batches(batch_size, device):
            with autocast(device, config.train.precision):
                output = model(x)
                loss += task.loss(output, y) * len(x)
            right = task.accuracy(output, y)
            accuracy = None if right is None or accuracy is None else accuracy + right * len(x)
            count += len(x)
    model.train()
    return {names.EVAL_LOSS: float(loss) / count, names.EVAL_ACCURACY: None if accuracy is None else float(accuracy) / count}
