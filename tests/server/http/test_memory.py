"""GET /api/runs/{id}/memory and the run's page: the recorded memory function, its decay in words, and the kernel of the task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from server.database.connection import Database
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.series import EVAL, EVAL_LOSS, MEANINGS, MEMORIES, MEMORY, SeriesSpec, scalar
from tests.server.http_service import application, client_of, error_of
from tests.server.recording import claimed
from tests.server.storing import store_catalogue, store_flush

LAGS = 100


@pytest.fixture
def http(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def record(database: Database, measurements: dict[int, np.ndarray], evaluated: tuple[int, ...]) -> int:
    """A run with these measurements of memory, evaluated at these steps."""
    own = claimed(database)
    catalogue = [scalar(EVAL_LOSS, EVAL), SeriesSpec(MEMORY, MEMORIES, LAGS, *MEANINGS[MEMORY])]
    with database.write() as session:
        store_catalogue(session, own.run_id, own.attempt, catalogue)
    blocks = [Block(EVAL, 0, step, 1, np.full((1, 1), 0.5, np.float32)) for step in evaluated]
    blocks += [Block(MEMORIES, 0, step, 1, values.astype(np.float32)[:, None]) for step, values in measurements.items()]
    with database.write() as session:
        store_flush(session, own.run_id, own.attempt, blocks, [], max(evaluated))
    return own.run_id


def test_the_decay_is_fitted_and_shown_beside_the_kernel_of_the_task(http: httpx.Client, database: Database) -> None:
    t = np.arange(LAGS)
    run_id = record(database, {100: 0.5 * 0.8**t, 200: (t + 1.0) ** -1.1}, (100, 200))
    found = http.get(f"/api/runs/{run_id}/memory").json()
    assert (found["step"], found["steps"], found["skipped"], found["reason"]) == (200, [100, 200], 0, None)
    assert found["fit"]["decay"] == "polynomial"
    assert found["fit"]["words"] == "The memory of the network decays slowly, like 1 / (t + 1)^1.1."
    assert found["kernel"] == pytest.approx(found["memory"], rel=1e-5), "the task's kernel is 1 / (t + 1)^1.1"
    first = http.get(f"/api/runs/{run_id}/memory?step=100").json()
    assert first["fit"]["words"] == "The memory of the network decays exponentially: it falls to 1/e within 4.48 steps."
    page = http.get(f"/runs/{run_id}", headers={"Accept": "text/html"}).text
    assert "The memory of the network decays slowly" in page
    assert '<path class="kernel" d="M0.0 ' in page


def test_missing_measurements_are_named_and_nan_stays_nan(http: httpx.Client, database: Database) -> None:
    run_id = record(database, {100: np.full(LAGS, np.nan)}, (100, 120))
    found = http.get(f"/api/runs/{run_id}/memory").json()
    assert (found["skipped"], found["memory"][0], found["fit"]["decay"]) == (1, "NaN", "cannot tell")
    assert "more than 2 % of the time" in found["reason"]
    error = error_of(http.get(f"/api/runs/{run_id}/memory?step=7"), 422)
    assert (error["field"], error["allowed"]) == ("step", "one of 100")


def test_a_run_that_measures_no_memory_says_why(http: httpx.Client, database: Database) -> None:
    run_id = claimed(database).run_id
    found = http.get(f"/api/runs/{run_id}/memory").json()
    assert (found["step"], found["memory"]) == (None, [])
    assert "real-valued inputs" in found["reason"]
    assert "What the network remembers" not in http.get(f"/runs/{run_id}", headers={"Accept": "text/html"}).text
    assert http.get("/api/runs/999/memory").status_code == 404
