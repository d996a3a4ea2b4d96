"""Stores messages as a worker does, for tests that need stored numbers and no worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from server.ingest.post import store
from stablessm_core.report.messages import CatalogueMessage, MetricsMessage, TelemetryMessage, TruncateMessage
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.metrics import check_metrics
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush


def store_flush(
    session: Session, run_id: int, attempt: int, blocks: Sequence[Block], alerts: Sequence[Alert] = (), step: int = 0,
    steps_per_second: float | None = None, so_far: Mapping[str, float] | None = None,
) -> int:  # fmt: skip
    return _seq(session, run_id, attempt, Flush(blocks, list(alerts), step, steps_per_second, so_far or {}))


def store_catalogue(session: Session, run_id: int, attempt: int, series: Sequence[SeriesSpec]) -> None:
    store(session, run_id, attempt, CatalogueMessage(list(series)))


def store_metrics(session: Session, run_id: int, attempt: int, message: MetricsMessage) -> int:
    check_metrics(message.steps, message.values)
    return _seq(session, run_id, attempt, message)


def truncate(session: Session, run_id: int, attempt: int, from_step: int, reason: str) -> int:
    return _seq(session, run_id, attempt, TruncateMessage(from_step - 1, reason))


def _seq(session: Session, run_id: int, attempt: int, message: TelemetryMessage) -> int:
    """The run's newest event after the message."""
    post = store(session, run_id, attempt, message)
    assert post is not None
    return post.finish().seq
