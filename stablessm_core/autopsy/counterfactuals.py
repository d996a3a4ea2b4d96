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
    bench: Bench, start: Checkpoint, last: Checkpoint, *, row: Row, kind: str, deadline: Deadline
) -> list[dict[str, Any]]:
    """One entry per change, as findings show it. start: the state before the trouble. last: the state before the fatal step.
    row: the replayed fatal step.

    The control has time of its own, because nothing follows from the others without it.
    """
    fatal = row.step
    until = min(max(fatal + STEPS_AFTER, start.step + 2 * (fatal - start.step)), bench.config.train.steps)
    tried = []
    for change in in_order(kind):
        begin = Start(bench, last if change.late else start, fatal)
        is_control = change.name == CONTROL
        tried.append(
            _tried(
                change,
                begin,
                fatal if is_control else until,
                deadline.extended(_control_seconds(begin)) if is_control else deadline,
            )
        )
    return tried


def compare_control(tried: Sequence[dict[str, Any]], row: Row, rows: Sequence[Row]) -> str | None:
    """Mark each trial as `comparable` or not. Returns the reason, as a sentence, if they are not. rows: the replayed steps.

    Trials are comparable if the control repeated the run: it ended as the run did, with the same losses. A trial that dies
    earlier than the run, although its change is harmless, shows that trials differ from the run by more than their change.
    """
    why = _difference(tried, row, rows)
    for entry in tried:
        entry["comparable"] = why is None
    return why


def _difference(tried: Sequence[dict[str, Any]], row: Row, rows: Sequence[Row]) -> str | None:
    control = next((entry for entry in tried if entry["change"] == CONTROL), None)
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
    for entry in tried:
        if entry["lives"] is False and CHANGES[entry["change"]].harmless and entry["step"] < row.step:
            return (
                f"The trials are not comparable: the run died earlier, at step {entry['step']:,}, "
                f"{CHANGES[entry['change']].how}, a change that can only do good."
            )
    return None


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
