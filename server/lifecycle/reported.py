"""The life of a reported run after its program falls silent, and when the program reports again.

Our workers never train a reported run, so such a run never returns to the queue. The functions work inside the caller's
`Database.write()` transaction.
"""

from __future__ import annotations

import time

from sqlalchemy.orm import Session

from server.database.fence import LeaseLost, add_transition, lock_run
from server.database.models import Run
from server.errors import Conflict
from stablessm_core.telemetry.how import how_of
from stablessm_core.telemetry.statuses import LOST

REPORTED, TRAINED = "reported", "trained"  # the kinds of runs


def check_trained(run: Run) -> None:
    """Raises Conflict for a reported run, because our workers cannot train it."""
    if run.kind == REPORTED:
        raise Conflict(
            f"run {run.id} is reported by another program, and only that program can train it", field="kind",
            allowed="runs that our workers train",
        )  # fmt: skip


def mark_lost(session: Session, run_id: int, attempt: int, beat: int, reason: str) -> bool:
    """Set a silent reported run to `lost` and return True. reason: such as "no message for 60 s"; the last step is added to it.

    False, and no change, if the run is not running under this attempt, has sent a heartbeat since `beat`, or is not a reported
    run.
    """
    try:
        run = lock_run(session, run_id, attempt)
    except LeaseLost:
        return False
    if run.beat != beat or run.kind != REPORTED:
        return False
    reason = f"{reason}, after step {run.step:,}"
    run.status, run.status_reason, run.finished_at, run.steps_per_second = LOST, reason, time.time(), None
    add_transition(session, run, reason)
    return True


def describe_end(run: Run, status: str) -> str:
    """How a reported run ended, if its program gave no reason: "finished after step 300 of 400; 0 steps missing"."""
    total, missing = how_of(run).total_steps, (run.result or {}).get("telemetry_dropped")
    of = f" of {total:,}" if total is not None and total > run.step else ""
    known = isinstance(missing, int) and not isinstance(missing, bool) and missing >= 0
    return f"{status} after step {run.step:,}{of}" + (f"; {missing:,} steps missing" if known else "")


def found(session: Session, run: Run) -> int:
    """Set a lost run back to `running`, because its program reports again, and return the number of this event.

    The caller has locked the run's row and checked the attempt. A run that is not lost does not change.
    """
    if run.status != LOST:
        return run.seq
    silent = time.time() - (run.finished_at or time.time())
    run.status, run.finished_at = "running", None
    run.status_reason = f"reports again, {max(0.0, silent):.0f} s after it was lost"
    run.beat += 1
    run.compacted_at = run.cause = run.judged_at = None  # the steps from now on must also be merged and judged
    return add_transition(session, run, run.status_reason)
