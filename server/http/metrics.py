"""What the service looks like from outside, in Prometheus' text format.

Our own few lines rather than its client library: nearly everything is a question to the database, whose answer must not depend on
which process is asked, and the rest are counters of this application (a library's are those of the whole process).
"""

from __future__ import annotations

import math
import platform
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from server.access.audit import Audit
from server.database.models import STATUSES, AlertRow, Run, Worker
from server.runs.lifecycle import LEASE_SECONDS
from server.runs.queues import waiting
from stablessm_core import __version__

CLAIM_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
WRITE_COUNTERS = {
    "values_recorded": "Values that training handed over to be stored.",
    "values_stored": "Values whose transaction was committed.",
    "values_dropped": "Values given up for good; anything but 0 is a fault.",
}


class Histogram:
    """Counts of observations by upper bound, each in its own bucket; made cumulative when it is shown."""

    def __init__(self, bounds: tuple[float, ...], counts: Iterable[int] = (), total: float = 0.0) -> None:
        self.bounds, self.counts, self.sum = bounds, list(counts) or [0] * (len(bounds) + 1), total

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def samples(self, **labels: str) -> list[tuple[str, dict[str, str], float]]:
        """(suffix, labels, value) of each line."""
        lines, seen = [], 0
        for bound, count in zip([*map(_number, self.bounds), "+Inf"], self.counts, strict=True):
            seen += count
            lines.append(("_bucket", labels | {"le": bound}, float(seen)))
        return [*lines, ("_sum", labels, self.sum), ("_count", labels, float(seen))]


class Page:
    """Metric families as text."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, meaning: str, *samples: tuple[str, Mapping[str, str], float]) -> None:
        name = f"stablessm_{name}"
        self._lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        for suffix, labels, value in samples:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self._lines.append(f"{name}{suffix}{{{inside}}} {_number(value)}" if inside else f"{name}{suffix} {_number(value)}")

    def one(self, name: str, kind: str, meaning: str, value: float, **labels: str) -> None:
        self.add(name, kind, meaning, ("", labels, value))

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def describe(page: Page, session: Session) -> None:
    """Everything that is true of the installation, whichever process is asked."""
    _runs(page, session)
    kinds = session.execute(
        select(AlertRow.severity, AlertRow.kind, func.count()).group_by(AlertRow.severity, AlertRow.kind)
    ).all()
    severities: dict[str, int] = {"warning": 0, "critical": 0}
    for severity, _, count in kinds:
        severities[severity] = severities.get(severity, 0) + count
    page.add("alerts", "gauge", "Alerts of the runs that are kept.", *(("", {"severity": s}, n) for s, n in severities.items()))
    lost = sum(count for _, kind, count in kinds if kind == "worker_lost")
    page.one("runs_reaped", "gauge", "Times a run was taken from a worker that was lost, over the runs that are kept.", lost)
    _workers(page, session)


def _runs(page: Page, session: Session) -> None:
    counts: dict[str, int] = dict(session.execute(select(Run.status, func.count()).group_by(Run.status)).all())
    page.add("runs", "gauge", "Runs by status.", *(("", {"status": s}, counts.get(s, 0)) for s in STATUSES))
    now = time.time()
    waits = waiting(session)
    depth = [("", {"queue": queue}, count) for queue, (count, _) in waits.items()]
    oldest = [("", {"queue": queue}, max(0.0, now - at)) for queue, (_, at) in waits.items()]
    page.add("queue_depth", "gauge", "Queued runs.", *(depth or [("", {"queue": "default"}, 0)]))
    page.add("queue_oldest_seconds", "gauge", "How long the longest waiting queued run has waited.", *oldest)
    delay = Run.started_at - Run.created_at
    within = [func.count(case((delay <= bound, 1))) for bound in CLAIM_BUCKETS]
    total, begun, *up_to = session.execute(select(func.sum(delay), func.count(delay), *within)).one()
    delays = [more - less for less, more in pairwise([0, *up_to, begun])]
    meaning = "From submission to first claim, of the runs that are kept."
    page.add("claim_delay_seconds", "histogram", meaning, *Histogram(CLAIM_BUCKETS, delays, max(0.0, total or 0.0)).samples())


def _workers(page: Page, session: Session) -> None:
    now = time.time()
    known = session.execute(select(Worker.id, Worker.host, Worker.slots, Worker.seen_at, Worker.capabilities)).all()
    alive = [worker for worker in known if now - worker.seen_at < LEASE_SECONDS]
    page.one("workers_alive", "gauge", f"Workers seen within {LEASE_SECONDS:g} s.", len(alive))
    page.one("worker_slots", "gauge", "Runs they can train at once.", sum(worker.slots for worker in alive))
    ages = [("", {"worker": worker.id}, max(0.0, now - worker.seen_at)) for worker in known]
    page.add("worker_heartbeat_age_seconds", "gauge", "Time since a worker's last sign of life.", *ages)
    writing = [({"worker": worker.id}, writes) for worker in known if (writes := worker.capabilities.get("writes"))]
    delays = []
    for labels, writes in writing:
        delays += Histogram(tuple(writes["bounds"]), writes["counts"], writes["sum"]).samples(**labels)
    page.add("write_delay_seconds", "histogram", "From a flush of recorded steps to its commit.", *delays)
    for name, meaning in WRITE_COUNTERS.items():
        page.add(f"{name}_total", "counter", meaning, *(("", labels, writes[name]) for labels, writes in writing))
    spool = [("", labels, writes["spool_bytes"]) for labels, writes in writing]
    page.add("spool_bytes", "gauge", "On the workers' disks, waiting for the database.", *spool)


def build_info(page: Page, schema: str) -> None:
    labels = {"version": __version__, "schema": schema, "python": platform.python_version()}
    page.one("build_info", "gauge", "Version of this server, and of the database's schema.", 1, **labels)


def _number(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def describe_audit(page: Page, audit: Audit) -> None:
    """Whether the audit log of this process is whole."""
    page.one("audit_waiting", "gauge", "Rows of the audit log that are not stored yet.", audit.waiting)
    page.one("audit_lost_total", "counter", "Rows of the audit log that could not be stored.", audit.lost)
    page.one("audit_skipped_total", "counter", "Refused writes of strangers beyond those that are recorded.", audit.skipped)
