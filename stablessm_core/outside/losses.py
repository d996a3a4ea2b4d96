"""The losses of a loop between two of its steps: which row each belongs to, and how many have none."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import torch
from torch import Tensor

KEPT = 100  # losses that are kept before the first step
NO_STEP = "no optimizer that is watched took a step"
TOO_LATE = "the first one came after the second step"


class LossOrder(Enum):
    """When the loop reports the loss of a step."""

    BEFORE = auto()  # before the optimizer's step
    AFTER = auto()
    NEVER = auto()


class Losses:
    """The losses that wait for the row of their step.

    order: None until the first steps have shown it. waiting: how many wait. most: the largest number that one step had. lost: how
    many can get no row any more, and `lost_because` why. before: those before the first step, at most KEPT and one.
    """

    def __init__(self) -> None:
        self.order: LossOrder | None = None
        self.waiting, self.most, self.lost = 0, 0, 0
        self.lost_because = ""
        self.interrupted = False  # True if only losses of a step that has not come are lost
        self.before: list[float | Tensor] = []
        self._sum: float | Tensor | None = None

    def add(self, loss: float | Tensor, *, stepped: bool) -> None:
        """One more loss. stepped: False before the first step."""
        self._sum = loss if self._sum is None else self._sum + loss
        self.waiting += 1
        if not stepped and len(self.before) <= KEPT:
            self.before.append(loss)

    def take(self) -> float | Tensor | None:
        """The mean of the losses that wait, for the row of their step; None if none waits."""
        found = self._sum
        if found is not None and self.waiting > 1:
            found = found / self.waiting
        self.most = max(self.most, self.waiting)
        self._sum, self.waiting = None, 0
        self.before.clear()
        return found

    def lose(self, because: str) -> None:
        """One more loss that no row can hold."""
        self.lost, self.interrupted = self.lost + 1, False
        self.lost_because = self.lost_because or because

    def finish(self, because: str = NO_STEP) -> None:
        """No row follows: the losses that wait have none."""
        if self.waiting:
            self.interrupted = because == NO_STEP and not self.lost and self.waiting <= max(1, self.most)
            self.lost += self.waiting
            self.lost_because = self.lost_because or because
        self.waiting, self._sum = 0, None


def as_loss(loss: float | Tensor, device: torch.device | None, say: Callable[[str], None]) -> float | Tensor | None:
    """The loss as a number, or as a tensor () that the program cannot change any more. None, after a sentence, if it is neither.

    device: where the row is; None before the first step, when the model may not be where it was at `watch`.
    """
    if not isinstance(loss, Tensor):
        return loss
    loss = loss.detach()
    if loss.numel() != 1 or loss.is_complex():
        say(f"loss has the shape {tuple(loss.shape)}; a single number is needed")
        return None
    if loss.device.type != "cpu" and device is not None and loss.device != device:
        say(f"loss lives on {loss.device}, the model on {device}; it is not recorded")
        return None
    return loss.to(torch.float32, copy=True).reshape(())
