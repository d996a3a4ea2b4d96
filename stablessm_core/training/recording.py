"""The recorder of a run, with the series, gauges and detectors of its configuration."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import psutil
import torch

from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.base import Task
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.detectors import Detectors, Setup
from stablessm_core.telemetry.rules import Rules
from stablessm_core.telemetry.sink import ResumableSink
from stablessm_core.telemetry.stability import layer_limits
from stablessm_core.training.memory import recorded_lags
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.recorder import ResumableRecorder

GIB = 2.0**30
MEMORY_SECONDS = 1.0  # minimum time between two reads of the memory use, in seconds; a read takes longer than all other gauges


def make_recorder(config: RunConfig, task: Task, probe: Probe, sink: ResumableSink, device: torch.device) -> ResumableRecorder:
    """A started recorder for the rows of `probe`."""
    tokens = task.tokens_per_batch(config.train.batch_size)
    gauges: dict[str, Callable[[int, float], float]] = {
        names.TRAIN_RATE: lambda rows, seconds: rows * tokens / seconds,
        names.STEP_TIME: lambda rows, seconds: seconds / rows,
        names.HOST_MEMORY: _host_memory(),
    }
    if device.type == "cuda":
        gauges[names.GPU_MEMORY] = lambda _rows, _seconds: torch.cuda.max_memory_allocated(device) / GIB
    evaluated = [names.EVAL_LOSS] + ([names.EVAL_ACCURACY] if task.kind != "regression" else [])
    catalogue = probe.catalogue + [names.scalar(n) for n in gauges] + [names.scalar(n, names.EVAL) for n in evaluated]
    if task.test_batches(1, device) is not None:
        tested = [names.TESTED_LOSS, names.TESTED_ACCURACY][: len(evaluated)]
        catalogue += [names.scalar(n, names.TEST) for n in tested]
    if lags := recorded_lags(config, task):
        catalogue.append(names.SeriesSpec(names.MEMORY, names.MEMORIES, lags, *names.MEANINGS[names.MEMORY]))
    for group, values in probe.measured().items():
        catalogue += names.measured_catalogue(group, {name: len(numbers) for name, numbers in values.items()})
    for r in probe.records:
        every = config.telemetry.every == 1 and not r.wide
        catalogue += names.following_catalogue(
            r.id, r.width, r.form, length=task.length, every_eigenvalue=every, constant_gate=r.record.constant_gate
        )
    detectors = Detectors(probe.parameter_names, setup_of(config, task), **config.alerts.model_dump(exclude={"rules"}))
    return ResumableRecorder(
        catalogue,
        sink,
        layout=probe.layout,
        device=device,
        every=config.telemetry.every,
        reader=ColumnReader(layer_forms(probe), detectors),
        gauges=gauges,
        halt=config.train.on_nonfinite != "continue",
        rules=Rules([section.rule for section in config.alerts.rules]),
    )


def layer_forms(probe: Probe) -> list[LayerForm]:
    """The watched records of the probe's model, as the column reader needs them."""
    return [LayerForm(r.layer, r.path, r.form, r.width, r.wide, r.record.name, r.paths) for r in probe.records]


def _host_memory() -> Callable[[int, float], float]:
    process, asked, gib = psutil.Process(), -MEMORY_SECONDS, 0.0  # type: ignore[no-untyped-call]

    def gauge(_rows: int, _seconds: float) -> float:
        nonlocal asked, gib
        if perf_counter() - asked >= MEMORY_SECONDS:
            asked, gib = perf_counter(), process.memory_info().rss / GIB
        return gib

    return gauge


def setup_of(config: RunConfig, task: Task) -> Setup:
    optimizer = config.optimizer
    return Setup(
        length=task.length,
        limits=layer_limits(config.model.model_dump(mode="json"), task.kind),
        optimizer=optimizer.name,
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
        recurrent=1.0 if optimizer.recurrent_lr is None else optimizer.recurrent_lr / optimizer.lr,
        grad_clip=optimizer.grad_clip,
        skips_bad_batches=config.train.on_bad_batch == "skip",
    )
