"""Reads everything that a server shows of imported runs, and counts the answers that are errors of the server."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from benchmarks.archive_fuzz.service import Service
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle.verdicts import verdict_columns
from server.series.compaction import compact
from server.series.events import events_after
from web.charts import CHARTS

DETAILS = 25
PAGE = {"Accept": "text/html"}
LAYER_CHARTS = [name for name, chart in CHARTS.items() if chart.scope in ("run", "layer")]


@dataclass
class Tally:
    """What became of the archives, and every GET that answered with an error of the server."""

    refused: int = 0
    accepted: int = 0
    gets: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    @property
    def archives(self) -> int:
        return self.refused + self.accepted


def take(service: Service, archive: bytes, tally: Tally, seed: int) -> None:
    """Import an archive. If it is accepted, read everything that the server shows of its runs, and do the work that servers and
    workers do on ended runs. Then delete the runs."""
    answer = service.post_archive(archive)
    if answer.status_code == 422:
        tally.refused += 1
        tally.refusals[answer.json()["error"]["message"]] += 1
        return
    tally.accepted += 1
    if answer.status_code != 201:
        tally.unreadable[f"POST /api/imports: {answer.status_code} (seed {seed})"] += 1
        return
    made = answer.json()
    runs = [run["id"] for run in made["runs"]]
    for address, page in addresses(service, runs, made["sweeps"], seed):
        tally.gets += 1
        if why := _failure(lambda address=address, page=page: service.get(address, **PAGE if page else {}).status_code):
            tally.unreadable[f"GET {address}: {why} (seed {seed})"] += 1
    works = [partial(work, service.database, run) for run in runs for work in (_read_stream, compact, _judge)]
    for work in works:
        if why := _failure(lambda work=work: work() and 0):
            tally.unreadable[f"{work.func.__name__} of run {work.args[1]}: {why} (seed {seed})"] += 1
    service.clear()


def _failure(work: Callable[[], int | None]) -> str:
    """Why the work failed, "" if it succeeded: an answer with a status of 500 or more, or an exception."""
    try:
        status = work()
    except Exception as error:  # noqa: BLE001 - the server raised it while it sent the body
        return f"{type(error).__name__}: {str(error)[:150]}"
    return str(status) if status and status >= 500 else ""


def _judge(database: Database, run_id: int) -> None:
    with database.read() as session:
        verdict_columns(session, session.get_one(Run, run_id))


def _read_stream(database: Database, run_id: int) -> None:
    """Read all events of the run's live stream."""
    with database.read() as session:
        events_after(session, run_id, 0, limit=10_000)


def addresses(service: Service, runs: list[int], sweeps: list[int], seed: int) -> Iterator[tuple[str, bool]]:
    """(address, whether it is a page) of everything that shows these runs or sweeps; of their series and charts, DETAILS that
    `seed` determines."""
    chosen = ",".join(map(str, runs))
    details = []
    for run in runs:
        yield from _of_run(run)
        details += _details(service, run)
    yield from random.Random(seed).sample(details, min(len(details), DETAILS))
    for sweep in sweeps:
        yield f"/sweeps/{sweep}", True
        yield from ((f"/api/sweeps/{sweep}{tail}", False) for tail in ("", "/table", "/table?format=csv", "/grid"))
        yield f"/api/sweeps/{sweep}/figures/sweep_final_loss", False
        yield f"/api/compare?q=sweep%3D{sweep}&group_by=model.reparameterization.name", False
    yield from ((page, True) for page in ("/", "/alerts", "/sweeps", f"/compare?runs={chosen}", f"/theory?run={runs[0]}"))
    yield from ((f"/api/{name}", False) for name in ("alerts", "sweeps", f"sparks?runs={chosen}", f"exports?runs={chosen}"))
    for sort in ("-id", "loss", "duration", "largest_ratio", "notes", "cause", "worker", "alerts", "lr"):
        yield f"/api/runs?sort={sort}&limit=200", False
    for q in ("alerts>0", "reparam=exp", "layer=s4d", "result.train_loss<1", "tag=paper", "duration>1", "unstable=true"):
        yield f"/api/runs?{urlencode({'q': q})}", False
    yield f"/api/compare?runs={chosen}&group_by=optimizer.lr", False
    yield f"/api/compare/curves?runs={chosen}", False
    yield f"/api/compare/curves?runs={chosen}&series=max_grad_over_weight", False
    yield f"/api/compare/figures/compare_loss?runs={chosen}", False
    yield f"/api/compare/figures/compare_ranges?runs={chosen}", False
    yield "/metrics", False


def _of_run(run: int) -> Iterator[tuple[str, bool]]:
    api = f"/api/runs/{run}"
    yield f"/runs/{run}", True
    yield f"/new?clone={run}", True
    tails = ("", "/verdict", "/forks", "/siblings", "/history", "/alerts", "/log", "/checkpoints", "/series")
    yield from ((api + tail, False) for tail in tails)
    yield from ((f"{api}/overview?part={part}&{more}", False) for part in ("all", "scalars") for more in _VIEWS)


def _details(service: Service, run: int) -> Iterator[tuple[str, bool]]:
    """Every series and every chart of the run."""
    api = f"/api/runs/{run}"
    catalogue = service.get(f"{api}/series")
    found: dict[str, Any] = json.loads(catalogue.content) if catalogue.status_code == 200 else {}
    for series in found.get("series", []):
        name = f"{api}/series/{quote(series['name'])}"
        yield name, False
        yield f"{name}?max_points=10&format=typed", False
        yield f"{name}?format=csv&download=true", False
        yield f"{name}?format=arrow&eigenvalues=0", False
    for record in found.get("records", []):
        layer = quote(record["id"])
        yield f"{api}/steps?step=1&to_step=40&layer={layer}", False
        yield f"{api}/overview?part=layer&layer={layer}&reasons=true&rows=end&points=10", False
        yield f"{api}/overview?part=layer&layer={layer}&each=true&eigenvalues=0", False
        yield from ((f"{api}/figures/{chart}?layer={layer}&max_points=50", False) for chart in LAYER_CHARTS)
    yield f"/theory?run={run}&step=30", True


_VIEWS = ("points=10&reasons=true", "points=1000")
