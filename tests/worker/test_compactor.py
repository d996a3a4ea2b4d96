"""The worker's compactor compacts ended runs automatically."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from sqlalchemy import func, select

from server.database.connection import Database
from server.database.models import BlockRow, Run
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.series import TRAIN_LOSS, scalar
from tests.server.storing import store_catalogue, store_flush
from worker.chores import Compactor

pytestmark = pytest.mark.both_engines


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


def _ended(database: Database) -> int:
    with database.write() as session:
        lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}}))
    with database.write() as session:
        claim = lifecycle.claim(session, "worker", {"devices": ["cpu"], "data": {}})
        assert claim is not None
        store_catalogue(session, claim.run_id, claim.attempt, [scalar(TRAIN_LOSS)])
        for i in range(4):
            block = Block("scalars", 0, 1 + 2 * i, 1, np.ones((1, 2), np.float32))
            store_flush(session, claim.run_id, claim.attempt, [block], step=2 * i + 2)
        lifecycle.finish(session, claim.run_id, claim.attempt, "finished")
    return claim.run_id


@pytest.mark.slow
def test_the_compactor_compacts_every_ended_run_and_stops_on_request(database: Database) -> None:
    runs, stop = [_ended(database) for _ in range(2)], threading.Event()
    compactor = Compactor(database, stop, poll=0.02, settled=-1.0)
    compactor.start()
    deadline = time.monotonic() + 60
    done: list[float | None] = [None]
    while not all(done) and time.monotonic() < deadline:
        with database.read() as session:
            done = [session.get_one(Run, run).compacted_at for run in runs]
            count = session.scalar(select(func.count()).select_from(BlockRow))
        time.sleep(0.02)
    stop.set()
    compactor.join(60)
    assert all(done)
    assert count == 2
    assert not compactor.is_alive()
