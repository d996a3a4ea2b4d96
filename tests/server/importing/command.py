"""Runs `stablessm import` against a running server, and reads what it stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner, Result

from server.cli.main import main
from tests.server.http_service import TOKEN
from tests.server.importing.reading import spelled

KEPT = (
    "id", "kind", "project", "name", "status", "status_reason", "attempt", "step", "tags", "notes", "reported_config",
    "started_at", "finished_at",
)  # fmt: skip


def run(server: httpx.Client, *arguments: str | Path, token: str = TOKEN) -> Result:
    environment = {"STABLESSM_URL": str(server.base_url).rstrip("/"), "STABLESSM_TOKEN": token}
    return CliRunner().invoke(main, ["import", *map(str, arguments)], env=environment, catch_exceptions=False)


def stored(server: httpx.Client) -> list[dict[str, Any]]:
    """All runs with their numbers, oldest first."""
    runs = sorted(server.get("/api/runs", params={"limit": 100}).json()["runs"], key=lambda one: one["id"])
    whole = [server.get(f"/api/runs/{one['id']}").json() for one in runs]
    found = [{name: one[name] for name in KEPT} for one in whole]
    for one in found:
        named = server.get(f"/api/runs/{one['id']}/metrics").json()
        one["seq"] = named["seq"]
        one["numbers"] = {}
        for metric in named["metrics"]:
            # JSON spells -0.0 as -0, which Python reads as a whole number
            rows = server.get(f"/api/runs/{one['id']}/series/{metric['name']}", params={"download": True, "format": "csv"}).text
            points = [line.split(",") for line in rows.splitlines()[1:]]
            one["numbers"][metric["name"]] = spelled([int(step) for step, _ in points], [float(value) for _, value in points])
    return found
