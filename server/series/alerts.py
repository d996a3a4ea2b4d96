"""Stores alerts. Each event is stored only once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from server.database.fence import insert_into
from server.database.models import AlertRow, Run, Transition
from stablessm_core.telemetry.detectors import KINDS, Alert
from stablessm_core.telemetry.limits import MAX_RUN_ALERTS
from stablessm_core.telemetry.nonfinite import as_text

ALERTS_AT_ONCE = 1000  # alerts of one event; further alerts are left out
OF_KEPT_RUNS = AlertRow.run_id.not_in(select(Run.id).where(Run.deleted_at.is_not(None)))  # alerts of runs outside the trash


def insert_bounded(session: Session, run_id: int, attempt: int, alerts: Sequence[Alert], seq: int) -> int:
    """`insert_alerts` for at most ALERTS_AT_ONCE alerts, and no more than a run may have."""
    if not alerts:
        return 0
    stored = session.scalar(select(func.count()).where(AlertRow.run_id == run_id)) or 0
    return insert_alerts(session, run_id, attempt, alerts[: max(0, min(ALERTS_AT_ONCE, MAX_RUN_ALERTS - stored))], seq)


def insert_alerts(session: Session, run_id: int, attempt: int, alerts: Sequence[Alert], seq: int) -> int:
    """Store alerts, each event once, and return the number of new alerts. The caller must have locked the run's row.

    After a resume, repeated steps raise the same alerts again, and the stored alerts do not change. After a rollback, the steps
    that are trained again have different values, so a stored alert gets the newest message and every viewer sees the alert
    again. An alert that lasts is sent again with its duration in the message, which the stored alert takes over.
    """
    new = 0
    for alert in alerts:
        row = _alert_row(run_id, attempt, alert, seq)
        known = None if KINDS[alert.kind].of_attempt else _same_event(session, row)
        if known is None:
            statement = insert_into(session, AlertRow).values(row).on_conflict_do_nothing().returning(AlertRow.id)
            new += session.execute(statement).scalar_one_or_none() is not None
        elif not f"{known.message};".startswith(f"{alert.message};") or (
            known.attempt == attempt and _taken_back_since(session, known)
        ):
            known.seq, known.severity, known.value, known.message = seq, row["severity"], row["value"], row["message"]
            known.created_at = row["created_at"]
            new += 1
    session.flush()
    return new


def _same_event(session: Session, row: dict[str, Any]) -> AlertRow | None:
    same = [getattr(AlertRow, name) == row[name] for name in ("run_id", "kind", "series", "tensor", "step")]
    return session.scalars(select(AlertRow).where(*same).order_by(AlertRow.id.desc()).limit(1)).one_or_none()


def _taken_back_since(session: Session, alert: AlertRow) -> bool:
    later = and_(Transition.run_id == alert.run_id, Transition.seq > alert.seq, Transition.truncated_from <= alert.step)
    return session.scalar(select(Transition.seq).where(later).limit(1)) is not None


def _alert_row(run_id: int, attempt: int, alert: Alert, seq: int) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "seq": seq,
        "attempt": attempt,
        "kind": alert.kind,
        "severity": alert.severity,
        "step": alert.step,
        "series": alert.series,
        "layer": alert.layer,
        "eigenvalue": alert.eigenvalue,
        "tensor": alert.tensor,
        "value": "" if alert.value is None else as_text(alert.value),
        "message": alert.message,
        "created_at": time.time(),
    }
