"""The API lists every layer with its maps, its eigenvalues and a run that can be submitted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.http.schemas.systems import EXAMPLE, SystemAnswer
from stablessm_core.spec.layers import LAYERS
from stablessm_core.theory import systems as of_layers
from tests.server.http_service import application, client_of

pytestmark = [pytest.mark.spread, pytest.mark.slow]


@pytest.fixture
def client(sqlite_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite_url, tmp_path)) as client:
        yield client


@pytest.fixture
def found(client: httpx.Client) -> dict[str, dict[str, Any]]:
    answer = client.get("/api/systems").json()
    assert answer["d_model"] == 64
    return {one["name"]: one for one in answer["systems"]}


def test_every_layer_is_described(found: dict[str, dict[str, Any]]) -> None:
    assert list(found) == list(LAYERS)
    SystemAnswer.model_validate(EXAMPLE)
    for name, one in found.items():
        assert bool(one["native"]) == bool(one["maps"]) == (one["given_by"] == "weight"), name
        assert one["native"] is None or one["native"]["name"] in {map_["name"] for map_ in one["maps"]}, name
        assert one["parameters"] > one["eigenvalues"] / 2, name


def test_the_small_example_run_of_every_layer_is_accepted(client: httpx.Client, found: dict[str, dict[str, Any]]) -> None:
    for name, one in found.items():
        answer = client.post("/api/runs", json=one["run"])
        assert answer.status_code == 201, (name, answer.text[:300])


def test_initial_eigenvalues_are_inside_the_unit_disc_and_complex_eigenvalues_have_phases(
    found: dict[str, dict[str, Any]],
) -> None:
    for name, one in found.items():
        start = one["start"]
        assert start is not None, f"{name}: run `python docs/initial_eigenvalues.py`"
        assert 0 <= start["nearest"] <= min(start["distance"]) <= max(start["distance"]) <= start["farthest"] <= 1, name
        assert start["phase"] is None or len(start["phase"]) == len(start["distance"]), name
    assert found["s4d"]["start"]["phase"]
    assert found["mamba"]["start"]["phase"] is None


def test_best_has_a_constant_ratio_and_a_zero_weight_has_an_infinite_ratio(found: dict[str, dict[str, Any]]) -> None:
    for one in found.values():
        for ratio in one["gradient_over_weight"]:
            if ratio["map"] == "best":
                assert (ratio["min"], ratio["max"], ratio["finite"]) == (2.0, 2.0, ratio["total"])
    exp = found["mamba"]["gradient_over_weight"][0]
    assert exp["map"] == "exp"
    assert 0 < exp["finite"] < exp["total"]  # A_log of the first state is 0


def test_a_layer_without_stored_initial_eigenvalues_has_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_layers, "_initial_eigenvalues", lambda: {"d_model": 64, "layers": {}})
    of_layers.systems.cache_clear()
    try:
        for one in of_layers.systems():
            assert one["start"] is None
            assert one["gradient_over_weight"] == []
            SystemAnswer.model_validate(one)
    finally:
        of_layers.systems.cache_clear()
