"""The training step: one function of tensors at fixed addresses, the same whether it runs eagerly, compiled or from a graph.

Before each step, the host fills only a few tensors (`feed`): the batch and the multiplier of the learning rates. The step
changes everything else in place: weights, moments, random state, the ring of recorded rows. It copies no value back to the
host, so a graph can capture it. The ways to run the step differ only in how its operations are launched (`execution`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from stablessm_core.network.step_buffers import StepBuffers
from stablessm_core.tasks.base import Task
from stablessm_core.training.optimizer import Scheduled, clip_gradients
from stablessm_core.watch.compiled_row_writer import CompiledRowWriter, make_row_writer
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.ring import Ring
from stablessm_core.watch.row_table import Weights


class TrainingStep:
    """Forward, backward, telemetry, clipping and update. For each step, call `feed`, then `run`, then `Recorder.count_row`.

    batch: (x, y) of any step, which gives the shapes, dtypes and device. precision, grad_clip: as in the configuration.
    skip_bad_batches: True to change no weight, moment or buffer in a step whose batch holds NaN or an infinity. The step still
    writes its row, and draws the random numbers of dropout, so that later steps drop the same units as after any other batch.
    forward, read_weights, write_row: the three parts that compiled versions may replace. Compiling `forward` also compiles
    backward; the update already is one fused kernel per group. run: runs the whole step; after a graph was captured, replays
    the graph.
    row_writer: if `use_compiled_row_writer` succeeded, writes the row instead of read_weights and write_row.
    side: the stream for telemetry, parallel to training, while a graph is captured. Otherwise None.
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
        skip_bad_batches: bool = False,
    ) -> None:
        self.model, self.task, self.optimizer, self.probe, self.ring = model, task, optimizer, probe, ring
        self.precision, self.grad_clip = precision, grad_clip
        self._parameters = list(model.parameters())
        self.x, self.y = (torch.empty_like(t).copy_(t) for t in batch)
        real = [t for t in (self.x, self.y) if t.is_floating_point() or t.is_complex()]
        self._checked = real if skip_bad_batches else []
        self._kept = list(model.buffers()) if self._checked else []
        self.forward: Any = self._forward
        self.read_weights: Any = probe.weights
        self.write_row: Any = self._write_row
        self.run: Any = self.eager
        self.row_writer: CompiledRowWriter | None = None
        self._buffers = StepBuffers()
        self.side: Any = None

    def feed(self, x: Tensor, y: Tensor, factor: float) -> None:
        """Copy the batch and the learning-rate multiplier of the next step into the tensors that the step reads."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.optimizer.factor.fill_(factor)

    def use_compiled_row_writer(self) -> None:
        """Let one C function write the rows if possible. This is for steps that run operation by operation on a CPU."""
        self.row_writer = make_row_writer(self.probe, self.ring, self.optimizer.rates[-1:], (self.x, self.y))

    def eager(self) -> None:
        """One training step, operation by operation."""
        for p in self._parameters:
            p.grad = None  # if there are no gradients, the backward pass writes new gradients instead of adding to the old ones
        self.optimizer.schedule()
        if self.row_writer is None:
            with self._beside_training():
                weights = self.read_weights()
        skip, buffers = self._bad_batch(), [buffer.clone() for buffer in self._kept]
        with self._buffers.activate():
            loss = self.forward(self.x, self.y)
            loss.backward()
        self.join()  # wait for telemetry, because the following operations change the weights
        if self.row_writer is not None:
            norm = self.row_writer.write(loss)
        else:
            with self._beside_training():
                norm = self.write_row(weights, loss.detach(), self.probe.gradients(), self.probe.states(), self.probe.gates())
        if self.grad_clip is not None:
            self.join()  # wait, because clipping needs the norm from telemetry and changes the gradients
            clip_gradients(self.model, self.grad_clip, norm)
        self.optimizer.update(skip)
        if skip is not None:
            for buffer, before in zip(self._kept, buffers, strict=True):
                buffer.copy_(torch.where(skip > 0, before, buffer))
        self.join()

    @torch.no_grad()
    def _bad_batch(self) -> Tensor | None:
        """float32 (): 1 if the batch holds NaN or an infinity, else 0. None if no step is skipped. Does not wait for the
        device."""
        if not self._checked:
            return None
        # the largest |x| is finite if and only if all x are finite
        finite = torch.stack([torch.linalg.vector_norm(t, torch.inf).isfinite() for t in self._checked])
        return 1 - finite.all().float()

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        with autocast(x.device, self.precision):
            return self.task.loss(self.model(x), y)

    @torch.no_grad()
    def _write_row(
        self, weights: Weights, loss: Tensor, gradients: Sequence[Tensor], states: Sequence[Tensor], gates: Sequence[Tensor]
    ) -> Tensor:
        row, norm = self.probe.row(weights, loss, self.optimizer.rates[-1:], gradients, states, gates, (self.x, self.y))
        self.ring.write(row)
        return norm

    def _beside_training(self) -> AbstractContextManager[Any]:
        # tensors used on both streams exist until the streams have joined, so their memory is not reused while it is read
        if self.side is None:
            return nullcontext()
        self.side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.side)

    def join(self) -> None:
        """Let the following operations wait for the telemetry that runs on the side stream."""
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A context in which a model computes with the configuration's precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def train_step(training: TrainingStep, batches: Callable[[int], tuple[Tensor, Tensor]], step: int, lr_multiplier: float) -> None:
    """Run step number `step` on its batch, with the learning rates multiplied by `lr_multiplier`, and write the row of the step
    into the ring."""
    training.feed(*batches(step), lr_multiplier)
    training.run()
