"""The verdict on an open run is computed once for all its viewers, and is never older than half a second."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.database.connection import Database
from server.http.api import verdict
from server.lifecycle import transitions as lifecycle
from stablessm_core.telemetry.detectors.raised_elsewhere import NO_PROGRESS
from tests.server.http_service import application, client_of
from tests.server.recording import claimed
from tests.server.storing import store_flush


def test_viewers_who_ask_at_the_same_time_share_one_verdict(
    sqlite: Database, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, computed = claimed(sqlite), []

    def counted(*given: Any) -> dict[str, Any]:
        computed.append(given)
        return judge(*given)

    judge = verdict.judge_run
    monkeypatch.setattr(verdict, "judge_run", counted)
    monkeypatch.setattr(verdict, "SHARED_SECONDS", 0.0)  # only new events count
    client = client_of(application(sqlite_url, tmp_path))

    def ask(_: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = client.get(f"/api/runs/{claim.run_id}/verdict").json()
        return answer

    with ThreadPoolExecutor(20) as viewers:
        first = list(viewers.map(ask, range(20)))
    assert len(computed) == 1
    assert {one["status"] for one in first} == {"running"}
    with sqlite.write() as session:
        store_flush(session, claim.run_id, claim.attempt, [], [NO_PROGRESS.alert(step=0, message="no step for 300 s")], 0)
    ask()
    assert len(computed) == 2, "a new event needs a new verdict"
    with sqlite.write() as session:
        lifecycle.finish(session, claim.run_id, claim.attempt, "failed", "it ended")
    assert [ask()["status"] for _ in range(2)] == ["failed", "failed"]
    assert len(computed) == 4, "the verdict on an ended run is always computed"
