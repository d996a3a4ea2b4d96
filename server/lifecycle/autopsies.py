"""The autopsy of a run: one row that asks a worker to train one step of an ended run again with instruments.

An autopsy is queued in the transaction in which the run becomes `diverged`, or by a user. A user does not wait: a request takes
the place of an automatic autopsy that is queued or runs, and workers begin it at once (worker.autopsies).

A worker claims an autopsy by a conditional update, renews its lease with `beat`, and stores the findings. Owner and `started_at`
fence every write of the worker. If the worker is lost, another worker puts the autopsy back into the queue; the second loss makes
it `failed`. The row belongs to one attempt of the run: after a resume it is outdated, whoever resumed the run.

All functions work inside the caller's transaction. Each change of the state is an event of the run, which the live stream sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, delete, select, update
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, AlertRow, AutopsyRow, Run
from server.errors import Conflict, Invalid
from server.lifecycle.autopsy_findings import Findings, read_findings
from server.lifecycle.reported import REPORTED, check_trained
from stablessm_core.telemetry.detectors.registry import KINDS
from stablessm_core.telemetry.statuses import FINAL

STATES = ("queued", "running", "done", "failed")
MAX_LOSSES = 2  # after this many losses, the autopsy itself is assumed to be the cause
GIVE_UP_SECONDS = 86_400.0  # an autopsy that no worker can do is failed after this time
MOST_CANDIDATES = 100
MAX_REASON = 1000
NONFINITE_KINDS = tuple(name for name, kind in KINDS.items() if kind.nonfinite)
OFF = "autopsies are off"


@dataclass(frozen=True)
class Job:
    """A claimed autopsy. `started_at` is part of the fence. step: the step to repeat. asked: True if a user asked for it."""

    run_id: int
    attempt: int
    step: int
    owner: str
    started_at: float
    asked: bool


def queue_autopsy(session: Session, run: Run, *, step: int | None = None, by: str | None = None) -> None:
    """Queue the autopsy of an ended run, in place of an earlier one. The caller has locked the run's row and has given the
    change an event number (`run.seq`). by: the name of the user who asks for it."""
    row = session.get(AutopsyRow, run.id, populate_existing=True)
    if row is None:
        row = AutopsyRow(run_id=run.id)
        session.add(row)
    values: dict[str, Any] = {
        "attempt": run.attempt, "state": "queued", "reason": "", "step": step, "findings": None, "requested_at": time.time(),
        "requested_by": by, "started_at": None, "ended_at": None, "owner": None, "beat": 0, "losses": 0, "seq": run.seq,
    }  # fmt: skip
    for name, value in values.items():
        setattr(row, name, value)


def request_autopsy(session: Session, run: Run, *, step: int | None, by: str) -> None:
    """Queue an autopsy for a user, also in place of an automatic one that runs: its process ends at the next heartbeat, and a
    new one begins with the priority of training. The caller has locked the run's row. Raises Conflict, Invalid."""
    check_trained(run)
    if run.status not in FINAL:
        raise Conflict(f"run {run.id} is {run.status}", field="status", allowed=f"runs that are {', '.join(FINAL)}")
    row = session.get(AutopsyRow, run.id, populate_existing=True)
    if row is not None and row.attempt == run.attempt and row.state == "running" and row.requested_by is not None:
        raise Conflict(f"an autopsy of run {run.id} is running", field="state", allowed="wait until it has ended")
    first, last = (run.forked_at_step or 0) + 1, last_step(run)
    steps = f"steps {first:,} to {last:,}, which the run has trained" if last >= first else "none: the run has trained no step"
    if step is None and fatal_step(session, run) is None:
        raise Invalid(
            f"no training step of run {run.id} became NaN or infinite; name the step to repeat", field="step", allowed=steps
        )
    if step is not None and not first <= step <= last:
        raise Invalid(f"step is {step}", field="step", allowed=steps)
    run.seq += 1
    queue_autopsy(session, run, step=step, by=by)


def fatal_step(session: Session, run: Run) -> int | None:
    """The step at which a number of the run first became NaN or infinite; None if all were finite."""
    if run.divergence and isinstance(step := run.divergence.get("step"), int):
        return step
    alerts = select(AlertRow.step).where(AlertRow.run_id == run.id, AlertRow.kind.in_(NONFINITE_KINDS))
    return session.scalar(alerts.order_by(AlertRow.step).limit(1))


def last_step(run: Run) -> int:
    """The last step that the run has begun to train."""
    return max(run.step, int((run.divergence or {}).get("step") or 0))


def forget_autopsy(session: Session, run_id: int) -> None:
    """Delete the autopsy of a run that is resumed, because the run trains its fatal step again."""
    session.execute(delete(AutopsyRow).where(AutopsyRow.run_id == run_id).execution_options(synchronize_session=False))


Candidate = Row[Any]  # columns of `candidates`


def candidates(session: Session, *, asked: bool | None = None) -> list[Candidate]:
    """The queued autopsies: those that users asked for first, then the oldest first. asked: only those that users asked for, or
    only the others."""
    chosen = select(
        AutopsyRow.run_id, AutopsyRow.attempt, AutopsyRow.step, AutopsyRow.requested_at, AutopsyRow.requested_by,
        Run.config, Run.environment, Run.host, Run.gpu_name, Run.forked_from, Run.forked_at_step,
    ).join(Run, Run.id == AutopsyRow.run_id)  # fmt: skip
    waiting = [AutopsyRow.state == "queued", Run.attempt == AutopsyRow.attempt, Run.status.in_(FINAL), NOT_IN_TRASH]
    if asked is not None:
        waiting.append(AutopsyRow.requested_by.is_not(None) if asked else AutopsyRow.requested_by.is_(None))
    order = (AutopsyRow.requested_by.is_(None), AutopsyRow.requested_at, AutopsyRow.run_id)
    return list(session.execute(chosen.where(*waiting).order_by(*order).limit(MOST_CANDIDATES)))


def claim_autopsy(session: Session, run_id: int, owner: str) -> Job | None:
    """Take a queued autopsy; None if it is no longer queued, or if its run was resumed or deleted."""
    run = _locked(session, run_id)
    row = session.get(AutopsyRow, run_id, populate_existing=True)
    if run is None or row is None or row.state != "queued" or row.attempt != run.attempt:
        return None
    if run.deleted_at is not None or run.status not in FINAL:
        return None
    step = row.step if row.step is not None else fatal_step(session, run)
    if step is None:
        _change(row, run, state="failed", reason="no training step of the run became NaN or infinite", ended_at=time.time())
        return None
    _change(row, run, state="running", reason="", owner=owner, beat=0, started_at=time.time(), ended_at=None)
    session.flush()
    assert row.started_at is not None
    return Job(run_id, row.attempt, step, owner, row.started_at, row.requested_by is not None)


def beat_autopsy(session: Session, job: Job) -> bool:
    """Report that the autopsy continues. False: the autopsy no longer belongs to this worker, so it must stop."""
    same = (AutopsyRow.run_id == job.run_id, AutopsyRow.attempt == job.attempt, *_fence(job.owner, job.started_at))
    beaten = update(AutopsyRow).where(*same).values(beat=AutopsyRow.beat + 1).returning(AutopsyRow.run_id)
    return session.execute(beaten.execution_options(synchronize_session=False)).scalar_one_or_none() is not None


def end_autopsy(session: Session, job: Job, *, findings: Mapping[str, Any] | None, reason: str = "") -> bool:
    """Store the findings, or why there are none. False: the autopsy no longer belongs to this worker, and nothing was stored.

    findings: as `check_findings` returns them. The run has no verdict from here on, so nobody reads a cause that ignores the
    findings, and a worker that dies now leaves the verdict to the server.
    """
    run = _locked(session, job.run_id)
    row = _own(session, job.run_id, job.owner, job.started_at)
    if run is None or row is None:
        return False
    state = "failed" if findings is None else "done"
    _change(row, run, state=state, reason=reason[:MAX_REASON], findings=findings, ended_at=time.time(), owner=None)
    if findings is not None and run.attempt == row.attempt and run.status in FINAL:
        run.cause = run.judged_at = None
    return True


def release_autopsy(session: Session, run_id: int, owner: str, started_at: float, reason: str, *, lost: bool) -> str | None:
    """Put a running autopsy back into the queue and return its state; None if it no longer belongs to `owner`.

    lost: its worker or its process died. After MAX_LOSSES losses the autopsy is `failed`.
    """
    run = _locked(session, run_id)
    row = _own(session, run_id, owner, started_at)
    if run is None or row is None:
        return None
    losses = row.losses + lost
    if losses >= MAX_LOSSES:
        reason = f"{reason} (lost {losses} times)"
        _change(row, run, state="failed", reason=reason[:MAX_REASON], losses=losses, ended_at=time.time(), owner=None)
    else:
        _change(row, run, state="queued", reason=reason[:MAX_REASON], losses=losses, started_at=None, owner=None)
    return row.state


def give_up(session: Session, run_id: int) -> bool:
    """Mark an autopsy that has waited for GIVE_UP_SECONDS as failed. False if it has been taken or asked for again."""
    run = _locked(session, run_id)
    row = session.get(AutopsyRow, run_id, populate_existing=True)
    if run is None or row is None or row.state != "queued" or time.time() - row.requested_at < GIVE_UP_SECONDS:
        return False
    reason = f"no worker that can repeat this run took it within {GIVE_UP_SECONDS / 3600:.0f} hours"
    _change(row, run, state="failed", reason=reason, ended_at=time.time())
    return True


class LostAutopsies:
    """Finds running autopsies whose beat has not changed for `lease_seconds`, measured with this process's monotonic clock."""

    def __init__(self, lease_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_seconds, self._clock, self._last = lease_seconds, clock, clock()
        self._seen: dict[tuple[int, str, float], tuple[int, float]] = {}  # fence -> (beat, time of its last change)

    def look(self, session: Session) -> list[tuple[int, str, float]]:
        """(run, owner, started_at) of each lost autopsy. Call this at least every `lease_seconds / 3`."""
        chosen = select(AutopsyRow.run_id, AutopsyRow.owner, AutopsyRow.started_at, AutopsyRow.beat)
        rows = session.execute(chosen.where(AutopsyRow.state == "running")).all()
        now = self._clock()
        before = self._seen if now - self._last <= self.lease_seconds / 2 else {}  # after a gap everyone gets a full lease
        self._last, self._seen = now, {}
        for run_id, owner, started_at, beat in rows:
            fence = (run_id, owner or "", started_at or 0.0)
            known = before.get(fence)
            self._seen[fence] = known if known is not None and known[0] == beat else (beat, now)
        return [fence for fence, (_, since) in self._seen.items() if now - since >= self.lease_seconds]


def autopsy_json(session: Session, run: Run, *, on: bool) -> dict[str, Any]:
    """The AutopsyAnswer of a run. on: whether the settings allow autopsies."""
    row = session.get(AutopsyRow, run.id)
    if row is not None and row.attempt != run.attempt:
        row = None
    empty = {field.alias or name: None for name, field in Findings.model_fields.items()}
    answer: dict[str, Any] = {"run_id": run.id, "state": "none", "reason": None, "asked_step": None, "requested_at": None}
    answer |= {"requested_by": None, "started_at": None, "ended_at": None} | empty
    if run.kind == REPORTED:
        return answer | {"state": "off", "reason": "Another program trains this run, and only that program could repeat a step"}
    if not on and (row is None or row.state in ("queued", "running")):
        return answer | {"state": "off", "reason": f"{OFF} on this server (STABLESSM_AUTOPSY)"}
    if row is None:
        return answer
    answer |= {
        "state": row.state, "reason": row.reason or None, "asked_step": row.step, "requested_at": row.requested_at,
        "requested_by": row.requested_by, "started_at": row.started_at, "ended_at": row.ended_at,
    }  # fmt: skip
    return answer | (read_findings(row.findings) if row.findings is not None else {})


def findings_of(session: Session, run: Run) -> dict[str, Any] | None:
    """The findings of the run's last attempt with numbers for its strings; None if there are none."""
    row = session.get(AutopsyRow, run.id)
    if row is None or row.findings is None or row.attempt != run.attempt:
        return None
    return read_findings(row.findings)


def _change(row: AutopsyRow, run: Run, **values: Any) -> None:
    run.seq += 1
    for name, value in (values | {"seq": run.seq}).items():
        setattr(row, name, value)


def _locked(session: Session, run_id: int) -> Run | None:
    locked = select(Run).where(Run.id == run_id).with_for_update().execution_options(populate_existing=True)
    return session.scalars(locked).one_or_none()


def _own(session: Session, run_id: int, owner: str, started_at: float) -> AutopsyRow | None:
    own = select(AutopsyRow).where(AutopsyRow.run_id == run_id, *_fence(owner, started_at))
    return session.scalars(own.execution_options(populate_existing=True)).one_or_none()


def _fence(owner: str, started_at: float) -> tuple[Any, ...]:
    return AutopsyRow.state == "running", AutopsyRow.owner == owner, AutopsyRow.started_at == started_at
