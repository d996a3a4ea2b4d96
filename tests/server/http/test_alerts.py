"""The list of alerts, as JSON and as a page: filters by severity, kind, run and time, and groups by run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.database.connection import Database
from server.database.models import AlertRow
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claim, nonfinite

pytestmark = [pytest.mark.spread, pytest.mark.slow]

DAY = 86_400.0
EMPTY = "severity=&kind=&run=&after=&before=&q=&cursor="


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    """Run 1 has seven alerts about its gradient that are two days old; run 2 has a new alert about its loss."""
    with client_of(application(database.url, tmp_path)) as client:
        for name in ("first <b>", "second"):
            client.post("/api/runs", json=BODY | {"name": name})
        old = [nonfinite("nonfinite_gradient", step, series="ssm/0/grad_over_weight", layer=0) for step in range(3, 10)]
        Recording(database, claim(database)).write(10, old)
        with database.write() as session:
            for alert in session.query(AlertRow):
                alert.created_at -= 2 * DAY
                alert.severity = "warning" if alert.step == 3 else "critical"
        Recording(database, claim(database)).write(10, [nonfinite(step=4)])
        yield client


def found(client: httpx.Client, query: str) -> list[tuple[int, int]]:
    answer = client.get(f"/api/alerts?{query}")
    assert answer.status_code == 200, answer.text
    return [(alert["run_id"], alert["step"]) for alert in answer.json()["alerts"]]


def test_alerts_are_filtered_by_severity_kind_run_and_time(client: httpx.Client) -> None:
    old = [(1, step) for step in range(9, 2, -1)]
    assert found(client, EMPTY) == [(2, 4), *old], "the empty fields of a form must not be conditions"
    assert found(client, "severity=warning") == [(1, 3)]
    assert found(client, "kind=nonfinite_loss") == [(2, 4)]
    assert found(client, "run=1&kind=nonfinite_gradient&limit=2") == old[:2]
    assert found(client, "after=1d") == [(2, 4)]
    assert found(client, "before=1d") == old
    assert found(client, "after=2020-01-01&before=2020-02-01") == []
    assert found(client, "q=second") == [(2, 4)]


@pytest.mark.parametrize(
    ("query", "field"),
    [("kind=nonfinite_los", "kind"), ("after=soon", "after"), ("before=2026-13-01", "before"), ("run=x", "run")],
)
def test_a_wrong_condition_is_refused_with_its_field(client: httpx.Client, query: str, field: str) -> None:
    error = error_of(client.get(f"/api/alerts?{query}"), 422)
    assert error["field"] == field
    if field != "run":
        page = client.get(f"/alerts?{query}", headers={"Accept": "text/html"})
        assert page.status_code == 422
        assert f'data-refused="{field}"' in page.text
    if field == "kind":
        assert "did you mean nonfinite_loss" in error["message"]


def test_the_page_takes_the_filters_of_its_twin_shows_names_and_groups_by_run(client: httpx.Client) -> None:
    page = client.get(f"/alerts?{EMPTY}&group=").text
    assert re.findall(r'class="name" href="/runs/(\d)">([^<]+)', page)[:2] == [("2", "second"), ("1", "first &lt;b&gt;")]
    twin = re.search(r'type="application/json" href="([^"]+)"', client.get("/alerts?run=2&group=run&kind=").text)
    assert twin is not None
    assert twin[1] == "/api/alerts?run=2"
    grouped = client.get("/alerts?group=run").text
    assert re.findall(r'alert-group" data-run="(\d)"', grouped) == ["2", "1"]
    assert grouped.count("data-alert-id") == 1 + 5
    assert "6 critical, 1 warning" in re.sub(r"<[^>]+>|\s+", " ", grouped).replace("  ", " ").replace(" ,", ",")
    assert 'href="/alerts?group=&amp;run=1"' not in grouped
    assert 'href="/alerts?run=1">Show all 7 alerts' in grouped
    assert client.get("/alerts?limit=3").text.count("data-alert-id") == 3
    assert "Older alerts" in client.get("/alerts?limit=3&severity=critical").text
