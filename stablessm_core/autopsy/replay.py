"""Trains a run again from a good state up to a step, and compares every recorded row bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from stablessm_core.autopsy.bench import Bench, Row
from stablessm_core.autopsy.deadline import Deadline, Refused
from stablessm_core.autopsy.request import AutopsyRequest, SavedState
from stablessm_core.spec.forking import ForkError
from stablessm_core.training.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from stablessm_core.training.forking import forked
from stablessm_core.training.run import Progress

JUDGED_AFTER = 1.0  # seconds of training after which the remaining time is judged
KEPT_ROWS = 256
PATIENCE = 0.5  # share of the remaining time that the replay may take


class BitsDiffer(Refused):
    """A replayed row differs from the recorded row."""


class _TooSlow(Exception):
    pass


@dataclass
class Replay:
    """A finished replay. from_step: the good state that it began with. row: the measured step. kept: states of the run by step,
    among them the state before the measured step, and the states before the trouble, before the step that shows it and one step
    before, unless the replay began later. compared: the number of rows compared. notes: checkpoints that could not be used. rows:
    the last KEPT_ROWS trained steps.
    """

    from_step: int
    row: Row
    kept: dict[int, Checkpoint]
    compared: int
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def before(self) -> Checkpoint:
        """The state before the measured step."""
        return self.kept[self.row.step - 1]


def replay(bench: Bench, request: AutopsyRequest, deadline: Deadline) -> Replay:
    """Train the run again up to the requested step, from the newest state before the trouble.

    If that would take too long, the newest state before the requested step is used instead. Raises BitsDiffer, and Refused if
    there is no time left, no recorded row to compare with, or no state to begin with.
    """
    trouble = request.step if request.trouble is None else min(request.trouble.step, request.step)
    shown = request.step if request.trouble is None else min(request.trouble.first_shown, request.step)
    first = min(trouble - 1, max(0, shown - 2))
    wanted = {trouble - 1, shown - 2, shown - 1, request.step - 2, request.step - 1}
    notes: list[str] = []
    for last, patient in ((first, trouble == request.step), (request.step - 1, True)):
        start = _start(bench, request, last, notes)
        try:
            return _replayed(bench, request, start, wanted | {start}, deadline, notes, patient=patient)
        except _TooSlow:
            notes.append("The state before the trouble is too far back for the time that is left.")
    raise AssertionError("the second attempt is patient")


def _replayed(
    bench: Bench, request: AutopsyRequest, start: int, wanted: set[int], deadline: Deadline, notes: list[str], *, patient: bool
) -> Replay:
    kept: dict[int, Checkpoint] = {}
    compared, last, began = 0, None, deadline.elapsed()
    rows: deque[Row] = deque(maxlen=KEPT_ROWS)
    while bench.progress.step < request.step:
        here = bench.progress.step
        if here in wanted:
            kept[here] = bench.state()
        if deadline.passed():
            raise Refused(
                f"There was no time left after {here - start} of the {request.step - start} steps that lead from step {start} "
                f"to step {request.step}."
            )
        spent = deadline.elapsed() - began
        if (
            not patient
            and spent > JUDGED_AFTER
            and spent / max(1, here - start) * (request.step - here) > PATIENCE * deadline.left()
        ):
            raise _TooSlow
        for last in bench.train(min(step for step in (*wanted, request.step) if step > here)):
            compared += _compare(request, last)
            rows.append(last)
    assert last is not None
    if not compared:
        raise Refused(f"None of the steps {start + 1} to {request.step} was recorded, so nothing can be compared.")
    return Replay(start, last, kept, compared, notes, list(rows))


def state_before(bench: Bench, done: Replay, step: int, deadline: Deadline) -> Checkpoint | None:
    """The state before this step, trained again from a kept one; None if every kept state is later, or if there is no time."""
    newest = max((kept for kept in done.kept if kept < step), default=None)
    if newest is None:
        return None
    if newest == step - 1:
        return done.kept[newest]
    bench.restore(done.kept[newest])
    while bench.progress.step < step - 1:
        if deadline.passed():
            return None
        bench.train(step - 1)
    return bench.state()


def state_from_the_start(
    bench: Bench, request: AutopsyRequest, done: Replay, step: int, deadline: Deadline
) -> Checkpoint | None:  # fmt: skip
    """The state before a step that the replay did not reach, from the newest checkpoint before it; None if it takes too long."""
    try:
        _start(bench, request, step - 1, done.notes)
    except Refused:
        return None
    steps = step - 1 - bench.progress.step
    if steps < 0 or steps * bench.seconds_per_step > PATIENCE * deadline.left():
        return None
    while bench.progress.step < step - 1:
        if deadline.passed():
            return None
        bench.train(step - 1)
    return bench.state()


def _compare(request: AutopsyRequest, row: Row) -> bool:
    """True if the row was recorded. Raises BitsDiffer if it was recorded with other bits."""
    recorded = request.rows.get(row.step)
    if recorded is None:
        return False
    for name, then, now in (("loss", recorded.loss, row.loss), ("gradient norm", recorded.grad_norm, row.grad_norm)):
        expected = np.float32(then)
        if expected.tobytes() != np.float32(now).tobytes() and not (np.isnan(expected) and np.isnan(now)):
            raise BitsDiffer(
                f"The run could not be repeated bit for bit: the {name} of step {row.step} was recorded as {expected!s}, and is "
                f"now {now!s}.{_other_version(request)}"
            )
    return True


def _other_version(request: AutopsyRequest) -> str:
    then = (request.environment.get("versions") or {}).get("torch")
    if then is None or then == torch.__version__:
        return ""
    return f" The run was trained with PyTorch {then}; this is PyTorch {torch.__version__}."


def _start(bench: Bench, request: AutopsyRequest, last: int, notes: list[str]) -> int:
    """Set the bench to the newest state at or before step `last` after which a row was recorded. Returns its step."""
    first_rows = [step for step in request.rows if step <= request.step]
    newest_row = max(first_rows, default=0)
    for saved in _usable(request, min(last, newest_row - 1)):
        try:
            checkpoint = load_checkpoint(saved.path, sha256=saved.sha256)
            bench.restore(checkpoint)
        except CheckpointError as error:
            if str(error) not in notes:
                notes.append(str(error))
            continue
        _lower(bench, request)
        return checkpoint.step
    if request.origin is not None:
        return _start_fork(bench, request, request.origin)
    _start_from_seed(bench, request)
    return 0


def _usable(request: AutopsyRequest, last: int) -> Iterator[SavedState]:
    return (saved for saved in sorted(request.checkpoints, key=lambda saved: -saved.step) if saved.step <= last)


def _start_fork(bench: Bench, request: AutopsyRequest, origin: SavedState) -> int:
    try:
        checkpoint, _ = forked(load_checkpoint(origin.path, sha256=origin.sha256), request.config, bench.model, bench.records)
        bench.restore(checkpoint)
    except (CheckpointError, ForkError) as error:
        raise Refused(f"The fork cannot be repeated from its beginning: {error}") from error
    if checkpoint.step >= request.step:
        raise Refused(f"The fork begins after step {checkpoint.step}; step {request.step} belongs to the run it comes from.")
    _lower(bench, request)
    return checkpoint.step


def _start_from_seed(bench: Bench, request: AutopsyRequest) -> None:
    bench.restore(bench.initial)
    bench.progress = Progress()
    _lower(bench, request)


def _lower(bench: Bench, request: AutopsyRequest) -> None:
    """Take over the reductions of the rates that are newer than the restored state."""
    progress = bench.progress
    # the same step may be lowered more than once
    progress.lowered = [*progress.lowered, *(step for step in request.lowered if step > progress.step)]
