"""Tasks without files: new random sequences for every training step, and a fixed set for evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from stablessm_core.tasks.base import EVALUATION, TRAIN, Device, OnDevice, Task, generator, in_batches

EVALUATION_TOKENS = 1 << 22  # maximum number of tokens in the evaluation set; a set of very long sequences is smaller


class GeneratedTask(Task):
    """A task whose subclass draws sequences from a random generator. This class chooses the generators.

    Every training batch is new. Evaluation sequences come from a separate random stream and are the same for every run.
    Training may draw an evaluation sequence by chance, which is likely only for tiny sequences.
    """

    def __init__(self, *, length: int, evaluation_sequences: int = 1000) -> None:
        self.length = length
        self._count = max(1, min(evaluation_sequences, EVALUATION_TOKENS // length))
        self._evaluation: OnDevice | None = None
        self.facts = {"evaluation_sequences": self._count}

    @abstractmethod
    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """(x, y) of `count` sequences on the device of `random`, the only source of randomness. Does not wait for the device."""

    def draw_evaluation(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """(x, y) of `count` evaluation sequences. By default, evaluation sequences are drawn like training sequences."""
        return self.draw(count, random)

    def scored(self, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - for subclasses
        """The targets for evaluation. A task that scores fewer positions than in training sets the other targets to IGNORED."""
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
    """(count, size) int64 on the device of `random`: each row has `size` different numbers from 0 to below - 1, in random
    order.
    """
    keys: Tensor = torch.rand(count, below, device=random.device, generator=random)
    return keys.topk(size, dim=1).indices
