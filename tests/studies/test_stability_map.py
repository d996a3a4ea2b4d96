"""The stability map reads the largest |lambda| of the fatal step, and of the steps before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from stablessm_core.client import Client
from studies.stability_map import DISTANCE, read_points
from tests.server.http_service import TOKEN, InProcess, application
from tests.server.recording import Recording, claimed


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize("status", ["diverged", "finished"])
def test_the_fatal_step_is_kept_apart_from_the_steps_that_lived(database: Database, tmp_path: Path, status: str) -> None:
    changes = {"task__length": 64, "model__reparameterization__name": "direct", "optimizer__lr": 0.25, "train__seed": 3}
    recording = Recording(database, claimed(database, **changes), weird=False)
    recording.write(20)
    own = recording.claim
    with database.write() as session:
        lifecycle.finish(session, own.run_id, own.attempt, status, "", {"train_loss": 1.0})
    with Client("http://127.0.0.1:8000", TOKEN, transport=InProcess(application(database.url, tmp_path))) as client:
        (point,) = read_points(client, [client.run(own.run_id)])
        assert read_points(client, [client.run(own.run_id) | {"status": "cancelled"}]) == []
    largest = (1 - recording.truth[DISTANCE].astype(np.float64)).max(axis=1)
    assert (point.length, point.lr, point.map, point.seed) == (64, 0.25, "direct", 3)
    if status == "finished":
        assert (point.largest, point.fatal) == (pytest.approx(largest.max()), None)
    else:
        assert (point.largest, point.fatal) == (pytest.approx(largest[:-1].max()), pytest.approx(largest[-1]))
    assert point.line == pytest.approx(4.0, rel=1e-4)
