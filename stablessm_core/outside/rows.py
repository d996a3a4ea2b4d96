"""Copies what the training step holds into one flat row, with few operations, however many layers there are.

The row keeps parameters and gradients as they are. Ratios, step sizes and summaries of wide layers are computed from the rows on
the flush thread (`columns.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# the columns before those of the parameters; their number is even, so that complex numbers are aligned
HEADER = ("loss", "lr", "scale", "skipped", "grad_norm", "scaler")


@dataclass(frozen=True)
class Place:
    """The columns of a parameter in a row. A complex number has two. gradient: None if the parameter is not trained."""

    value: slice
    gradient: slice | None


@dataclass
class _Part:
    """The parameters of one optimizer that have the same kind of numbers, real or complex, with their columns in the row."""

    values: list[Tensor]
    trained: list[Tensor]
    targets: list[Tensor]
    zeros: list[Tensor | None]


class StagedRow:
    """The row of the step that is being taken, float32 (columns,) on `device`.

    tensors: the parameters to record. owners: for each of them the optimizer that trains it, as a number.
    """

    def __init__(self, tensors: Sequence[Tensor], owners: Sequence[int], device: torch.device) -> None:
        ordered = sorted(range(len(tensors)), key=lambda i: not tensors[i].is_complex())
        self.places: list[Place] = [Place(slice(0), None)] * len(tensors)
        at = len(HEADER)
        for i in ordered:
            count = tensors[i].numel() * (2 if tensors[i].is_complex() else 1)
            value, at = slice(at, at + count), at + count
            gradient = None
            if tensors[i].requires_grad:
                gradient, at = slice(at, at + count), at + count
            self.places[i] = Place(value, gradient)
        self.columns = at
        self.row = torch.zeros(at, dtype=torch.float32, device=device)
        self._loss, self._lr, self._scale, self._skipped, self._grad_norm, self._scaler = (self.row[i] for i in range(6))
        for unknown in (self._loss, self._grad_norm, self._scaler):
            unknown.fill_(math.nan)
        self._one = torch.ones((), dtype=torch.float32, device=device)
        self._zero = torch.zeros_like(self._one)
        self._last_lr: float | None = None
        self.missing = False  # True if no trained parameter of the last step had a gradient
        self.assign(tensors, owners)

    def assign(self, tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Take these tensors from now on: each has the shape and kind of the tensor in whose place it stands."""
        self._parts: dict[int, list[_Part]] = {}
        for owner in sorted(set(owners)):
            for is_complex in (True, False):
                own = [i for i in range(len(tensors)) if owners[i] == owner and tensors[i].is_complex() == is_complex]
                if own:
                    self._parts.setdefault(owner, []).append(self._part(tensors, own))

    def _part(self, tensors: Sequence[Tensor], own: Sequence[int]) -> _Part:
        trained = [i for i in own if self.places[i].gradient is not None]
        targets = [self._view(tensors[i], self.places[i].value) for i in own]
        for i in trained:
            where = self.places[i].gradient
            assert where is not None
            targets.append(self._view(tensors[i], where))
        return _Part([tensors[i] for i in own], [tensors[i] for i in trained], targets, [None] * len(trained))

    def _view(self, tensor: Tensor, where: slice) -> Tensor:
        part = self.row[where]
        return (part.view(torch.complex64) if tensor.is_complex() else part).view(tensor.shape)

    @torch.no_grad()
    def take(
        self,
        owner: int,
        lr: float | Tensor | None,
        scale: Tensor | None,
        skipped: Tensor | bool,
        norm: Tensor | None,
        scaler: Tensor | None = None,
    ) -> None:
        """Copy the parameters of one optimizer, their gradients and the step's settings. Never waits for the device.

        lr: the learning rate; None leaves the one before. scale: the factor by which a gradient scaler has multiplied the
        gradients, and has not divided them by yet. skipped: 1 where the optimizer will not change the weights. norm: the norm of
        all gradients, if known. scaler: the factor of the gradient scaler, also if the gradients are unscaled.
        """
        sources = [
            self._one if scale is None else scale,
            skipped if isinstance(skipped, Tensor) else self._one if skipped else self._zero,
        ]
        targets = [self._scale, self._skipped]
        if isinstance(lr, Tensor):
            sources.append(lr.view(()))
            targets.append(self._lr)
        elif lr is not None and lr != self._last_lr:
            self._lr.fill_(lr)
            self._last_lr = lr
        for number, target in ((norm, self._grad_norm), (scaler, self._scaler)):
            if number is not None:
                sources.append(number.view(()))
                targets.append(target)
        trained = seen = 0
        for part in self._parts.get(owner, ()):
            trained += len(part.trained)
            sources += part.values
            for i, tensor in enumerate(part.trained):
                gradient = tensor.grad
                if gradient is None:
                    gradient = part.zeros[i]
                    if gradient is None:
                        gradient = part.zeros[i] = torch.zeros_like(tensor)
                else:
                    seen += 1
                sources.append(gradient)
            targets += part.targets
            torch._foreach_copy_(targets, sources)
            sources, targets = [], []
        self.missing = trained > 0 and not seen
        if sources:
            torch._foreach_copy_(targets, sources)

    @torch.no_grad()
    def set_skipped(self) -> None:
        """The optimizer will not change the weights after all."""
        self._skipped.fill_(1)

    @torch.no_grad()
    def set_loss(self, loss: float | Tensor) -> None:
        """Put the loss into the row. It stays there until the next call."""
        if isinstance(loss, Tensor):
            self._loss.copy_(loss.detach().reshape(()), non_blocking=True)
        else:
            self._loss.fill_(loss)
