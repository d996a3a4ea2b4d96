"""The training loop: one run from its configuration to its outcome, straight down the page.

Steps are numbered 1..N. In step s the row recorded belongs to the forward and backward pass of s, before its update.
A step with a non-finite batch, loss, weight, state or gradient is *fatal*, unless `on_nonfinite` is "continue"; `on_warning` may
act at a critical alert before that. The host learns of either from the recorder, at most one flush later, or before the next
evaluation or checkpoint; steps trained in between are not recorded and change nothing that lasts, so what is stored of a run
never depends on when a flush happened to be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from stablessm_core.config import RunConfig
from stablessm_core.nonfinite import as_text
from stablessm_core.tasks.feed import Feed
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import STOPPED_EARLY
from stablessm_core.telemetry.recorder import Sink
from stablessm_core.training.checkpoint import load_checkpoint
from stablessm_core.training.environment import describe, pick_device
from stablessm_core.training.evaluation import evaluate
from stablessm_core.training.execution import prepare
from stablessm_core.training.recovery import heed, lower_rates, roll_back
from stablessm_core.training.run import Run, begin_fork, build, load, resume_from, save, train_step
from stablessm_core.training.step import TrainingStep

Status = Literal["finished", "diverged", "cancelled", "drained"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `step`: steps done; of a diverged run its fatal step, where `divergence` says what became non-finite.

    `reason`: of a run that a warning ended, which one.
    """

    status: Status
    step: int
    result: dict[str, Any]
    divergence: dict[str, Any] | None = None
    reason: str = ""


def train(
    config: RunConfig,
    *,
    sink: Sink,
    data_root: Path,
    checkpoint_dir: Path,
    resume: Path | None = None,
    fork: Path | None = None,
    should_stop: Callable[[], str | None] = lambda: None,
    on_ready: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Train to the end, to divergence, or until `should_stop` says "cancel" or "drain" (asked at each step).

    resume: a checkpoint of this configuration; the run goes on after it with the very bits it would have had. A checkpoint is
    also left on cancel and drain. fork: without `resume`, a checkpoint of another run to begin from, whose settings may differ
    (see `training.forking`); the run's own first checkpoint is made of it. on_ready: called once, before the first step, with
    the environment of the run.

    Raises ForkError for a fork that is not possible, CheckpointError for a checkpoint that is damaged or of another run,
    ValueError for a device or data set that is not there, OSError when a checkpoint cannot be written. Trouble in `sink` is
    counted in the result, never raised.
    """
    device = pick_device(config.train.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        checkpoint = load(resume, config) if resume is not None else None
        run = build(config, device, sink, data_root, checkpoint_dir, checkpoint)
        try:
            if checkpoint is not None:
                resume_from(run, checkpoint, resume)
            elif fork is not None:
                begin_fork(run, load_checkpoint(fork))
            batches = Feed(run.task, config.train.batch_size, config.train.seed, device)
            step = _prepare_step(run, batches, on_ready)
            goes_back = config.train.on_nonfinite == "rollback" or config.train.on_warning in ("rollback", "lower_lr")
            if run.progress.last is None and (goes_back or fork is not None):
                save(run)
            run.recorder.heed = heed(run)
            _train_steps(run, step, batches, should_stop)
        finally:
            complete = run.recorder.close()
        return _outcome(run, complete=complete)


def _prepare_step(run: Run, batches: Feed, on_ready: Callable[[dict[str, Any]], None] | None) -> TrainingStep:
    """The training step, launched in the fastest way that works here. Tells `on_ready` the environment of the run."""
    config = run.config
    step = TrainingStep(
        run.model,
        run.task,
        run.optimizer,
        run.probe,
        run.recorder.ring,
        batch=batches(run.progress.step + 1),
        precision=config.train.precision,
        grad_clip=config.optimizer.grad_clip,
    )
    ahead, loop = config.train.steps - run.progress.step, config.train.scan_backend == "reference"
    execution = prepare(step, config.train.execution, steps=ahead, loop=loop)
    if on_ready is not None:
        facts = describe(config, run.task, run.model, run.optimizer, run.device, execution, run.numerics)
        on_ready(facts | {"fork": run.fork} if run.fork else facts)
    return step


def _train_steps(run: Run, training: TrainingStep, batches: Feed, should_stop: Callable[[], str | None]) -> None:
    """The loop: train, then evaluate, save and roll back where it is time to. Ends with the last step, `fatal` or `stopped`."""
    settings, progress, recorder = run.config.train, run.progress, run.recorder
    steps = settings.steps
    if progress.step == steps:  # resumed after its last step
        run.results = evaluate(run.model, run.task, run.config, run.device)

    while progress.step < steps and run.stopped is None:
        progress.step += 1
        step = progress.step
        train_step(run, training, batches, step)
        recorder.recorded(step)

        run.stopped = should_stop()
        evaluating = step == steps or _is_due(step, settings.eval_every)
        saving = step == steps or _is_due(step, settings.checkpoint_every) or run.stopped is not None
        if (evaluating or saving) and not recorder.drain():  # waits: a fatal step is known from here on
            log.warning("the telemetry sink did not take the steps up to %d in time", step)
        if recorder.warned is not None:
            if settings.on_warning == "stop":
                run.warned = warned = recorder.warned
                stopped = STOPPED_EARLY.alert(step=warned.step, message=_why_stopped(warned), series=warned.series)
                recorder.alert(warned.step, stopped)
                break
            if settings.on_warning == "rollback":
                roll_back(run, recorder.warned)
            else:
                lower_rates(run, recorder.warned, training, batches, should_stop)
            continue
        if recorder.fatal is not None:
            if settings.on_nonfinite == "rollback" and progress.rollbacks < settings.max_rollbacks:
                roll_back(run, recorder.fatal)
                continue
            run.fatal = recorder.fatal
            break
        if evaluating:
            with recorder.pause():
                run.results = evaluate(run.model, run.task, run.config, run.device)
                measured = run.probe.measured()
            recorder.log(step, names.EVAL, {name: value for name, value in run.results.items() if value is not None})
            for group, numbers in measured.items():
                recorder.log(step, group, numbers)
        if saving:
            save(run)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _outcome(run: Run, *, complete: bool) -> Outcome:
    progress, recorder, results, fatal = run.progress, run.recorder, run.results, run.fatal
    result = {
        "train_loss": recorder.latest.get(names.TRAIN_LOSS),
        "eval_loss": results.get(names.EVAL_LOSS),
        "eval_accuracy": results.get(names.EVAL_ACCURACY),
        "seconds": round(progress.elapsed(), 3),
        "tokens_per_second": recorder.latest.get(names.TRAIN_RATE),
        "rollbacks": progress.rollbacks,
        "telemetry_dropped": recorder.dropped,
        "telemetry_errors": recorder.errors + (0 if complete else 1),
    }
    if run.warned is not None:
        return Outcome("cancelled", run.warned.step, result, reason=_why_stopped(run.warned))
    if fatal is None:
        return Outcome(_status(run), progress.step, result)
    where = {"step": fatal.step, "layer": fatal.layer, "eigenvalue": fatal.eigenvalue, "tensor": fatal.tensor}
    return Outcome("diverged", fatal.step, result, where | {"value": None if fatal.value is None else as_text(fatal.value)})


def _why_stopped(warning: Alert) -> str:
    return f"stopped by train.on_warning at step {warning.step}, all numbers finite: {warning.message}"


def _status(run: Run) -> Status:
    if run.progress.step == run.config.train.steps:
        return "finished"  # also when it was asked to stop during its last step
    return "cancelled" if run.stopped == "cancel" else "drained"
