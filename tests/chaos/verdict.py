"""Judges a run from the database alone: compares it bit for bit with an undisturbed run of the same configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import AlertRow, AutopsyRow, BlockRow, Run, SeriesRow, Transition
from stablessm_core.telemetry.blocks import decode
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.series import HOST_MEMORY, STEP_TIME, TRAIN_RATE
from stablessm_core.telemetry.statuses import FINAL

TIMING = (TRAIN_RATE, STEP_TIME, HOST_MEMORY)  # series that measure time or memory and so differ between any two runs
CAUSES = re.compile(
    r"lost contact with|training process (ended by|exited)|drained|response to a claim|no training process|disk full|not writable"
)
Stream = tuple[str, int]  # (group, level)


@dataclass
class Recorded:
    """A run as the database stores it. `steps` and `values` by (group, level), in the order of the steps, without TIMING."""

    run: Run
    transitions: list[Transition]
    alerts: list[AlertRow]
    blocks: list[BlockRow]
    autopsies: list[AutopsyRow]
    steps: dict[Stream, list[int]] = field(default_factory=dict)
    values: dict[Stream, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, database: Database, run_id: int) -> Recorded:
        with database.read() as session:
            run = session.get_one(Run, run_id)
            transitions = session.scalars(select(Transition).where(Transition.run_id == run_id).order_by(Transition.seq)).all()
            alerts = session.scalars(select(AlertRow).where(AlertRow.run_id == run_id).order_by(AlertRow.id)).all()
            blocks = session.scalars(select(BlockRow).where(BlockRow.run_id == run_id).order_by(BlockRow.first_step)).all()
            autopsies = session.scalars(select(AutopsyRow).where(AutopsyRow.run_id == run_id)).all()
            series = session.scalars(select(SeriesRow).where(SeriesRow.run_id == run_id)).all()
        timed = [s for s in series if s.name in TIMING]
        recorded = cls(run, list(transitions), list(alerts), list(blocks), list(autopsies))
        for stream in sorted({(b.group_name, b.level) for b in blocks}):
            mine = [b for b in blocks if (b.group_name, b.level) == stream]
            left_out = [c for s in timed if s.group_name == stream[0] for c in range(s.column_offset, s.column_offset + s.width)]
            recorded.steps[stream] = [b.first_step + i * b.stride for b in mine for i in range(b.point_count)]
            recorded.values[stream] = b"".join(np.delete(_values(b), left_out, axis=0).swapaxes(0, -1).tobytes() for b in mine)
        return recorded

    def learned(self) -> list[tuple[Any, ...]]:
        """The alerts that training itself raised; alerts about attempts are left out."""
        own = [a for a in self.alerts if not KINDS[a.kind].of_attempt]
        return sorted((a.step, a.kind, a.series, a.tensor, a.eigenvalue or 0, a.value, a.message) for a in own)


@dataclass
class Verdict:
    """`lost`, `doubled`: counts of values over all series and levels; `problems`: a sentence for every violation."""

    lost: int
    doubled: int
    problems: list[str]


def judge(found: Recorded, truth: Recorded) -> Verdict:
    """Compare a disturbed run with the undisturbed one."""
    problems: list[str] = []
    lost = doubled = 0
    for stream in sorted(found.steps.keys() | truth.steps.keys()):
        have, want = found.steps.get(stream, []), truth.steps.get(stream, [])
        width = next((b.column_count for b in truth.blocks if (b.group_name, b.level) == stream), 1)
        lost += len(set(want) - set(have)) * width
        doubled += (len(have) - len(set(have))) * width
        if have != want:
            problems.append(f"{stream}: {len(have)} points are stored, {len(want)} are right, or their order is not")
        elif found.values[stream] != truth.values[stream]:
            problems.append(f"{stream}: stored values differ from those of the undisturbed run")
    run, right = found.run, truth.run
    if (run.status, run.step) != (right.status, right.step):
        problems.append(f"ended {run.status} at step {run.step} ({run.status_reason}); right is {right.status} at {right.step}")
    if run.status in FINAL and (_result(run), run.divergence) != (_result(right), right.divergence):
        problems.append(f"result is {_result(run)} {run.divergence}; right is {_result(right)} {right.divergence}")
    if found.learned() != truth.learned():
        problems.append(f"alerts are {found.learned()}; right are {truth.learned()}")
    return Verdict(lost, doubled, [f"run {run.id}: {problem}" for problem in (*problems, *history(found))])


def history(found: Recorded) -> list[str]:
    """The violations found in attempts, event numbers, fences and causes."""
    run, problems = found.run, list[str]()
    claims = [t for t in found.transitions if t.status == "running" and t.reason.startswith("attempt ")]
    if [t.attempt for t in claims] != list(range(1, run.attempt + 1)):
        problems.append(f"attempts were claimed in the order {[t.attempt for t in claims]}; the run is at {run.attempt}")
    attempts = [t.attempt for t in found.transitions]
    if attempts != sorted(attempts):
        problems.append(f"attempts of the transitions go back: {attempts}")
    ends = [t for t in found.transitions if t.status in FINAL]
    if run.status in FINAL and (len(ends) != 1 or ends[0] is not found.transitions[-1]):
        problems.append(f"{len(ends)} ends in the history {[(t.seq, t.status) for t in found.transitions]}")
    numbers = [row.seq for rows in (found.transitions, found.blocks, found.alerts, found.autopsies) for row in rows]
    if max(numbers) != run.seq:
        problems.append(f"the run's last event is {run.seq}; the newest stored is {max(numbers)}")
    until_seq = {t.attempt - 1: t.seq for t in claims}  # for each attempt, the event number of the claim that ended it
    for block in found.blocks:
        if block.seq > until_seq.get(block.attempt, run.seq):
            problems.append(f"a block of attempt {block.attempt} landed after a newer attempt had begun")
    for given_back in (t for t in found.transitions if t.status == "queued" and t.reason != "submitted"):
        kind = "worker_lost" if given_back.reason.startswith("lost contact") else "trainer_crashed"
        kind = "worker_unfit" if given_back.reason.startswith(("disk full", "not writable")) else kind
        alarms = [a for a in found.alerts if a.kind == kind and a.seq == given_back.seq]
        lost = not given_back.reason.startswith(("drained", "the response to a claim", "no training process"))
        if len(alarms) != lost:
            problems.append(f"{len(alarms)} alerts for {given_back.reason!r}")
        if not CAUSES.search(given_back.reason):
            problems.append(f"no cause is named: {given_back.reason!r}")
    if run.result is not None and (run.result["telemetry_dropped"] or run.result["telemetry_errors"]):
        problems.append(f"telemetry was lost on the way: {run.result}")
    return problems


def _result(run: Run) -> dict[str, Any] | None:
    return run.result and {key: run.result[key] for key in ("train_loss", "eval_loss", "eval_accuracy", "rollbacks")}


def _values(block: BlockRow) -> np.ndarray:
    shape = (block.column_count, block.point_count) if block.level == 0 else (block.column_count, 4, block.point_count)
    return decode(block.payload, shape)
