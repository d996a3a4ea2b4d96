"""The training loop: one run from its configuration to its outcome, from top to bottom.

Steps are numbered 1..N. The row of step s describes the forward and backward pass of step s, before the update. A step with a
non-finite batch, loss, weight, state or gradient is *fatal*, unless `on_nonfinite` is "continue". A non-finite batch is not fatal
if `on_bad_batch` is "skip". `on_warning` may act earlier, at a critical alert. The recorder reports fatal steps and critical
alerts to the host at most one flush later, and always before the next evaluation or checkpoint. Steps that were trained in the
meantime are not recorded and have no lasting effect. So the stored run never depends on the time of a flush.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.feed import Feed
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import STOPPED_EARLY
from stablessm_core.telemetry.nonfinite import as_text
from stablessm_core.telemetry.sink import ResumableSink
from stablessm_core.training.checkpoint import load_checkpoint
from stablessm_core.training.environment import environment_json, pick_device
from stablessm_core.training.evaluation import best_results, evaluate, evaluate_and_log
from stablessm_core.training.execution import prepare
from stablessm_core.training.numerics import saved_by_default
from stablessm_core.training.recovery import can_roll_back, lower_rates, roll_back, stop_at_warning, why_bad_batch_ends
from stablessm_core.training.run import Run, build_run
from stablessm_core.training.run_checkpoint import begin_fork, load_own_checkpoint, save
from stablessm_core.training.run_checkpoint import resume as resume_run
from stablessm_core.training.step import TrainingStep, train_step

Status = Literal["finished", "diverged", "cancelled", "drained"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    step: the last completed step; for a diverged run, the fatal step. divergence: what became non-finite. reason: the warning
    or the bad batch that ended the run, otherwise empty.
    """

    status: Status
    step: int
    result: dict[str, Any]
    divergence: dict[str, Any] | None = None
    reason: str = ""


def train(
    config: RunConfig,
    *,
    sink: ResumableSink,
    data_root: Path,
    checkpoint_dir: Path,
    resume: Path | None = None,
    fork: Path | None = None,
    should_stop: Callable[[], str | None] = lambda: None,
    on_ready: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Train until the last step, until divergence, or until `should_stop`, called at each step, returns "cancel" or "drain".

    resume: a checkpoint of this configuration. The run continues from it with the same bits as an uninterrupted run. A
    cancelled or drained run leaves a checkpoint. fork: a checkpoint of another run to start from, if `resume` is None. The
    settings of the other run may differ (see `training.forking`). The run's first checkpoint is made from this checkpoint.
    on_ready: called once, before the first step, with the environment of the run.

    Raises ForkError for a fork that is not possible, CheckpointError for a checkpoint that is damaged or belongs to another
    run, ValueError for a missing device or data set, OSError if a checkpoint cannot be written. Errors of `sink` are counted in
    the result, never raised.
    """
    device = pick_device(config.train.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        checkpoint = None if resume is None else load_own_checkpoint(resume, config)
        numerics = None if checkpoint is None else checkpoint.state.get("numerics", saved_by_default(device))
        run = build_run(config, device, sink, data_root, checkpoint_dir, numerics)
        try:
            if checkpoint is not None:
                resume_run(run, checkpoint, resume)
            elif fork is not None:
                begin_fork(run, load_checkpoint(fork))
            batches = Feed(run.task, config.train.batch_size, config.train.seed, device)
            training = _prepare_step(run, batches, on_ready)
            rolls_back = config.train.on_nonfinite == "rollback" or config.train.on_warning in ("rollback", "lower_lr")
            if run.progress.last is None and (rolls_back or fork is not None):
                save(run)
            run.recorder.stop_at_warning = stop_at_warning(run)
            _train_steps(run, training, batches, should_stop)
        finally:
            complete = run.recorder.close()
        return _outcome(run, complete=complete)


def _prepare_step(run: Run, batches: Feed, on_ready: Callable[[dict[str, Any]], None] | None) -> TrainingStep:
    """The training step, launched in the fastest way that this device supports. Passes the environment of the run to
    `on_ready`."""
    config = run.config
    training = TrainingStep(
        run.model,
        run.task,
        run.optimizer,
        run.probe,
        run.recorder.ring,
        batch=batches(run.progress.step + 1),
        precision=config.train.precision,
        grad_clip=config.optimizer.grad_clip,
        skip_bad_batches=config.train.on_bad_batch == "skip",
    )
    steps_ahead, loop = config.train.steps - run.progress.step, config.train.scan_backend == "reference"
    execution = prepare(training, config.train.execution, steps=steps_ahead, loop=loop)
    if on_ready is not None:
        on_ready(environment_json(run, execution))
    return training


def _train_steps(run: Run, training: TrainingStep, batches: Feed, should_stop: Callable[[], str | None]) -> None:
    """Train until the last step, until `should_stop` returns a reason, or until a fatal step or a warning ends the run."""
    settings, progress, recorder = run.config.train, run.progress, run.recorder
    if progress.step == settings.steps:  # the run was resumed after its last step
        run.results = evaluate(run)

    while progress.step < settings.steps and run.stopped is None:
        progress.step += 1
        step = progress.step
        train_step(training, batches, step, run.lr_multiplier(step))  # forward, backward, row, clipping, update
        recorder.count_row(step)
        run.stopped = should_stop()

        is_last = step == settings.steps
        evaluation_due = is_last or _is_due(step, settings.eval_every)
        checkpoint_due = is_last or _is_due(step, settings.checkpoint_every) or run.stopped is not None
        # draining waits for the flush thread, so a fatal step is known afterwards
        if (evaluation_due or checkpoint_due) and not recorder.drain():
            log.warning("the telemetry sink did not take the steps up to %d in time", step)

        if (warning := recorder.warned) is not None:
            if settings.on_warning == "stop":
                _stop_at(run, warning)
                break
            if settings.on_warning == "rollback":
                roll_back(run, warning)
            else:
                lower_rates(run, warning, training, batches, should_stop)
            continue
        if (fatal := recorder.fatal) is not None:
            if can_roll_back(run, fatal):
                roll_back(run, fatal)
                continue
            run.fatal = fatal
            break

        if evaluation_due:
            evaluate_and_log(run, step)
        if checkpoint_due:
            save(run)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _stop_at(run: Run, warning: Alert) -> None:
    run.warned = warning
    alert = STOPPED_EARLY.alert(step=warning.step, message=_why_stopped(warning), series=warning.series)
    run.recorder.alert(warning.step, alert)


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
        **best_results(run),
    }
    if run.warned is not None:
        return Outcome("cancelled", run.warned.step, result, reason=_why_stopped(run.warned))
    if fatal is None:
        return Outcome(_status(run), progress.step, result)
    where = {"step": fatal.step, "layer": fatal.layer, "eigenvalue": fatal.eigenvalue, "tensor": fatal.tensor}
    divergence = where | {"value": None if fatal.value is None else as_text(fatal.value)}
    return Outcome("diverged", fatal.step, result, divergence, why_bad_batch_ends(run, fatal))


def _why_stopped(warning: Alert) -> str:
    return f"stopped by train.on_warning at step {warning.step}, all numbers finite: {warning.message}"


def _status(run: Run) -> Status:
    if run.progress.step == run.config.train.steps:
        return "finished"  # also if `should_stop` returned a reason during the last step
    return "cancelled" if run.stopped == "cancel" else "drained"
