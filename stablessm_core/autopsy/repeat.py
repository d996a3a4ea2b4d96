"""Trains one step again with instruments: in the run's precision, or in float64.

The step runs operation by operation. Under a dispatch mode, compiled networks and fused layers take themselves apart, so that
the instruments see each operation. The results of this path and of the run's path agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.autopsy.bench import Bench
from stablessm_core.autopsy.instruments import LOSS_MODULE, Instruments, Magnitudes
from stablessm_core.autopsy.places import describe, largest_states
from stablessm_core.layers.stable_ssm import StableSSM
from stablessm_core.model import Block, Network
from stablessm_core.network.small_blocks import fits
from stablessm_core.tasks.base import IGNORED, Task
from stablessm_core.training.checkpoint import Checkpoint, restore_training
from stablessm_core.training.optimizer import build_optimizer, clip_gradients
from stablessm_core.training.step import autocast
from stablessm_core.watch.watchable import watched_records


@dataclass(frozen=True)
class Repeated:
    """A step that was trained with instruments. finite: True if the loss, every gradient and every updated weight is finite.

    first: the first non-finite result, as findings show it, or None. modules: see `Instruments`. states: see
    `largest_states`.
    """

    loss: float
    finite: bool
    first: dict[str, Any] | None
    modules: Sequence[Magnitudes]
    largest: float
    narrow: list[str]
    operations: int
    states: list[dict[str, Any]]


def repeat(bench: Bench, before: Checkpoint, *, dtype: torch.dtype = torch.float32) -> Repeated:
    """Train the step after `before` with instruments. The bench's own model stays as it is.

    dtype: float32 repeats the step in the run's precision, with the update of the weights. float64 computes loss and gradients
    in float64, without autocast, from the same weights, batch and random numbers.
    """
    step, wide = before.step + 1, dtype == torch.float64
    model = unfused_model(bench).to(bench.device, dtype)
    optimizer = build_optimizer(model, bench.config.optimizer)
    restore_training(before, model, optimizer)
    x, y = (t.to(dtype) if t.is_floating_point() and wide else t.clone() for t in bench.batches(step))
    parameters = dict(model.named_parameters())
    norms = () if wide else compiled_norms(bench, x)
    seen = Instruments({p.data_ptr(): path for path, p in parameters.items()}, norms)
    for path, p in parameters.items():
        seen.know(p, "weights", path, "update", path.rpartition(".")[0])
    seen.know(x, "batch", "input")
    seen.know(y, "batch", "target", "loss", LOSS_MODULE)
    optimizer.factor.fill_(bench.multiplier(step))
    skipped = bench.config.train.on_bad_batch == "skip" and not all(bool(t.isfinite().all()) for t in (x, y))
    with seen:
        with autocast(bench.device, "float32" if wide else bench.config.train.precision):
            with seen.watch_modules(model):
                output = model(x)
            seen.stage = "loss"
            loss = exact_loss(bench.task, output, y) if wide else bench.task.loss(output, y)
        seen.stage = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in parameters.values() if p.grad is not None]
        if not wide and not skipped:
            seen.stage = "update"
            if bench.config.optimizer.grad_clip is not None:
                clip_gradients(model, bench.config.optimizer.grad_clip, norm_of(gradients))
            optimizer.schedule()
            optimizer.update()
    reached = [loss.detach(), *gradients, *(p.detach() for p in parameters.values())]
    states = [r.module.last_state for r in watched_records(model)]  # the recorder calls a step fatal for a state alone
    groups = ([loss.detach()], gradients, [p.detach() for p in parameters.values()], states)
    first = next((found for tensors in groups if (found := seen.first_behind(tensors)) is not None), None)
    return Repeated(
        loss=float(loss.detach()),
        finite=all(bool(t.isfinite().all()) for t in reached),
        first=describe(first, model, seen, step),
        modules=seen.modules,
        largest=seen.largest,
        narrow=list(seen.narrow),
        operations=seen.operations,
        states=largest_states(model, seen),
    )


def unfused_model(bench: Bench) -> Network:
    """The run's network without fused layers, on the CPU. Its weights are random."""
    with torch.random.fork_rng(devices=[]):
        return Network(bench.config.model, bench.task, scan_backend=bench.numerics.scan_backend, fused="off")


@torch.no_grad()
def compiled_norms(bench: Bench, x: Tensor) -> list[str]:
    """The paths of the norms that the run computes with the kernels of small blocks, instead of calling the norm's module."""
    model = bench.model
    norms = {path: module for path, module in model.named_modules() if type(module) is nn.LayerNorm}
    if not isinstance(model, Network):
        return []
    called: set[str] = set()
    devices = [bench.device] if bench.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), autocast(bench.device, bench.config.train.precision):
        if model._in_one_node(x) is not None:
            return list(norms)
        hooks = [norm.register_forward_hook(lambda *_, path=path: called.add(path)) for path, norm in norms.items()]
        try:
            model(x)
        finally:
            for hook in hooks:
                hook.remove()
    return [path for path in _norms_of_small_halves(model) if path not in called]


def _norms_of_small_halves(model: Network) -> Iterator[str]:
    for i, block in enumerate(model.blocks):
        if not isinstance(block, Block):
            continue
        if isinstance(block.ssm, StableSSM):
            inner, width = block.ssm.B.shape
            if fits(width, inner, width * inner):
                yield f"blocks.{i}.norm"
        if block.mlp is not None:
            inner, width = block.mlp.gate.weight.shape
            if fits(width, inner, 2 * width * inner):
                yield f"blocks.{i}.mlp.norm"


def exact_loss(task: Task, output: Tensor, y: Tensor) -> Tensor:
    """The task's loss without the conversion to float32. A task with its own loss function converts as it likes."""
    if type(task).loss is not Task.loss:
        return task.loss(output, y)
    if task.kind == "regression":
        return functional.mse_loss(output, y)
    return functional.cross_entropy(output.reshape(-1, task.output_size), y.reshape(-1), ignore_index=IGNORED)


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all numbers of these tensors together, float64 ()."""
    norms = [torch.linalg.vector_norm(t.detach(), dtype=torch.float64) for t in tensors]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros((), dtype=torch.float64)
    return norm
