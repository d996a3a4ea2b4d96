"""Every GET gives the same response on PostgreSQL and SQLite. The tests of most handlers use only SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from tests.server.http_service import BODY, application, client_of
from tests.server.mixed import mixed_run

pytestmark = pytest.mark.slow


class Given(dict[str, str]):
    """A value for each path parameter: the first run, its loss, and otherwise 1."""

    def __missing__(self, name: str) -> str:
        return {"name": "train/loss", "series": "train/loss", "chart": "loss"}.get(name, "1")


QUERIES = {
    "/api/compare": ["runs=1,2", "sweep=1", "q=status=queued&group_by=train.seed"],
    "/api/runs": ["", "q=layer=mamba OR lr>0.001&sort=-loss", "q=tag=x NOT status=failed&limit=1", "sort=queue"],
    "/api/alerts": ["", "q=status=finished"],
}
UNLIKE = {"memory", "uptime_seconds"}  # fields that describe the process itself
STREAMS = {"/api/runs/{run_id}/stream", "/metrics"}


def crawl(url: str, folder: Path) -> dict[str, Any]:
    """Responses to every GET of the OpenAPI document by URL, without times."""
    database = Database(url)
    try:
        mixed_run(database)
    finally:
        database.close()
    with client_of(application(url, folder)) as client:
        client.post("/api/sweeps", json={"base": BODY, "grid": {"train.seed": [0, 1]}}).raise_for_status()
        paths = [path for path, methods in client.get("/openapi.json").json()["paths"].items() if "get" in methods]
        addresses = [f"{path}?{query}" for path in sorted(set(paths) - STREAMS) for query in QUERIES.get(path, [""])]
        return {address: _content(client.get(address.format_map(Given()))) for address in addresses}


def _content(answer: httpx.Response) -> Any:
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return answer.status_code, _timeless(answer.json()) if is_json else ""


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if not name.endswith("_at") and name not in UNLIKE | {"at"}}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def test_every_get_gives_the_same_response_on_both_databases(sqlite_url: str, postgres_url: str, tmp_path: Path) -> None:
    one, other = crawl(sqlite_url, tmp_path / "one"), crawl(postgres_url, tmp_path / "other")
    assert {address: content[0] for address, content in one.items() if content[0] >= 500} == {}
    assert sum(content[0] == 200 for content in one.values()) > 35
    assert {address for address in one if one[address] != other[address]} == set()
