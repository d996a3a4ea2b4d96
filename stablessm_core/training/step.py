"""The training step: one function of tensors at fixed addresses, the same whether it runs eagerly, compiled or from a graph.

What changes from step to step lies in tensors that the host fills before (`feed`): the batch and the factor of the learning
rates. Everything else (weights, moments, random state, the ring of recorded rows) the step changes in place. It reads no number
back, so it may be captured; and what differs between ways to run it is only who launches its operations (`execution`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from stablessm_core.compiled import network
from stablessm_core.tasks.base import Task
from stablessm_core.telemetry import one_pass
from stablessm_core.telemetry.probe import Probe, Weights
from stablessm_core.telemetry.ring import Ring
from stablessm_core.training.optimizer import Scheduled, clip_gradients


class TrainingStep:
    """Forward, backward, telemetry, clipping, update. `feed` the batch, call `run`, then tell the recorder.

    batch: (x, y) of any step, for shapes, dtypes and device. precision, grad_clip: as in the configuration.
    forward, weights, record: the three parts that may be replaced by compiled versions of themselves; backward follows from the
    first, and the update is one fused kernel per group already. run: the whole step; a graph's replay, once captured.
    one_pass: makes the row in place of weights and record, once `record_in_one_pass` was called where that can be.
    side: the stream on which telemetry runs beside training while a graph is captured; None: in line.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        optimizer: Scheduled,
        probe: Probe,
        ring: Ring,
        *,
        batch: tuple[Tensor, Tensor],
        precision: str = "float32",
        grad_clip: float | None = None,
    ) -> None:
        self.model, self.task, self.optimizer, self.probe, self.ring = model, task, optimizer, probe, ring
        self.precision, self.grad_clip = precision, grad_clip
        self._parameters = list(model.parameters())
        self.x, self.y = (torch.empty_like(t).copy_(t) for t in batch)
        self.forward: Any = self._forward
        self.weights: Any = probe.weights
        self.record: Any = self._record
        self.run: Any = self.eager
        self.one_pass: one_pass.OnePass | None = None
        self._memory = network.Memory()
        self.side: Any = None

    def feed(self, x: Tensor, y: Tensor, factor: float) -> None:
        """The batch of the next step and what its learning rates are multiplied by, copied to where the step reads them."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.optimizer.factor.fill_(factor)

    def record_in_one_pass(self) -> None:
        """Let one function make the row where it can, for steps that run operation by operation on a CPU."""
        self.one_pass = one_pass.make(self.probe, self.ring, self.optimizer.rates[-1:], (self.x, self.y))

    def eager(self) -> None:
        """One training step, operation by operation."""
        for p in self._parameters:
            p.grad = None  # backward then writes gradients instead of adding to them
        self.optimizer.schedule()
        if self.one_pass is None:
            with self._aside():
                weights = self.weights()
        with self._memory.lent():
            loss = self.forward(self.x, self.y)
            loss.backward()
        self.join()  # what follows changes the weights
        if self.one_pass is not None:
            norm = self.one_pass.write(loss)
        else:
            with self._aside():
                norm = self.record(weights, loss.detach(), self.probe.gradients(), self.probe.states(), self.probe.gates())
        if self.grad_clip is not None:
            self.join()  # clipping needs the norm and changes the gradients
            clip_gradients(self.model, self.grad_clip, norm)
        self.optimizer.update()
        self.join()

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        with autocast(x.device, self.precision):
            return self.task.loss(self.model(x), y)

    @torch.no_grad()
    def _record(
        self, weights: Weights, loss: Tensor, gradients: Sequence[Tensor], states: Sequence[Tensor], gates: Sequence[Tensor]
    ) -> Tensor:
        row, norm = self.probe.row(weights, loss, self.optimizer.rates[-1:], gradients, states, gates, (self.x, self.y))
        self.ring.write(row)
        return norm

    def _aside(self) -> AbstractContextManager[Any]:
        # tensors that cross between the streams live until the streams have joined: nothing is reused under a reader
        if self.side is None:
            return nullcontext()
        self.side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.side)

    def join(self) -> None:
        """What comes next waits for what runs beside training."""
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
