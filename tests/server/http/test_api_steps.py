"""GET /api/runs/{id}/steps returns the factors of relative steps, computed from the recorded numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.series import LR, SCALARS, TRAIN_LOSS, SeriesSpec, layer_group, scalar
from tests.server.http_service import application, client_of
from tests.server.recording import Recording, claimed, run_of
from tests.server.storing import store_flush

pytestmark = pytest.mark.slow

LENGTH = 100


class WithRates(Recording):
    @property
    def catalogue(self) -> list[SeriesSpec]:
        return [scalar(TRAIN_LOSS), scalar(LR), *super().catalogue[1:]]


@pytest.fixture
def client(sqlite: object, tmp_path: Path) -> Iterator[httpx.Client]:
    changes = {"reparameterization__name": "direct", "d_state": 2}
    claim = claimed(sqlite, **{f"model__{k}": v for k, v in changes.items()}, optimizer__lr=0.1, optimizer__recurrent_lr=0.05)  # type: ignore[arg-type]
    recording = WithRates(sqlite, claim, width=2)  # type: ignore[arg-type]
    weight = np.array([[0.99, 1.1, 1.2], [0.5, 0.45, 0.45]], np.float32)
    ratio = np.array([[2.2, 0.0, 0.1], [1.0, 0.0, np.nan]], np.float32)
    scalars = np.array([[1.0, 0.5, 0.4], [0.1, 0.1, 0.1]], np.float32)
    blocks = [Block(SCALARS, 0, 1, 1, scalars), Block(layer_group(0), 0, 1, 1, np.concatenate([ratio, weight]))]
    with recording.database.write() as session:
        store_flush(session, claim.run_id, claim.attempt, blocks, [], 3, None, {"nearest_distance": -np.inf})
    assert run_of(recording.database, 1).step == 3
    with client_of(application(recording.database.url, tmp_path)) as client:
        yield client


def test_a_relative_step_is_split_into_map_rate_gradient_and_optimizer(client: httpx.Client) -> None:
    answer = client.get("/api/runs/1/steps", params={"step": 1, "to_step": 3, "eigenvalues": "0,1"})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["step"] == [1, 2]  # the newest step has no successor yet
    assert body["form"]["length"] == LENGTH
    assert body["eigenvalues"] == [0, 1]
    assert body["relative_step"][0] == pytest.approx([11.0, 0.1], rel=1e-5)
    assert body["relative_step"][1] == ["NaN", pytest.approx(0, abs=1e-6)]  # the eigenvalue was outside before the step
    assert body["slope"][0] == pytest.approx([100, 2], rel=1e-5)
    assert body["weight_step"][0] == pytest.approx([0.11, 0.05], rel=1e-5)
    assert body["lr"][0] == pytest.approx([0.05, 0.05])  # the learning rate of the recurrent weights
    assert body["gradient"][0] == pytest.approx([2.178, 0.5], rel=1e-5)
    assert body["normalisation"][0] == pytest.approx([0.11 / 0.05 / 2.178, 2.0], rel=1e-4)
    assert body["normalisation"][1] == ["NaN", "NaN"]
    assert body["overflow_budget"][1][0] == pytest.approx(LENGTH * np.log(np.float32(1.1)) / 88.7228, rel=1e-5)


def test_the_default_eigenvalues_are_those_that_moved_most_and_invalid_queries_are_refused(client: httpx.Client) -> None:
    assert client.get("/api/runs/1/steps", params={"step": 1}).json()["eigenvalues"] == [0, 1]
    assert client.get("/api/runs/1/steps", params={"step": 3}).json()["step"] == []
    refused = [
        ({"step": 1, "to_step": 5000}, 422, "to_step"),
        ({"step": 1, "eigenvalues": "7"}, 422, "eigenvalues"),
        ({"step": 1, "layer": 3}, 422, "layer"),
    ]
    for query, status, field in refused:
        answer = client.get("/api/runs/1/steps", params=query)
        assert (answer.status_code, answer.json()["error"]["field"]) == (status, field), answer.text


def test_an_infinite_extreme_is_a_string_in_the_response(client: httpx.Client) -> None:
    assert client.get("/api/runs/1").json()["nearest_distance"] == "-Infinity"
    assert client.get("/api/runs").json()["runs"][0]["nearest_distance"] == "-Infinity"
