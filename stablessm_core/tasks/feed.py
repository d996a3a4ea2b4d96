"""Batches for consecutive training steps, prepared one step ahead on CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm_core.tasks.base import Task


class Feed:
    """Batches of training steps. On CUDA, a separate stream prepares the next batch while the current step runs.

    A batch is a pure function of seed and step, so a prepared batch that is not needed (for example after a rollback) is
    discarded.
    """

    def __init__(self, task: Task, batch_size: int, seed: int, device: torch.device) -> None:
        self._task, self._batch_size, self._seed, self._device = task, batch_size, seed, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ahead: tuple[int, Tensor, Tensor] | None = None

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """(x, y) of a training step, counted from 1. Does not wait for the device."""
        if self._stream is None:
            return self._make(step)
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = step, *self._on_own_stream(step)
        _, x, y = self._ahead
        training = torch.cuda.current_stream(self._device)
        training.wait_stream(self._stream)
        for tensor in (x, y):
            tensor.record_stream(training)  # otherwise the tensor's memory could be reused before the training stream reads it
        self._ahead = step + 1, *self._on_own_stream(step + 1)
        return x, y

    def _make(self, step: int) -> tuple[Tensor, Tensor]:
        return self._task.batch(step, self._batch_size, self._seed, self._device)

    def _on_own_stream(self, step: int) -> tuple[Tensor, Tensor]:
        with torch.cuda.stream(self._stream):
            return self._make(step)
