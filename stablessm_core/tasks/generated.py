"""Tasks without files: sequences drawn anew for every training step, and a fixed set of them for evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from stablessm_core.tasks.base import EVALUATION, TRAIN, Device, OnDevice, Task, generator, in_batches

EVALUATION_TOKENS = 1 << 22  # very long sequences are evaluated on fewer of them


class GeneratedTask(Task):
    """A subclass draws sequences; which numbers they are drawn with, and when, is decided here.

    Every training batch is new. Evaluation sequences come from a stream of their own, the same for every run; nothing keeps one
    of them from being drawn in training as well, which is likely only where the sequences are tiny.
    """

    def __init__(self, *, length: int, evaluation_sequences: int = 1000) -> None:
        self.length = length
        self._count = max(1, min(evaluation_sequences, EVALUATION_TOKENS // length))
        self._evaluation: OnDevice | None = None
        self.facts = {"evaluation_sequences": self._count}

    @abstractmethod
    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """(x, y) of `count` sequences on the device of `random`, which it waits for nothing on; no other random numbers."""

    def draw_evaluation(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """(x, y) of `count` evaluation sequences, drawn as in training unless a task evaluates on others."""
        return self.draw(count, random)

    def scored(self, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - for subclasses
        """y of evaluation; a task that trains more positions than it evaluates ignores the rest here."""
        return y

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        return self.draw(batch_size, generator(device, seed, step, TRAIN))

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        if self._evaluation is None:
            x, y = self.draw_evaluation(self._count, generator("cpu", 0, 0, EVALUATION))
            self._evaluation = OnDevice(x, self.scored(x, y))
        x, y = self._evaluation(device)
        return in_batches(batch_size, x, y)


def distinct(count: int, below: int, size: int, random: torch.Generator) -> Tensor:
    """(count, size) int64 on the device of `random`: in each row `size` different numbers of 0 .. below - 1, in random order."""
    keys: Tensor = torch.rand(count, below, device=random.device, generator=random)
    return keys.topk(size, dim=1).indices
