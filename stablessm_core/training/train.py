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
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import psutil
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from stablessm_core.config import RunConfig
from stablessm_core.model import build_model
from stablessm_core.nonfinite import as_text
from stablessm_core.stability import budget_limit
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.feed import Feed
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Alert, Detectors, Setup
from stablessm_core.telemetry.detectors.raised_elsewhere import LR_LOWERED, ROLLED_BACK, STOPPED_EARLY
from stablessm_core.telemetry.monitor import LayerForm, Monitor
from stablessm_core.telemetry.probe import Probe
from stablessm_core.telemetry.recorder import Heed, Recorder, Sink
from stablessm_core.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    restore_training,
    save_checkpoint,
    training_tensors,
)
from stablessm_core.training.environment import describe, pick_device
from stablessm_core.training.execution import prepare
from stablessm_core.training.forking import forked
from stablessm_core.training.optimizer import Scheduled, build_optimizer, lr_factor
from stablessm_core.training.step import TrainingStep, autocast

Status = Literal["finished", "diverged", "cancelled", "drained"]
GIB = 2.0**30
EVALUATION_NUMBERS = 1 << 22  # without gradients, batches may be larger than the training's: numbers per activation

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


@dataclass
class _Progress:
    # what a run needs to go on, beside its tensors; saved with each checkpoint
    step: int = 0
    lr_scale: float = 1.0
    rollbacks: int = 0  # and lowerings
    lowered: list[int] = field(default_factory=list)  # steps from which on the rates are lower once more
    seconds: float = 0.0  # of training, earlier attempts included
    started: float = field(default_factory=perf_counter)
    last: Path | None = None  # newest checkpoint

    def lr_scale_at(self, step: int, factor: float) -> float:
        return self.lr_scale * factor ** sum(first <= step for first in self.lowered)

    def elapsed(self) -> float:
        return self.seconds + perf_counter() - self.started


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
        checkpoint = _load(resume, config) if resume is not None else None
        run = _build(config, device, sink, data_root, checkpoint_dir)
        try:
            if checkpoint is not None:
                _resume(run, checkpoint, resume)
            elif fork is not None:
                _begin_fork(run, load_checkpoint(fork))
            batches = Feed(run.task, config.train.batch_size, config.train.seed, device)
            step = _prepare_step(run, batches, on_ready)
            goes_back = config.train.on_nonfinite == "rollback" or config.train.on_warning in ("rollback", "lower_lr")
            if run.progress.last is None and (goes_back or fork is not None):
                _save(run)
            run.recorder.heed = _heed(run)
            _train_steps(run, step, batches, should_stop)
        finally:
            complete = run.recorder.close()
        return _outcome(run, complete=complete)


@dataclass
class _Run:
    """What one run is trained with, and how far it has come. `fatal`, `warned` and `stopped` say why it ended early."""

    config: RunConfig
    device: torch.device
    task: Task
    model: nn.Module
    optimizer: Scheduled
    probe: Probe
    recorder: Recorder
    checkpoint_dir: Path
    progress: _Progress = field(default_factory=_Progress)
    results: dict[str, float | None] = field(default_factory=dict)  # of the last evaluation
    fatal: Alert | None = None
    warned: Alert | None = None
    stopped: str | None = None  # what `should_stop` said: "cancel" or "drain"
    fork: dict[str, Any] | None = None  # what it began with, where that was another run's checkpoint


def _build(config: RunConfig, device: torch.device, sink: Sink, data_root: Path, checkpoint_dir: Path) -> _Run:
    task = get_task(config.task, data_root)
    model = build_model(config, task).to(device)
    optimizer = build_optimizer(model, config.optimizer)
    torch.manual_seed(config.train.seed)  # dropout
    probe = Probe(model, all_eigenvalues=config.telemetry.all_eigenvalues)
    recorder = make_recorder(config, task, probe, sink, device)
    return _Run(config, device, task, model, optimizer, probe, recorder, checkpoint_dir)


def _resume(run: _Run, checkpoint: Checkpoint, path: Path | None) -> None:
    run.recorder.restore_levels(restore_training(checkpoint, run.model, run.optimizer))
    run.progress = _Progress(checkpoint.step, **checkpoint.state["progress"], last=path)
    if (loss := checkpoint.state.get("train_loss")) is not None:  # of its step: there may be no further one
        run.recorder.latest[names.TRAIN_LOSS] = float(loss)


def _begin_fork(run: _Run, checkpoint: Checkpoint) -> None:
    checkpoint, run.fork = forked(checkpoint, run.config, run.model)
    run.recorder.restore_levels(restore_training(checkpoint, run.model, run.optimizer))
    run.progress = _Progress(checkpoint.step, **checkpoint.state["progress"])


def _prepare_step(run: _Run, batches: Feed, on_ready: Callable[[dict[str, Any]], None] | None) -> TrainingStep:
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
        facts = describe(config, run.task, run.model, run.optimizer, run.device, execution)
        on_ready(facts | {"fork": run.fork} if run.fork else facts)
    return step


def _train_steps(run: _Run, training: TrainingStep, batches: Feed, should_stop: Callable[[], str | None]) -> None:
    """The loop: train, then evaluate, save and roll back where it is time to. Ends with the last step, `fatal` or `stopped`."""
    settings, progress, recorder = run.config.train, run.progress, run.recorder
    steps = settings.steps
    if progress.step == steps:  # resumed after its last step
        run.results = evaluate(run.model, run.task, run.config, run.device)

    while progress.step < steps and run.stopped is None:
        progress.step += 1
        step = progress.step
        _train_step(run, training, batches, step)
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
                _roll_back(run, recorder.warned)
            else:
                _lower_rates(run, recorder.warned, training, batches, should_stop)
            continue
        if recorder.fatal is not None:
            if settings.on_nonfinite == "rollback" and progress.rollbacks < settings.max_rollbacks:
                _roll_back(run, recorder.fatal)
                continue
            run.fatal = recorder.fatal
            break
        if evaluating:
            with recorder.pause():
                run.results = evaluate(run.model, run.task, run.config, run.device)
            recorder.log(step, names.EVAL, {name: value for name, value in run.results.items() if value is not None})
        if saving:
            _save(run)


def _train_step(run: _Run, training: TrainingStep, batches: Feed, step: int) -> None:
    scale = run.progress.lr_scale_at(step, run.config.train.rollback_lr_factor)
    training.feed(*batches(step), scale * lr_factor(run.config.optimizer, step, run.config.train.steps))
    training.run()


def _heed(run: _Run) -> Heed | None:
    """Whether the run still acts at a warning, and whether the warning's own step is to be trained in another way."""
    settings = run.config.train
    if settings.on_warning == "stop":
        return "at"
    if settings.on_warning == "continue" or run.progress.rollbacks >= settings.max_rollbacks:
        return None
    return "before" if settings.on_warning == "lower_lr" else "at"


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, config: RunConfig, device: torch.device) -> dict[str, float | None]:
    """Mean loss and accuracy (None where the task has none) over the task's evaluation batches, weighted by their size.

    Which examples, and how many at most, is the task's choice. Random states are left as they were. Waits for the device once.
    """
    count = 0
    loss = torch.zeros((), dtype=torch.float64, device=device)
    accuracy: Tensor | None = torch.zeros((), dtype=torch.float64, device=device)
    model.eval()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        widest = max(config.model.d_model, config.model.d_state)
        batch_size = max(config.train.batch_size, EVALUATION_NUMBERS // (task.length * widest))
        for x, y in task.evaluation_batches(batch_size, device):
            with autocast(device, config.train.precision):
                output = model(x)
                loss += task.loss(output, y) * len(x)
            right = task.accuracy(output, y)
            accuracy = None if right is None or accuracy is None else accuracy + right * len(x)
            count += len(x)
    model.train()
    return {names.EVAL_LOSS: float(loss) / count, names.EVAL_ACCURACY: None if accuracy is None else float(accuracy) / count}


def make_recorder(config: RunConfig, task: Task, probe: Probe, sink: Sink, device: torch.device) -> Recorder:
    tokens, process = task.tokens_per_batch(config.train.batch_size), psutil.Process()  # type: ignore[no-untyped-call]
    gauges: dict[str, Callable[[int, float], float]] = {
        names.TRAIN_RATE: lambda rows, seconds: rows * tokens / seconds,
        names.STEP_TIME: lambda rows, seconds: seconds / rows,
        names.HOST_MEMORY: lambda _rows, _seconds: process.memory_info().rss / GIB,
    }
    if device.type == "cuda":
        gauges[names.GPU_MEMORY] = lambda _rows, _seconds: torch.cuda.max_memory_allocated(device) / GIB
    evaluated = [names.EVAL_LOSS] + ([names.EVAL_ACCURACY] if task.kind != "regression" else [])
    catalogue = probe.catalogue + [names.scalar(n) for n in gauges] + [names.scalar(n, names.EVAL) for n in evaluated]
    for layer in probe.layers:
        every = config.telemetry.every == 1 and not layer.wide
        form = layer.watched.form
        catalogue += names.following_catalogue(layer.index, layer.width, form, length=task.length, every_eigenvalue=every)
    layers = [LayerForm(layer.index, layer.path, layer.watched.form, layer.wide) for layer in probe.layers]
    detectors = Detectors(probe.parameter_names, _setup(config, task), **config.alerts.model_dump())
    return Recorder(
        catalogue,
        sink,
        layout=probe.layout,
        device=device,
        every=config.telemetry.every,
        monitor=Monitor(layers, detectors),
        gauges=gauges,
        halt=config.train.on_nonfinite != "continue",
    )


def _setup(config: RunConfig, task: Task) -> Setup:
    optimizer = config.optimizer
    return Setup(
        length=task.length,
        limit=budget_limit(config.model.activation),
        optimizer=optimizer.name,
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
        recurrent=1.0 if optimizer.recurrent_lr is None else optimizer.recurrent_lr / optimizer.lr,
        grad_clip=optimizer.grad_clip,
    )


def _save(run: _Run) -> None:
    progress, recorder = run.progress, run.recorder
    with recorder.pause():
        state = {
            "config": run.config.model_dump(mode="json"),
            "progress": {"lr_scale": progress.lr_scale, "rollbacks": progress.rollbacks, "seconds": progress.elapsed()}
            | ({"lowered": progress.lowered} if progress.lowered else {}),
            "torch": torch.__version__,
        }
        if (loss := recorder.latest.get(names.TRAIN_LOSS)) is not None:
            state["train_loss"] = repr(loss)  # as text, for it may be no JSON number
        tensors, needed = training_tensors(run.model, run.optimizer, recorder.levels()), recorder.checkpoints_needed()
        progress.last, sha256 = save_checkpoint(run.checkpoint_dir, progress.step, tensors, state, needed=needed)
    recorder.checkpoint(progress.step, progress.last, sha256)


def _load(path: Path, config: RunConfig) -> Checkpoint:
    checkpoint = load_checkpoint(path)
    given = config.model_dump(mode="json")
    for section in ("task", "model", "optimizer"):
        saved = _with_defaults(checkpoint.state["config"][section], type(getattr(config, section)))
        if saved != given[section]:
            different = sorted(
                f"{section}.{k}" for k in saved.keys() | given[section].keys() if saved.get(k) != given[section].get(k)
            )
            raise CheckpointError(f"checkpoint {path} belongs to a run with another {', '.join(different)}")
    if checkpoint.step > config.train.steps:
        raise CheckpointError(f"checkpoint {path} is of step {checkpoint.step}; the run has only {config.train.steps} steps")
    return checkpoint


def _with_defaults(saved: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    # an older version saved it without the fields that are newer; what this version cannot read differs anyway
    try:
        return section.model_validate(saved).model_dump(mode="json")
    except ValidationError:
        return saved


def _roll_back(run: _Run, alert: Alert) -> None:
    """Go on from the newest checkpoint with a lower learning rate; what was recorded after it is deleted."""
    progress, factor = run.progress, run.config.train.rollback_lr_factor
    assert progress.last is not None
    checkpoint = load_checkpoint(progress.last)
    levels = restore_training(checkpoint, run.model, run.optimizer)
    kept = [step for step in progress.lowered if step <= checkpoint.step]
    progress.lr_scale *= factor ** (1 + len(progress.lowered) - len(kept))  # a lowering that is taken back counts all the same
    progress.lowered, progress.step = kept, checkpoint.step
    progress.rollbacks += 1
    scale = progress.lr_scale_at(progress.step, factor)
    reason = (
        f"step {alert.step}: {alert.message}; back to step {checkpoint.step} with learning rates x {scale:g} "
        f"(rollback {progress.rollbacks} of {run.config.train.max_rollbacks})"
    )
    run.recorder.heed = _heed(run)
    run.recorder.truncate(checkpoint.step, reason, levels)
    # before the checkpoint: who resumes from that one rolls back no more, and would not tell
    run.recorder.alert(checkpoint.step, ROLLED_BACK.alert(step=alert.step, message=reason, series=names.TRAIN_LOSS))
    _save(run)  # the same step again, now with the lower rate: a run resumed from here does not repeat the divergence


def _lower_rates(run: _Run, alert: Alert, training: TrainingStep, batches: Feed, should_stop: Callable[[], str | None]) -> None:
    """Lower the learning rate from the warning's step on, however many steps later the host learns of it.

    The steps from the newest checkpoint to that one are trained again, with the bits they had; their rows are there already.
    """
    progress, recorder, settings = run.progress, run.recorder, run.config.train
    assert progress.last is not None
    checkpoint = load_checkpoint(progress.last)
    recorder.heed = None
    recorder.go_on()
    with recorder.pause():
        restore_training(checkpoint, run.model, run.optimizer)
        for step in range(checkpoint.step + 1, alert.step):
            _train_step(run, training, batches, step)
            recorder.skipped()
            should_stop()  # the run moves; the answer comes again with the next step
    progress.step = alert.step - 1
    progress.rollbacks += 1
    progress.lowered.append(alert.step)
    recorder.heed = _heed(run)
    scale = progress.lr_scale_at(alert.step, settings.rollback_lr_factor)
    reason = (
        f"{alert.message}; learning rates x {scale:g} from step {alert.step} on "
        f"(lowering {progress.rollbacks} of {settings.max_rollbacks})"
    )
    recorder.alert(progress.step, LR_LOWERED.alert(step=alert.step, message=reason, series=names.LR, value=scale))


def _outcome(run: _Run, *, complete: bool) -> Outcome:
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


def _status(run: _Run) -> Status:
    if run.progress.step == run.config.train.steps:
        return "finished"  # also when it was asked to stop during its last step
    return "cancelled" if run.stopped == "cancel" else "drained"
