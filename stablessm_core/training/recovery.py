"""Continue a run after a warning or a non-finite value: from a checkpoint, or from the step of the warning with lower learning
rates."""

from __future__ import annotations

from collections.abc import Callable

from stablessm_core.tasks.feed import Feed
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.nonfinite import NONFINITE_BATCH
from stablessm_core.telemetry.detectors.raised_elsewhere import LR_LOWERED, ROLLED_BACK
from stablessm_core.training.checkpoint import load_checkpoint, restore_training
from stablessm_core.training.run import Run
from stablessm_core.training.run_checkpoint import save
from stablessm_core.training.step import TrainingStep, train_step
from stablessm_core.watch.flusher import StopAtWarning


def stop_at_warning(run: Run) -> StopAtWarning | None:
    """The recorder's setting `stop_at_warning`: None if the run ignores warnings or has no rollbacks left."""
    settings = run.config.train
    if settings.on_warning == "stop":
        return "keep_warning_row"
    if settings.on_warning == "continue" or run.progress.rollbacks >= settings.max_rollbacks:
        return None
    return "drop_warning_row" if settings.on_warning == "lower_lr" else "keep_warning_row"


def can_roll_back(run: Run, fatal: Alert) -> bool:
    """True if the run returns to a checkpoint after this fatal step. The same batch would return too, so a bad batch ends the
    run."""
    settings = run.config.train
    rolls_back = settings.on_nonfinite == "rollback" and run.progress.rollbacks < settings.max_rollbacks
    return rolls_back and fatal.kind != NONFINITE_BATCH


def why_bad_batch_ends(run: Run, fatal: Alert) -> str:
    """Why a bad batch ended the run. Empty if the run ended for another reason."""
    if fatal.kind != NONFINITE_BATCH:
        return ""
    again = "; a rollback would train the same batch again" if run.config.train.on_nonfinite == "rollback" else ""
    return f'{fatal.message}{again} (train.on_bad_batch "skip" leaves out such batches)'


def roll_back(run: Run, alert: Alert) -> None:
    """Continue from the newest checkpoint with a lower learning rate, and delete the rows recorded after this checkpoint."""
    progress, factor = run.progress, run.config.train.rollback_lr_factor
    assert progress.last is not None
    checkpoint = load_checkpoint(progress.last)
    levels = restore_training(checkpoint, run.model, run.optimizer)
    kept = [step for step in progress.lowered if step <= checkpoint.step]
    progress.lr_scale *= factor ** (1 + len(progress.lowered) - len(kept))  # keep reductions made after the checkpoint
    progress.lowered, progress.step = kept, checkpoint.step
    progress.nonfinite_evaluations = [step for step in progress.nonfinite_evaluations if step <= checkpoint.step]
    progress.bests = [best for best in progress.bests if best["step"] <= checkpoint.step]
    progress.rollbacks += 1
    scale = progress.lr_scale_at(progress.step, factor)
    reason = (
        f"step {alert.step}: {alert.message}; back to step {checkpoint.step} with learning rates x {scale:g} "
        f"(rollback {progress.rollbacks} of {run.config.train.max_rollbacks})"
    )
    run.recorder.stop_at_warning = stop_at_warning(run)
    run.recorder.truncate(checkpoint.step, reason, levels)
    # send the alert before the checkpoint is saved: a run resumed from that checkpoint does not roll back and would not send it
    run.recorder.alert(checkpoint.step, ROLLED_BACK.alert(step=alert.step, message=reason, series=names.TRAIN_LOSS))
    save(run)  # overwrite the checkpoint with the lower rate, so that a run resumed from it does not repeat the divergence


def lower_rates(run: Run, alert: Alert, training: TrainingStep, batches: Feed, should_stop: Callable[[], str | None]) -> None:
    """Lower the learning rate from the warning's step on, even if the host receives the warning many steps later.

    The steps between the newest checkpoint and the warning are trained again with the same bits. They are not recorded again,
    because their rows are already recorded.
    """
    progress, recorder, settings = run.progress, run.recorder, run.config.train
    assert progress.last is not None
    checkpoint = load_checkpoint(progress.last)
    recorder.stop_at_warning = None
    recorder.continue_after_warning()
    with recorder.pause():
        restore_training(checkpoint, run.model, run.optimizer)
        for step in range(checkpoint.step + 1, alert.step):
            train_step(training, batches, step, run.lr_multiplier(step))
            recorder.skip_row()
            should_stop()  # called only to report progress; the next ordinary step calls the function again and uses its result
    progress.step = alert.step - 1
    progress.rollbacks += 1
    progress.lowered.append(alert.step)
    recorder.stop_at_warning = stop_at_warning(run)
    scale = progress.lr_scale_at(alert.step, settings.rollback_lr_factor)
    reason = (
        f"{alert.message}; learning rates x {scale:g} from step {alert.step} on "
        f"(reduction {progress.rollbacks} of {settings.max_rollbacks})"
    )
    recorder.alert(progress.step, LR_LOWERED.alert(step=alert.step, message=reason, series=names.LR, value=scale))
