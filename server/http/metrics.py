"""The metrics of the installation and of this process, served at /metrics with Prometheus' client library.

The metrics of the process do not need the database. While the database does not answer, the metrics of the installation are
missing, and `stablessm_database_up` is 0.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Row, case, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.access.audit import Audit
from server.backup.schedule import newest_backup_at
from server.database.connection import Database
from server.database.models import NOT_IN_TRASH, AlertRow, AutopsyRow, Run, Webhook, Worker
from server.database.revision import SchemaMismatch, check
from server.http.request_metrics import RequestMetrics
from server.lifecycle.answers import alive_workers
from server.lifecycle.autopsies import STATES
from server.lifecycle.queues import waiting
from server.live.broadcaster import Broadcaster
from server.live.listener import ChangeListener
from server.process_metrics import buckets, counter, gauge, gauge_by, histogram, registry
from server.series.alerts import OF_KEPT_RUNS
from server.settings import Settings
from server.webhooks.registry import MAX_FAILURES
from stablessm_core import __version__
from stablessm_core.telemetry.detectors.raised_elsewhere import WORKER_LOST
from stablessm_core.telemetry.statuses import FINAL, STATUSES

DATABASE_SECONDS = 3.0
HOUR = 3600.0
CLAIM_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
WRITE_COUNTERS = {
    "values_recorded": "Values that training recorded.",
    "values_stored": "Values whose transaction was committed.",
    "values_dropped": "Values that will never be stored; anything but 0 is a fault.",
}


class Metrics:
    """The metrics of one application, in two registries, because the metrics of the process do not need the database."""

    def __init__(
        self, database: Database, settings: Settings, broadcaster: Broadcaster, listener: ChangeListener, audit: Audit
    ) -> None:
        self.installation, self.process = CollectorRegistry(), registry(settings.data_dir)
        self.installation.register(InstallationCollector(database, settings.lease_seconds))
        self.process.register(BackupCollector(settings))
        self.requests = RequestMetrics(self.process)
        self.process.register(ProcessCollector(broadcaster, listener, audit))
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._pending: Future[bytes] | None = None

    def text(self) -> bytes:
        """The metrics in Prometheus' text format, within DATABASE_SECONDS even if the database hangs."""
        try:
            installation = self._ask().result(DATABASE_SECONDS)
        except (TimeoutError, SQLAlchemyError, SchemaMismatch):
            installation = b""
        return _database_up(bool(installation)) + installation + generate_latest(self.process)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> Future[bytes]:
        """Read the metrics from the database in one thread. While the database hangs, further scrapes wait for the same
        result."""
        if self._pending is None or self._pending.done():
            self._pending = self._thread.submit(generate_latest, self.installation)
        return self._pending


def _database_up(up: bool) -> bytes:
    shown = CollectorRegistry()
    Gauge(
        "stablessm_database_up", "1 if the installation's metrics could be read from the database, else 0.", registry=shown
    ).set(up)
    return generate_latest(shown)


class InstallationCollector(Collector):
    """The metrics of the installation. They come from the database, so every process reports the same values."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self.database, self.lease_seconds = database, lease_seconds
        self._lost_now = self._lost = 0

    def collect(self) -> Iterator[Metric]:
        with self.database.read() as session:
            yield from _runs(session)
            yield from _ended(session, self.lease_seconds)
            yield _autopsies(session)
            yield from _webhooks(session)
            yield from _queues(session)
            yield from self._alerts(session)
            yield from _workers(session, self.lease_seconds)
            build = {"version": __version__, "schema": check(session.connection()), "python": platform.python_version()}
        info = GaugeMetricFamily(
            "stablessm_build_info", "Version of this server, and of the database's schema.", labels=list(build)
        )
        info.add_metric(list(build.values()), 1)
        yield info

    def _alerts(self, session: Session) -> Iterator[Metric]:
        groups = (AlertRow.severity, AlertRow.kind, OF_KEPT_RUNS.label("kept"))
        counts = session.execute(select(*groups, func.count()).group_by("kept", *groups[:2])).all()
        severities: dict[str, int] = {"warning": 0, "critical": 0}
        for severity, _, kept, count in counts:
            severities[severity] = severities.get(severity, 0) + (count if kept else 0)
        yield gauge_by("severity", "alerts", "Alerts of runs that are not in the trash.", severities.items())
        now = sum(count for _, kind, _, count in counts if kind == WORKER_LOST.name)
        # a counter must never decrease, but deleting a run also deletes its alerts
        self._lost, self._lost_now = self._lost + max(0, now - self._lost_now), now
        yield counter("runs_reaped", "Number of times a run was taken from a lost worker.", self._lost)


class BackupCollector(Collector):
    """The age of the newest known backup; no metric if none is known."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def collect(self) -> Iterator[Metric]:
        at = newest_backup_at(self.settings.data_dir, self.settings.backups)
        if at is not None:
            yield gauge("backup_age_seconds", "Time since the newest known backup was written.", max(0.0, time.time() - at))


class ProcessCollector(Collector):
    """The metrics of the live view and of the audit log in this process."""

    def __init__(self, broadcaster: Broadcaster, listener: ChangeListener, audit: Audit) -> None:
        self.broadcaster, self.listener, self.audit = broadcaster, listener, audit

    def collect(self) -> Iterator[Metric]:
        broadcaster, audit = self.broadcaster, self.audit
        yield gauge("live_viewers", "Open live streams of this process.", broadcaster.viewers)
        yield counter("live_resets", "Viewers that fell behind and had to start again.", broadcaster.resets)
        yield counter("live_stalled", "Viewers dropped because they read nothing for 30 s.", broadcaster.stalled)
        yield counter("live_read_failures", "Database reads for the live view that failed.", broadcaster.failures)
        yield gauge("live_push", "1 while live updates are pushed, 0 while they are polled.", self.listener.connected)
        yield gauge("audit_waiting", "Rows of the audit log that are not stored yet.", audit.waiting)
        yield counter("audit_lost", "Rows of the audit log that could not be stored.", audit.lost)
        yield counter("audit_skipped", "Refused writes without a valid token that were not recorded.", audit.skipped)


def _runs(session: Session) -> Iterator[Metric]:
    by_status = select(Run.status, func.count()).group_by(Run.status)  # an index covers both queries
    counts: dict[str, int] = dict(session.execute(by_status).all())
    in_trash: dict[str, int] = dict(session.execute(by_status.where(Run.deleted_at.is_not(None))).all())
    kept = ((status, counts.get(status, 0) - in_trash.get(status, 0)) for status in STATUSES)
    yield gauge_by("status", "runs", "Runs by status.", kept)
    delay = Run.started_at - Run.created_at
    within = [func.count(case((delay <= bound, 1))) for bound in CLAIM_BUCKETS]
    total, begun, *up_to = session.execute(select(func.sum(delay), func.count(delay), *within).where(NOT_IN_TRASH)).one()
    meaning = "Time from submission to first claim, for runs that are not in the trash."
    yield histogram("claim_delay_seconds", meaning, CLAIM_BUCKETS, [*up_to, begun], max(0.0, total or 0.0))


def _ended(session: Session, lease_seconds: float) -> Iterator[Metric]:
    counted = select(Run.status, Run.worker, func.count()).where(Run.status.in_(FINAL), Run.finished_at > time.time() - HOUR)
    ended, failed = dict.fromkeys(map(str, FINAL), 0), {worker.id: 0 for worker in alive_workers(session, lease_seconds)}
    for status, worker, count in session.execute(counted.group_by(Run.status, Run.worker)):
        ended[status] += count
        if status == "failed" and worker in failed:
            failed[worker] += count
    yield gauge_by("status", "runs_ended_last_hour", "Runs that ended within the last hour, by status.", ended.items())
    meaning = "Runs that failed within the last hour, by the live worker that trained them last."
    yield gauge_by("worker", "runs_failed_last_hour", meaning, failed.items())


def _autopsies(session: Session) -> Metric:
    counted = select(AutopsyRow.state, func.count()).join(Run, Run.id == AutopsyRow.run_id).where(NOT_IN_TRASH)
    counts: dict[str, int] = dict(session.execute(counted.group_by(AutopsyRow.state)).all())
    meaning = "Autopsies by state, of runs that are not in the trash."
    return gauge_by("state", "autopsies", meaning, ((state, counts.get(state, 0)) for state in STATES))


def _webhooks(session: Session) -> Iterator[Metric]:
    disabled = func.count(case((Webhook.failures >= MAX_FAILURES, 1)))
    total, off = session.execute(select(func.count(), disabled).select_from(Webhook)).one()
    yield gauge("webhooks", "Registered webhooks.", total)
    yield gauge("webhooks_disabled", "Webhooks that get no events, because too many deliveries in a row failed.", off)


def _queues(session: Session) -> Iterator[Metric]:
    now, waits = time.time(), waiting(session)
    depth = [(queue, count) for queue, (count, _) in waits.items()]
    oldest = [(queue, max(0.0, now - at)) for queue, (_, at) in waits.items()]
    yield gauge_by("queue", "queue_depth", "Queued runs.", depth or [("default", 0)])
    yield gauge_by("queue", "queue_oldest_seconds", "How long the longest waiting queued run has waited.", oldest)


def _quarantines(alive: Sequence[Row[Any]]) -> Metric:
    meaning = "1 while a worker claims no runs because of its machine; `kind` is disk, memory, gpu or data."
    family = GaugeMetricFamily("stablessm_quarantined", meaning, labels=["worker", "kind"])
    for worker in alive:
        quarantine = worker.capabilities.get("quarantine")
        family.add_metric([worker.id, quarantine["kind"] if quarantine else ""], int(quarantine is not None))
    return family


def _workers(session: Session, lease_seconds: float) -> Iterator[Metric]:
    now = time.time()
    known = session.execute(select(Worker.id, Worker.slots, Worker.seen_at, Worker.capabilities)).all()
    alive = [worker for worker in known if now - worker.seen_at < lease_seconds]
    yield gauge("workers_alive", f"Workers seen within {lease_seconds:g} s.", len(alive))
    yield gauge("worker_slots", "Runs that the live workers can train at once.", sum(worker.slots for worker in alive))
    ages = [(worker.id, max(0.0, now - worker.seen_at)) for worker in alive]
    yield gauge_by("worker", "worker_heartbeat_age_seconds", "Time since a worker's last heartbeat.", ages)
    yield _quarantines(alive)
    writing = [(worker.id, writes) for worker in alive if (writes := worker.capabilities.get("writes"))]
    meaning = "Time from a flush of recorded steps to its commit."
    delays = HistogramMetricFamily("stablessm_write_delay_seconds", meaning, labels=["worker"])
    for worker, writes in writing:
        delays.add_metric([worker], buckets(writes["bounds"], accumulate(writes["counts"])), writes["sum"])
    yield delays
    for name, meaning in WRITE_COUNTERS.items():
        values = CounterMetricFamily(f"stablessm_{name}", meaning, labels=["worker"])
        for worker, writes in writing:
            values.add_metric([worker], writes[name])
        yield values
    spool = [(worker, writes["spool_bytes"]) for worker, writes in writing]
    yield gauge_by("worker", "spool_bytes", "Bytes on the workers' disks that are not in the database yet.", spool)
