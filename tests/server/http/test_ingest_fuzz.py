"""Damaged and hostile posts cause no error of the server and change no other run. INGEST_POSTS: number of posts per engine."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Base, Run
from stablessm_core.report.messages import EnvironmentMessage, to_bytes
from tests.mutated_frames import messages, mutate
from tests.server.http_service import application, client_of
from tests.server.recording import Recording, claimed
from tests.server.reporting import Program

POSTS = int(os.environ.get("INGEST_POSTS", "20000"))
RUNS = 40  # the posts go to so many runs, because a run that ends early takes fewer kinds of damage
PATHS = ("/", "/api/runs", "/runs/{run}", "/api/runs/{run}/series", "/api/runs/{run}/verdict", "/api/runs/{run}/alerts")


def others(database: Database, spared: int) -> dict[str, list[Any]]:
    """All rows that belong to no run of the attacker: those of run `spared`, and all that belong to no run."""
    found = {}
    with database.read() as session:
        for table in Base.metadata.sorted_tables:
            if table.name in ("audit", "users", "tokens"):
                continue
            own = table.c.id if table.name == Run.__tablename__ else table.c.get("run_id")
            chosen = select(table) if own is None else select(table).where(own == spared)
            found[table.name] = sorted(map(str, session.execute(chosen).all()))
    return found


def attack(url: str, folder: Path, posts: int, caplog: pytest.LogCaptureFixture) -> dict[int, int]:
    rng, records, statuses = random.Random(23), [to_bytes(message) for message in messages()], dict[int, int]()
    limits = {"runs_per_minute": 0, "ingest_posts_per_minute": 0, "lease_seconds": 600, "reported_lease_seconds": 600}
    with client_of(application(url, folder, **limits)) as client:
        database: Database = client._transport.app.state.database  # type: ignore[attr-defined]
        victim = claimed(database, name="victim")
        Recording(database, victim).write(64)
        before = others(database, victim.run_id)
        with caplog.at_level(logging.ERROR):
            for number in range(posts):
                if number % (posts // RUNS) == 0:
                    program = Program(client)
                    program.describe()
                body = mutate(rng, records)
                attempt = rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 2**31 - 1))
                answer = program.post_bytes(body, attempt=attempt)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                assert answer.status_code in (200, 409, 422), (answer.status_code, answer.text[:300], body[:2000])
                if number % (posts // 20) == 0:
                    for path in PATHS:
                        shown = client.get(path.format(run=program.run_id), headers={"Accept": "text/html, application/json"})
                        assert shown.status_code == 200, (path, shown.text[:300], body[:2000])
                    harmless = program.post(EnvironmentMessage({"number": number}))
                    assert harmless.status_code == 200, "a damaged post must not spoil the next one"
        assert others(database, victim.run_id) == before
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    return statuses


@pytest.mark.both_engines
@pytest.mark.slow
def test_hostile_posts_change_no_other_run(database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statuses = attack(database_url, tmp_path, 400, caplog)
    assert statuses[422] > 200
    assert statuses[200] > 3


@pytest.mark.both_engines
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_20_000_hostile_posts_change_no_other_run(database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statuses = attack(database_url, tmp_path, POSTS, caplog)
    print(f"\n{database_url.partition(':')[0]}: {sum(statuses.values()):,} posts, {dict(sorted(statuses.items()))}")
    assert statuses[422] > POSTS / 2
