"""The interface between a task and the trainer, and helpers that make batches pure functions of seed and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.spec.task import TaskKind

IGNORED = -100  # target that marks a position as not scored
TRAIN, EVALUATION = 0, 1  # indices of two separate random streams
Device = torch.device | str


class Task(ABC):
    """Batches, loss and accuracy of one task. Implements `TaskShape`, which determines the model's input and output.

    Regression: x and y are (batch, length, size) float32. Classification: x is (batch, length, size) float32, or tokens
    (batch, length) int64; y is (batch,) int64. Next token: x and y are (batch, length) int64, with y = IGNORED at positions that
    are not scored.
    """

    kind: TaskKind
    input_size: int | None = None  # number of features of a real-valued input
    vocabulary: int | None = None  # number of different tokens
    output_size: int
    length: int
    train_examples: int | None = None  # number of examples in an epoch; None if every batch is drawn anew
    facts: dict[str, int | str]  # facts about the loaded data, which are stored with the run

    @property
    def evaluation_length(self) -> int:
        """Number of time steps in an evaluation sequence."""
        return self.length

    @abstractmethod
    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        """(x, y) of a training step, counted from 1. On one kind of device, equal arguments give equal bits.

        Steps may be requested in any order. Only the first call waits for the device, because it moves the data to the device.
        """

    @abstractmethod
    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        """The evaluation set in order, the same for every run. The last batch may be smaller."""

    def test_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]] | None:  # noqa: ARG002
        """The test set in order, if evaluations use a separate validation set; otherwise None."""
        return None

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss, 0-dimensional float32: squared error, or cross-entropy in nats over the scored positions."""
        if self.kind == "regression":
            return functional.mse_loss(output.float(), y)
        return functional.cross_entropy(output.float().reshape(-1, self.output_size), y.reshape(-1), ignore_index=IGNORED)

    def accuracy(self, output: Tensor, y: Tensor) -> Tensor | None:
        """Share of correct answers among the scored positions, 0-dimensional. None for regression."""
        if self.kind == "regression":
            return None
        scored = y != IGNORED
        return ((output.argmax(-1) == y) & scored).sum() / scored.sum()

    def tokens_per_batch(self, batch_size: int) -> int:
        """Number of time steps in one batch."""
        return batch_size * self.length


def generator(device: Device, *parts: int) -> torch.Generator:
    """A random generator whose seed is mixed from `parts` (seed, step, stream, ...)."""
    return torch.Generator(device=device).manual_seed(mixed_seed(*parts))


def mixed_seed(*parts: int) -> int:
    """63 well-mixed bits computed from the integers (splitmix64). Mixing is needed because torch's CPU generator uses only the
    low 32 bits of a seed."""
    mask, state = 2**64 - 1, 0
    for part in parts:
        state = (state ^ part) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state >> 1


def in_batches(batch_size: int, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """x and y in batches along the first dimension. The last batch may be smaller."""
    for start in range(0, len(x), batch_size):
        yield x[start : start + batch_size], y[start : start + batch_size]


def to_device(tensor: Tensor, device: Device) -> Tensor:
    """The tensor on the device. A copy to CUDA uses pinned memory, because a copy of unpinned memory waits for the device."""
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class OnDevice:
    """Tensors that stay on the device of the last call, so that a training step copies nothing."""

    def __init__(self, *tensors: Tensor) -> None:
        self._here = tensors
        self._there: tuple[Tensor, ...] = tensors

    def __call__(self, device: Device) -> tuple[Tensor, ...]:
        wanted = torch.device(device)
        if self._there[0].device.type != wanted.type or wanted.index not in (None, self._there[0].device.index):
            self._there = tuple(tensor.to(wanted) for tensor in self._here)
        return self._there
