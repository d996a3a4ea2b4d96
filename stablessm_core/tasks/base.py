"""What every task offers the trainer, and how its batches become pure functions of seed and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.model import Kind

IGNORED = -100  # a target that is not scored
TRAIN, EVALUATION = 0, 1  # separate streams of random numbers
Device = torch.device | str


class Task(ABC):
    """Batches, loss and accuracy of one task. Implements `TaskShape`, from which the model is built.

    Regression: x and y (batch, length, size) float32. Classification: x (batch, length, size) float32 or tokens (batch, length)
    int64, y (batch,) int64. Next token: x and y (batch, length) int64, y = IGNORED where nothing is scored.
    """

    kind: Kind
    input_size: int | None = None  # features of a real-valued input
    vocabulary: int | None = None  # number of tokens
    output_size: int
    length: int
    facts: dict[str, int | str]  # what was loaded, for the run's record

    @property
    def evaluation_length(self) -> int:
        """Steps of an evaluation sequence."""
        return self.length

    @abstractmethod
    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        """(x, y) of training step 1, 2, ...: the same bits for the same arguments on the same kind of device, in any order.

        Waits for nothing on the device, but for the first call, which moves the data there.
        """

    @abstractmethod
    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        """The evaluation split in order, the last batch perhaps smaller: the same for every run."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss, 0-dimensional float32: squared error, or cross-entropy in nats over what is scored."""
        if self.kind == "regression":
            return functional.mse_loss(output.float(), y)
        return functional.cross_entropy(output.float().reshape(-1, self.output_size), y.reshape(-1), ignore_index=IGNORED)

    def accuracy(self, output: Tensor, y: Tensor) -> Tensor | None:
        """Share of right answers among those scored, 0-dimensional; None for regression."""
        if self.kind == "regression":
            return None
        scored = y != IGNORED
        return ((output.argmax(-1) == y) & scored).sum() / scored.sum()

    def tokens_per_batch(self, batch_size: int) -> int:
        """Sequence steps one batch trains."""
        return batch_size * self.length


def generator(device: Device, *parts: int) -> torch.Generator:
    """Random numbers that depend on every one of `parts` (seed, step, stream, ...)."""
    return torch.Generator(device=device).manual_seed(mixed_seed(*parts))


def mixed_seed(*parts: int) -> int:
    """63 well-mixed bits of the integers (splitmix64): torch's CPU generator uses the low 32 only, and not well at that."""
    mask, state = 2**64 - 1, 0
    for part in parts:
        state = (state ^ part) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state >> 1


def in_batches(batch_size: int, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """x and y in pieces of batch_size along the first dimension, the last one perhaps smaller."""
    for start in range(0, len(x), batch_size):
        yield x[start : start + batch_size], y[start : start + batch_size]


def sent(tensor: Tensor, device: Device) -> Tensor:
    """The tensor on the device. Pinned for CUDA, because a copy of ordinary memory would wait for the device within a step."""
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class OnDevice:
    """Tensors kept on the device that was last asked for, so that a step copies nothing."""

    def __init__(self, *tensors: Tensor) -> None:
        self._here = tensors
        self._there: tuple[Tensor, ...] = tensors

    def __call__(self, device: Device) -> tuple[Tensor, ...]:
        wanted = torch.device(device)
        if self._there[0].device.type != wanted.type or wanted.index not in (None, self._there[0].device.index):
            self._there = tuple(tensor.to(wanted) for tensor in self._here)
        return self._there
