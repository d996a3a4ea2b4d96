"""What would have become of the run with one thing changed before the trouble: does it live, and if not, when does it die?

Every trial starts from a state of the run, usually from the one before the trouble, and trains with the run's own batches and
random numbers. `changes` holds the changes, one file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stablessm_core.autopsy.bench import Bench, Row
from stablessm_core.autopsy.change import Change, NotPossible
from stablessm_core.autopsy.changes import CHANGES, in_order
from stablessm_core.autopsy.deadline import Deadline, Refused
from stablessm_core.autopsy.start import Start
from stablessm_core.training.checkpoint import Checkpoint

STEPS_AFTER = 20  # a trial goes on for at least this many steps after the fatal step
POINTS = 200  # maximum number of steps whose loss is given
NO_TIME = "no time left"
CONTROL = "unchanged"
CONTROL_SECONDS = 5.0  # the control may take this much longer than the replay of the same steps


def try_changes(
    bench: Bench, start: Checkpoint, last: Checkpoint, *, row: Row, rows: Sequence[Row], kind: str, deadline: Deadline
) -> tuple[list[dict[str, Any]], str | None]:
    """One entry per change, as findings show it, and a sentence if the trials are not comparable with the run.

    start: the state before the trouble. last: the state before the fatal step. row: the replayed fatal step. rows: the replayed
    steps. The control has time of its own, because nothing follows from the others without it. If a trial dies earlier than the
    run although its change is harmless, the control is trained once more after the others: a task that keeps a state may have
    changed meanwhile.
    """
    fatal = row.step
    until = min(max(fatal + STEPS_AFTER, start.step + 2 * (fatal - start.step)), bench.config.train.steps)
    begin = Start(bench, start, fatal)

    def control() -> dict[str, Any]:
        return _tried(CHANGES[CONTROL], begin, fatal, deadline.extended(_control_seconds(begin)))

    tried = []
    for change in in_order(kind):
        if change.name == CONTROL:
            tried.append(control())
        else:
            tried.append(_tried(change, Start(bench, last, fatal) if change.late else begin, until, deadline))
    why = difference(next((one for one in tried if one["change"] == CONTROL), None), row, rows)
    if why is None and _is_doubtful(tried, fatal):
        why = difference(control(), row, rows)
    return [entry | {"comparable": why is None} for entry in tried], why


def difference(control: dict[str, Any] | None, row: Row, rows: Sequence[Row]) -> str | None:
    """How the control differs from the run, as a sentence; None if it repeated the run: the same end, and the same losses."""
    if control is None or control["lives"] is None:
        return f"The trials are not comparable: the unchanged control was not finished ({(control or {}).get('reason')})."
    if (control["lives"], control["step"]) != (row.finite, row.step):
        fate = f"lived to step {control['step']:,}" if control["lives"] else f"died at step {control['step']:,}"
        return f"The trials are not comparable: the unchanged control did not repeat the run, it {fate}."
    replayed = {one.step: float(one.loss) for one in rows}
    for step, loss in zip(control["steps"], control["loss"], strict=True):
        if step in replayed and not _same(replayed[step], loss):
            return (
                f"The trials are not comparable: the unchanged control did not repeat the run, its loss at step {step:,} is "
                f"{loss:.6g} instead of {replayed[step]:.6g}."
            )
    return None


def _is_doubtful(tried: Sequence[dict[str, Any]], fatal: int) -> bool:
    """Whether a trial died earlier than the run although its change should not do harm."""
    return any(one["lives"] is False and CHANGES[one["change"]].harmless and one["step"] < fatal for one in tried)


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


def _control_seconds(begin: Start) -> float:
    """The time that the control needs at most."""
    return CONTROL_SECONDS + 2 * begin.bench.seconds_per_step * (begin.fatal - begin.state.step)


def _tried(change: Change, begin: Start, until: int, deadline: Deadline) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "change": change.name, "settings": {}, "from_step": begin.state.step, "lives": None, "step": begin.state.step,
        "until": until, "reason": None, "steps": [], "loss": [],
    }  # fmt: skip
    if deadline.passed():
        return entry | {"reason": NO_TIME}
    try:
        trial, entry["settings"] = change.make(begin)
        return entry | _trained(trial, until, deadline)
    except NotPossible as error:
        return entry | {"reason": str(error)}
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - one trial that fails, for example for lack of memory, must not cost the others
        return entry | {"reason": f"it failed: {type(error).__name__}: {error}"}
    finally:
        begin.bench.change_rates(1.0)


def _trained(trial: Bench, until: int, deadline: Deadline) -> dict[str, Any]:
    """Train the trial until it dies or lives to `until`."""
    steps: list[int] = []
    losses: list[float] = []
    lives: bool | None = None
    reason = None
    while lives is None:
        if trial.progress.step >= until:
            lives = True
            break
        if deadline.passed():
            reason = NO_TIME
            break
        for row in trial.train(until):
            steps.append(row.step)
            losses.append(float(row.loss))
            if not row.finite:
                lives = False
                break
    every = -(-len(steps) // POINTS) or 1
    shown = sorted({*range(0, len(steps), every), len(steps) - 1} - {-1})[-POINTS:]
    return {
        "lives": lives,
        "step": steps[-1] if steps else trial.progress.step,
        "until": until,
        "reason": reason,
        "steps": [steps[i] for i in shown],
        "loss": [losses[i] for i in shown],
    }
