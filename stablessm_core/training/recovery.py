"""Going on after a warning or a lost number: back to a checkpoint, or on with lower learning rates."""

from __future__ import annotations

from collections.abc import Callable

from stablessm_core.tasks.feed import Feed
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import LR_LOWERED, ROLLED_BACK
from stablessm_core.telemetry.recorder import Heed
from stablessm_core.training.checkpoint import load_checkpoint, restore_training
from stablessm_core.training.run import Run, save, train_step
from stablessm_core.training.step import TrainingStep


def heed(run: Run) -> Heed | None:
    """Whether the run still acts at a warning, and whether the warning's own step is to be trained in another way."""
    settings = run.config.train
    if settings.on_warning == "stop":
        return "at"
    if settings.on_warning == "continue" or run.progress.rollbacks >= settings.max_rollbacks:
        return None
    return "before" if settings.on_warning == "lower_lr" else "at"


def roll_back(run: Run, alert: Alert) -> None:
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
    run.recorder.heed = heed(run)
    run.recorder.truncate(checkpoint.step, reason, levels)
    # before the checkpoint: who resumes from that one rolls back no more, and would not tell
    run.recorder.alert(checkpoint.step, ROLLED_BACK.alert(step=alert.step, message=reason, series=names.TRAIN_LOSS))
    save(run)  # the same step again, now with the lower rate: a run resumed from here does not repeat the divergence


def lower_rates(run: Run, alert: Alert, training: TrainingStep, batches: Feed, should_stop: Callable[[], str | None]) -> None:
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
            train_step(run, training, batches, step)
            recorder.skipped()
            should_stop()  # the run moves; the answer comes again with the next step
    progress.step = alert.step - 1
    progress.rollbacks += 1
    progress.lowered.append(alert.step)
    recorder.heed = heed(run)
    scale = progress.lr_scale_at(alert.step, settings.rollback_lr_factor)
    reason = (
        f"{alert.message}; learning rates x {scale:g} from step {alert.step} on "
        f"(lowering {progress.rollbacks} of {settings.max_rollbacks})"
    )
    recorder.alert(progress.step, LR_LOWERED.alert(step=alert.step, message=reason, series=names.LR, value=scale))
