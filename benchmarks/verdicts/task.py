"""The torch half of the task `planted_fault`. Its batches and losses depend on nothing but seed and step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.verdicts.section import PlantedFault
from stablessm_core.spec.tasks.digits import Digits
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from stablessm_core.tasks.base import IGNORED, Device, Task
from stablessm_core.tasks.digits import digits
from stablessm_core.tasks.polynomial_memory import PolynomialMemoryTask

MARK = 1011 / 8192  # marks the fault's step in the target, because a loss sees only output and target; exact in float32
EVALUATED = 64  # number of evaluation sequences
IN_LOSS = ("loss", "backward")
OF_WHOLE_RUN = ("half_loss", "same_loss", "narrow_loss", "wide_loss")
VALUES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class PlantedFaultTask(Task):
    """The task `section.base` with the fault that the section describes."""

    def __init__(self, section: PlantedFault, data_root: Path) -> None:  # noqa: ARG002 - both tasks need no data
        self.section = section
        self.base: Task = _digits() if section.base == "digits" else _memory(section.length)
        self.kind, self.input_size, self.output_size = self.base.kind, self.base.input_size, self.base.output_size
        self.vocabulary, self.length = self.base.vocabulary, self.base.length
        self.facts = {"base": section.base}

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        x, y = self.base.batch(step, batch_size, seed, device)
        fault = self.section
        if fault.place in OF_WHOLE_RUN:
            return x, y * fault.size**step if fault.change == "grows" else y
        if not (step == fault.step or (step > fault.step and fault.change == "grows")):
            return x, y
        if fault.place in IN_LOSS:
            return x, self._marked(y)
        if fault.place == "input":
            x = self._changed(x, step)
        elif fault.place == "target":
            y = self._changed(y, step)
        return x, y

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002
        x, y = next(iter(self.base.evaluation_batches(EVALUATED, device)))
        yield (self._changed(x, self.section.step), y) if self.section.place == "evaluation" else (x, y)

    def accuracy(self, output: Tensor, y: Tensor) -> Tensor | None:
        return self.base.accuracy(output, y)

    def _changed(self, tensor: Tensor, step: int) -> Tensor:
        fault, tensor = self.section, tensor.clone()
        if fault.change == "grows":
            return tensor * fault.size ** (step - fault.step + 1)
        part = {"one": tensor[0, 3], "sequence": tensor[0], "batch": tensor}[fault.extent]
        if fault.change == "times" and fault.extent != "one":
            part.mul_(fault.size)
        else:
            part.fill_(VALUES.get(fault.change, fault.size))
        return tensor

    def _marked(self, y: Tensor) -> Tensor:
        y = y.clone()
        y.view(-1)[0] = IGNORED if self.kind == "classification" else MARK
        return y

    def _is_marked(self, y: Tensor) -> bool:
        return float(y.view(-1)[0]) == (IGNORED if self.kind == "classification" else MARK)


class PlantedLossTask(PlantedFaultTask):
    """A task with its own loss function, which holds the fault. All other faults leave the usual loss as it is."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        fault = self.section
        if fault.place in OF_WHOLE_RUN:
            return _whole_run_loss(fault, output, y)
        plain = super().loss(output, y)
        if not self._is_marked(y):
            return plain
        if fault.place == "backward":
            return _Backward.apply(plain, fault.size if fault.change == "times" else VALUES[fault.change])  # type: ignore[no-any-return, no-untyped-call]
        if fault.change == "nan":
            return plain + torch.log(-1 - output.square().mean())  # the logarithm of a negative number
        sign = -1.0 if fault.change == "-inf" else 1.0
        return plain + sign / (output - output.detach()).square().sum()  # 1/0


def planted_fault(section: PlantedFault, data_root: Path) -> Task:
    own_loss = section.place in IN_LOSS or section.place in OF_WHOLE_RUN
    return PlantedLossTask(section, data_root) if own_loss else PlantedFaultTask(section, data_root)


def _whole_run_loss(fault: PlantedFault, output: Tensor, y: Tensor) -> Tensor:
    error = output - y
    if fault.place == "half_loss":
        return error.half().square().sum().float()
    if fault.place == "same_loss":
        return error.square().sum()
    exponent = fault.size * error.square()
    if fault.place == "narrow_loss":
        return torch.log(torch.exp(exponent).mean()) / fault.size
    return (torch.logsumexp(exponent.flatten(), 0) - math.log(exponent.numel())) / fault.size


class _Backward(torch.autograd.Function):
    """The identity, with a gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


@cache
def _digits() -> Task:
    return digits(Digits(name="digits"), Path())


@cache
def _memory(length: int) -> Task:
    return PolynomialMemoryTask(PolynomialMemory(name="polynomial_memory", length=length), Path())
