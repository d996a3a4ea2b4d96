"""The torch half of the plug-in task `planted_family`. A batch depends on nothing but seed and step.

A loss function sees only output and target. So the target of a step in which the loss or the backward pass has its fault carries
a mark: its last number says which step it is; in a target of classes, the last one is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.verdicts.families.moments import Moment, is_active
from benchmarks.verdicts.families.task_section import PlantedFamily
from stablessm_core.spec.tasks.copying import Copying
from stablessm_core.spec.tasks.digits import Digits
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from stablessm_core.tasks.base import IGNORED, Device, Task
from stablessm_core.tasks.copying import CopyingTask
from stablessm_core.tasks.digits import digits
from stablessm_core.tasks.polynomial_memory import PolynomialMemoryTask

EVALUATED = 64  # number of evaluation sequences
UNIT, FIRST_MARK, LAST_MARK = 65_536.0, 8192, 12_288  # the mark of step s is (8192 + s) / 65536, exact in float32


@dataclass(frozen=True)
class TaskFault:
    """A fault of a task. batch: (x, y, moment) -> (x, y). loss: (task, output, y, usual loss, moment) -> loss. always: True if
    the loss function is the fault's in every step, not only in marked ones. evaluation: the fault is in the evaluation's batch.
    """

    batch: Callable[[Tensor, Tensor, Moment], tuple[Tensor, Tensor]] | None = None
    loss: Callable[[Any, Tensor, Tensor, Tensor, Moment], Tensor] | None = None
    always: bool = False
    evaluation: bool = False


def faults() -> dict[str, TaskFault]:
    """The table of task faults."""
    from benchmarks.verdicts.families.held_out_parts import TASK_FAULTS as HELD_OUT
    from benchmarks.verdicts.families.parts import TASK_FAULTS

    return {**TASK_FAULTS, **HELD_OUT}


class PlantedFamilyTask(Task):
    """The task `section.base` with the fault that the section names."""

    def __init__(self, section: PlantedFamily, data_root: Path) -> None:  # noqa: ARG002 - no task here needs data
        self.section = section
        self.base: Task = _base(section.base, section.length)
        self.kind, self.input_size, self.output_size = self.base.kind, self.base.input_size, self.base.output_size
        self.vocabulary, self.length = self.base.vocabulary, self.base.length
        self.facts = {"base": section.base}
        self.fault = TaskFault() if section.fault == "none" else faults()[section.fault]

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        x, y = self.base.batch(step, batch_size, seed, device)
        section = self.section
        if not is_active(section.how, step, section.at, section.period):
            return x, y
        if self.fault.batch is not None and not self.fault.evaluation:
            x, y = self.fault.batch(x.clone(), y.clone(), Moment(step, section.at, section.size))
        if self.fault.loss is not None and not self.fault.always:
            y = self._marked(y, step)
        return x, y

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002
        x, y = next(iter(self.base.evaluation_batches(EVALUATED, device)))
        if self.fault.evaluation and self.fault.batch is not None:
            x, y = self.fault.batch(x.clone(), y.clone(), Moment(1, 1, self.section.size, training=False))
        yield x, y

    def accuracy(self, output: Tensor, y: Tensor) -> Tensor | None:
        return self.base.accuracy(output, y)

    def _marked(self, y: Tensor, step: int) -> Tensor:
        y = y.clone()
        y.view(-1)[-1] = IGNORED if not y.is_floating_point() else (FIRST_MARK + step) / UNIT
        return y


class PlantedLossTask(PlantedFamilyTask):
    """A task with its own loss function, which holds the fault."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        usual, fault = super().loss(output, y), self.fault.loss
        assert fault is not None
        section = self.section
        if self.fault.always:
            return fault(self, output, y, usual, Moment(section.at, section.at, section.size))
        step = self._step_of(y)
        return usual if step is None else fault(self, output, y, usual, Moment(step, section.at, section.size))

    def _step_of(self, y: Tensor) -> int | None:
        """The step that the target's mark names; None without a mark. The step of classes is not known: that of the fault."""
        last = y.view(-1)[-1]
        if not y.is_floating_point():
            marked = self.kind == "classification" and int(last) == IGNORED
            return self.section.at if marked else None
        number = float(last) * UNIT
        return int(number) - FIRST_MARK if number == int(number) and FIRST_MARK < number < LAST_MARK else None


def planted_family(section: PlantedFamily, data_root: Path) -> Task:
    fault = None if section.fault == "none" else faults()[section.fault]
    return (PlantedLossTask if fault is not None and fault.loss is not None else PlantedFamilyTask)(section, data_root)


@cache
def _base(name: str, length: int) -> Task:
    if name == "digits":
        return digits(Digits(name="digits"), Path())
    if name == "tokens":
        return CopyingTask(Copying(name="copying", noise_length=12, memorized=6, vocabulary_size=8), Path())
    return PolynomialMemoryTask(PolynomialMemory(name="polynomial_memory", length=length), Path())


class ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient a function changes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradients[0]), None


def with_gradient(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """x; in the backward pass its gradient g becomes change(g)."""
    return ScaledGradient.apply(x, change)  # type: ignore[no-any-return, no-untyped-call]
