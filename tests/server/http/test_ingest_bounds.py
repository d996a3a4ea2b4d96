"""What a post may ask of the server: how much work, how many posts at once, and how many series and catalogues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from server.database.connection import Database
from server.database.models import Run
from stablessm_core.report.messages import CatalogueMessage, EndMessage, MetricsMessage, TruncateMessage
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.limits import MAX_CATALOGUES
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, SeriesSpec, scalar
from stablessm_core.telemetry.sink import Flush
from tests.server.http_service import application, client_of, error_of
from tests.server.reporting import Program

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]
CATALOGUE = CatalogueMessage([scalar(TRAIN_LOSS)])


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> FastAPI:
    return application(database_url, tmp_path, runs_per_minute=0)


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with client_of(app) as client:
        yield client


def losses(first: int, *values: float) -> Flush:
    return Flush([Block(SCALARS, 0, first, 1, np.array([values], np.float32))], [], first + len(values) - 1, None)


def test_posts_beyond_those_that_wait_are_refused_for_a_while(client: httpx.Client, app: FastAPI) -> None:
    program = Program(client)
    with ExitStack() as waiting:
        for size in (*[4 << 20] * 15, *[1000] * 63):
            waiting.enter_context(app.state.reports.room(size))
        assert program.post(CATALOGUE).status_code == 200
        waiting.enter_context(app.state.reports.room(1000))
        answer = program.post(losses(1, 1.0))
        assert error_of(answer, 503)["message"] == "too many posts wait already; try again"
        assert answer.headers["Retry-After"] == "2"
    assert program.post(losses(1, 1.0)).json()["stored_through"] == 1


def test_a_post_has_a_bounded_number_of_catalogues(client: httpx.Client) -> None:
    program = Program(client)
    error = error_of(program.post(*[CATALOGUE] * (MAX_CATALOGUES + 1)), 422)
    assert (error["field"], error["allowed"]) == (f"frames.{MAX_CATALOGUES}.kind", "at most 16 catalogues in a body")
    assert program.post(*[CATALOGUE] * MAX_CATALOGUES).status_code == 200


def test_two_thousand_metrics_leave_room_for_recorded_scalars(client: httpx.Client) -> None:
    program = Program(client)
    for first in (0, 1000):
        assert program.post(MetricsMessage([1], {f"m{i}": [1.0] for i in range(first, first + 995)})).status_code == 200
    scalars = CatalogueMessage([SeriesSpec(f"s{i}", SCALARS, 1, "", "") for i in range(15)])
    assert program.post(scalars).status_code == 200


def test_a_late_truncation_has_the_run_judged_and_compacted_again(client: httpx.Client, app: FastAPI) -> None:
    program = Program(client)
    program.post(CATALOGUE, losses(1, 1.0, 2.0), EndMessage("failed", "an exception"))
    database: Database = app.state.database
    with database.write() as session:
        run = session.get_one(Run, program.run_id)
        run.compacted_at = run.judged_at = 1.0
    assert program.post(TruncateMessage(1, "back")).json()["stored_through"] == 1
    with database.read() as session:
        run = session.get_one(Run, program.run_id)
        assert (run.status, run.compacted_at, run.judged_at) == ("failed", None, None)
