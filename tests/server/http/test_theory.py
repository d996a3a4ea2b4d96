"""The theory page and its JSON twin: curves for given constants, the weights of a stored run, and errors by field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from server.database.connection import Database
from stablessm_core.telemetry.typed_arrays import decode
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claim

pytestmark = pytest.mark.slow

CHARTS = ["theory_map", "theory_relative_slope", "theory_gradient_scale", "theory_gradient_over_weight", "theory_memory"]


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        client.post("/api/runs", json=BODY | {"train": {"steps": 100}})
        Recording(sqlite, claim(sqlite), width=4).write(30)
        yield client


def trace(answer: httpx.Response, chart: str, name: str) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text[:300]
    found = {one["name"]: one for one in answer.json()["figures"][chart]["data"]}
    assert name in found, list(found)
    return found[name]


def test_every_theory_chart_exists_in_discrete_and_continuous_time(client: httpx.Client) -> None:
    for time in ("discrete", "continuous"):
        answer = client.get("/api/theory", params={"time": time}).json()
        assert list(answer["figures"]) == CHARTS
        assert (answer["time"], answer["a"], answer["b"], answer["run"]) == (time, 1.0, 0.5, None)
        assert all(figure["data"] for figure in answer["figures"].values())


def test_the_constants_change_only_the_curves_of_the_map_best(client: httpx.Client) -> None:
    before, after = (client.get("/api/theory", params={"a": a}) for a in (1, 4))
    for chart in ("theory_gradient_over_weight", "theory_gradient_scale"):
        assert trace(before, chart, "exp")["y"] == trace(after, chart, "exp")["y"]
    ratio = decode(trace(after, "theory_gradient_over_weight", "best")["y"])
    np.testing.assert_allclose(ratio, 8.0, rtol=1e-5)


def test_a_stored_runs_weights_lie_on_the_curve_of_its_map(client: httpx.Client) -> None:
    answer = client.get("/api/theory", params={"run": 1, "step": 30})
    weights = client.get("/api/runs/1/series/ssm/0/weight", params={"from_step": 30, "to_step": 30}).json()["value"][0]
    points = trace(answer, "theory_map", "the run's weights")
    np.testing.assert_allclose(decode(points["x"]), weights, rtol=1e-6)
    w = np.array(weights)
    np.testing.assert_allclose(decode(points["y"]), 1 - 1 / (w * w + 0.5), rtol=1e-5)
    assert any(one["name"].startswith("best of run 1, layer 0") for one in answer.json()["figures"]["theory_memory"]["data"])
    assert (answer.json()["step"], answer.json()["map"]) == (30, "best")


@pytest.mark.parametrize(
    ("asked", "field", "allowed"),
    [
        ({"run": 1, "step": 31}, "step", "1 to 30"),
        ({"run": 1, "layer": 3}, "layer", "0"),
        ({"b": 0.2}, "b", ">= 0.5"),
        ({"a": "NaN"}, "a", ""),
        ({"run": 99}, None, ""),
    ],
)
def test_an_invalid_theory_query_is_refused_by_field_in_the_api_and_on_the_page(
    client: httpx.Client, asked: dict[str, Any], field: str | None, allowed: str
) -> None:
    answer = client.get("/api/theory", params=asked)
    error = error_of(answer, 404 if asked.get("run") == 99 else 422)
    assert field is None or error["field"] == field
    assert allowed in (error.get("allowed") or "")
    page = client.get("/theory", params=asked, headers={"Accept": "text/html"})
    assert page.status_code == 422
    if field != "a":  # a value that is not a number is refused on a separate error page
        assert "theory_map" in page.text
        assert (error.get("allowed") or "").replace(">", "&gt;") in page.text


def test_only_the_requested_curves_are_drawn_with_all_points_of_the_run(client: httpx.Client) -> None:
    figure = client.get("/api/theory/figures/theory_gradient_scale?run=1&maps=exp").json()
    names = [trace["name"] for trace in figure["data"]]
    assert names == ["exp", "the run's weights"]
    everything = client.get("/api/theory/figures/theory_gradient_scale?run=1").json()["data"]
    assert [trace for trace in everything if trace["name"] in names] == figure["data"]
    error = error_of(client.get("/api/theory/figures/theory_map?maps=exp,nosuch"), 422)
    assert error["field"] == "maps"
    assert "softplus" in error["allowed"]


def test_a_form_sent_without_scripts_may_leave_fields_empty(client: httpx.Client) -> None:
    page = client.get("/theory?time=continuous&a=2&b=1&run=&layer=0&step=")
    assert page.status_code == 200
