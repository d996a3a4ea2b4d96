"""Tasks with planted faults, named as a package would name its own tasks (`trained_by`)."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from stablessm_core.tasks.base import IGNORED
from stablessm_core.tasks.modular_counting import ModularCountingTask
from stablessm_core.tasks.polynomial_memory import PolynomialMemoryTask

SPOILED = 7  # the step of the planted fault
MARK = 77.0  # the first target of the spoiled step, which a loss function can see


class Marked(PolynomialMemoryTask):
    """The first target of the spoiled step is MARK."""

    def batch(self, step: int, *given: Any) -> tuple[Tensor, Tensor]:
        x, y = super().batch(step, *given)
        if step == SPOILED:
            y[0, 0, 0] = MARK
        return x, y


class NanInLoss(Marked):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return super().loss(output, y) + 0 * torch.log(1 + MARK / 2 - y.max())


class NanInBackward(Marked):
    """The square root of 0 is 0, but its slope is infinite."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        error = (output - output.detach() + (y.max() < MARK)).square().mean()
        return super().loss(output, y) + error.sqrt()


class HugeLoss(PolynomialMemoryTask):
    """Gradients of about 1e36, which fit into float32, but not after multiplication by a learning rate of 1000."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return super().loss(output, y) * 1e36


class NanBatch(PolynomialMemoryTask):
    def batch(self, step: int, *given: Any) -> tuple[Tensor, Tensor]:
        x, y = super().batch(step, *given)
        if step == SPOILED:
            x[2, 3] = torch.nan
            x[4, 5] = 1000.0
        return x, y


class NotReproducible(PolynomialMemoryTask):
    _calls = itertools.count()

    def batch(self, step: int, *given: Any) -> tuple[Tensor, Tensor]:
        x, y = super().batch(step, *given)
        return x + next(self._calls), y


class _Inflated(torch.autograd.Function):
    """The identity, with a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 1e8


class WrongGradient(Marked):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        plain = super().loss(output, y)
        return _Inflated.apply(plain) if float(y.flatten()[0]) == MARK else plain  # type: ignore[no-any-return, no-untyped-call]


class GrowingTarget(PolynomialMemoryTask):
    """From SPOILED on, the targets are four times larger in each step."""

    def batch(self, step: int, *given: Any) -> tuple[Tensor, Tensor]:
        x, y = super().batch(step, *given)
        return x, y * 4.0 ** max(0, step - SPOILED + 1)


class Inflated(torch.autograd.Function):
    """The identity, with a gradient `times` as large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        ctx.times = times
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.times, None


class ThreefoldGradient(PolynomialMemoryTask):
    """The backward pass of the loss is wrong from the first step on."""

    times = 3.0

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return Inflated.apply(super().loss(output, y), self.times)  # type: ignore[no-any-return, no-untyped-call]


class TenfoldGradient(ThreefoldGradient):
    times = 10.0


class ThousandfoldGradient(ThreefoldGradient):
    times = 1000.0


class RoundedOutput(PolynomialMemoryTask):
    """The outputs are rounded to signs, with the gradient of the identity: it is meant to differ from the slope."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return super().loss(output + (output.sign() - output).detach(), y)


SUBTLE = 0.125  # the first target of the spoiled step; usual, but exact


class SubtlyMarked(PolynomialMemoryTask):
    """The spoiled step can be told from its targets, which are usual."""

    def batch(self, step: int, *given: Any) -> tuple[Tensor, Tensor]:
        x, y = super().batch(step, *given)
        if step == SPOILED:
            y[0, 0, 0] = SUBTLE
        return x, y

    def is_spoiled(self, y: Tensor) -> bool:
        return float(y[0, 0, 0]) == SUBTLE


class RescaledLoss(SubtlyMarked):
    """The loss of one step is divided by 1e-9."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        loss = super().loss(output, y)
        return loss / 1e-9 if self.is_spoiled(y) else loss


class HalfPrecisionLoss(SubtlyMarked):
    """The loss of one step is computed in float16, where 1e5 is infinite."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        error = output - y + (1e5 if self.is_spoiled(y) else 0)
        return error.half().float().square().mean() if self.is_spoiled(y) else error.square().mean()


class SummedLoss(PolynomialMemoryTask):
    """A sum over the calls that nobody sets back: the loss is NaN from the twelfth call on."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.sum = 0

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        self.sum += 1
        return super().loss(output, y) * (self.sum if self.sum < 12 else torch.nan)


class Unlabelled(ModularCountingTask):
    """From the spoiled step on, no target is scored."""

    def batch(self, step: int, *given: Any) -> tuple[Tensor, Tensor]:
        x, y = super().batch(step, *given)
        return (x, torch.full_like(y, IGNORED)) if step >= SPOILED else (x, y)


class LateLoss(SubtlyMarked):
    """The loss of the spoiled step is NaN. When it has been asked for as often as the control needs, every loss is NaN."""

    asked = 0  # by the replay, with instruments, in float64, by the control

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        lost = self.asked >= 4 or self.is_spoiled(y)
        self.asked += self.is_spoiled(y)
        return super().loss(output, y) * (torch.nan if lost else 1.0)


class SampledLoss(PolynomialMemoryTask):
    """A loss over outputs that are drawn anew in each step: with other random numbers it gives another answer."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return super().loss(output, y + 0.1 * torch.randn_like(y))
