"""A layer's records are listed and read by id; the error for an unknown id names it. Reading the gate of an eigenvalue returns
the gate that it shares with others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from server.database.connection import Database
from server.series import overview
from tests.server.http_service import application, client_of, error_of
from tests.server.mixed import RECORDS, mixed_run

pytestmark = pytest.mark.slow


@pytest.fixture
def truth(sqlite: Database) -> dict[str, np.ndarray]:
    return mixed_run(sqlite)


@pytest.fixture
def client(sqlite: Database, truth: dict[str, np.ndarray], tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        yield client


def values(client: httpx.Client, name: str, **params: Any) -> np.ndarray:
    answer = client.get(f"/api/runs/1/series/{name}", params=params).raise_for_status().json()
    return np.array([[float(v) for v in np.atleast_1d(row)] for row in answer["value"]], np.float32)


def test_the_catalogue_lists_every_record_with_its_layer_and_form(client: httpx.Client) -> None:
    records = client.get("/api/runs/1/series").json()["records"]
    assert [(r["id"], r["layer"], r["name"], r["eigenvalues"], r["gates"]) for r in records] == [
        ("0", 0, "rg_lru", 8, 4), ("0.dt_bias", 0, "rg_lru", 4, None), ("1", 1, "s4d", 6, None), ("2", 2, "lru", 4, None),
        ("3", 3, "rwkv4", 4, 2),
    ]  # fmt: skip
    assert [r["form"]["map"] for r in records] == ["exp", "none", "exp", "fixed", "gate"]
    assert "gradient" in records[0]["kinds"]
    assert "grad_over_weight" not in records[3]["kinds"]
    assert "true_eigenvalue" in records[2]["kinds"]


def test_the_records_of_a_queued_run_follow_from_its_configuration(client: httpx.Client) -> None:
    client.post("/api/runs", json={"task": {"name": "polynomial_memory"}, "model": {"layers": ["lru", "rwkv4"], "d_model": 8}})
    answer = client.get("/api/runs/2/series").json()
    assert answer["series"] == []
    assert [(r["id"], r["name"], r["kinds"]) for r in answer["records"]] == [("0", "lru", []), ("1", "rwkv4", [])]


def test_an_eigenvalue_s_gate_and_step_size_are_those_of_its_shared_gate(
    client: httpx.Client, truth: dict[str, np.ndarray]
) -> None:
    gates = values(client, "ssm/0/gate_mean", eigenvalues="0,1,2,7")
    np.testing.assert_array_equal(gates, truth["ssm/0/gate_mean"][:, [0, 0, 1, 3]])
    steps = values(client, "ssm/1/dt", eigenvalues="2-3")
    np.testing.assert_array_equal(steps, truth["ssm/1/dt"][:, [0, 1]])
    answer = client.get("/api/runs/1/series/ssm/0/gate_mean?eigenvalues=7").json()
    assert (answer["width"], answer["eigenvalues"]) == (1, [7])
    text = client.get("/api/runs/1/series/ssm/0/gate_mean?eigenvalues=1,7&format=csv&download=true").text
    assert text.partition("\n")[0] == "step,value_1,value_7"
    assert error_of(client.get("/api/runs/1/series/ssm/0/gate_mean?eigenvalues=8"), 422)["allowed"].startswith("0 to 7")


def test_the_overview_returns_the_shared_gates_of_the_chosen_eigenvalues(
    client: httpx.Client, truth: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    body = client.get("/api/runs/1/overview?part=layer&points=10&eigenvalues=1,6,7&top=0").content
    size = int.from_bytes(body[:4], "little")
    head, data = json.loads(body[4 : 4 + size]), body[4 + size :]
    one = head["series"]["ssm/0/gate_mean"]
    assert (head["lines"], one["drawn"]) == ([1, 6, 7], [0, 3])
    dtype, at, length = one["arrays"]["lines"]
    lines = np.frombuffer(data, f"<{dtype}", length, at).reshape(2, -1)
    np.testing.assert_array_equal(lines[:, -1], truth["ssm/0/gate_mean"][-1, [0, 3]])


@pytest.mark.parametrize("id_", RECORDS)
def test_every_record_has_an_overview_and_a_figure(client: httpx.Client, id_: str) -> None:
    body = client.get(f"/api/runs/1/overview?part=layer&layer={id_}").raise_for_status().content
    head = json.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])
    assert (head["layer"], head["record"]) == (int(id_[0]), id_)
    assert {name.split("/")[1] for name in head["series"]} == {id_}
    figure = client.get(f"/api/runs/1/figures/weight?layer={id_}").raise_for_status().json()
    assert any(trace["meta"].get("series") and trace["x"] for trace in figure["data"])


@pytest.mark.parametrize("id_", ["4", "0.nothing", "abc", "0/../1", "-1", ""])
@pytest.mark.parametrize("path", ["overview?part=layer", "figures/weight?", "steps?step=1"])
def test_an_unknown_record_is_refused_with_the_known_records(client: httpx.Client, path: str, id_: str) -> None:
    error = error_of(client.get(f"/api/runs/1/{path}&layer={id_}"), 422)
    assert error["field"] == "layer"
    assert id_ == "" or error["allowed"] == "0, 0.dt_bias, 1, 2, 3"


@pytest.mark.parametrize(("id_", "why"), [("2", "not trained"), ("3", "of every step"), ("0.dt_bias", "without an eigenvalue")])
def test_the_theory_api_explains_why_it_cannot_show_a_record(client: httpx.Client, id_: str, why: str) -> None:
    error = error_of(client.get(f"/api/theory?run=1&layer={id_}"), 422)
    assert (error["field"], error["allowed"]) == ("layer", "one of the layers 0, 1")
    assert why in error["message"]


def test_the_theory_api_shows_the_weights_of_records_with_a_map(client: httpx.Client, truth: dict[str, np.ndarray]) -> None:
    for id_, memory in (("0", True), ("1", False)):
        answer = client.get(f"/api/theory?run=1&layer={id_}").raise_for_status().json()
        assert (answer["layer"], answer["record"], answer["map"]) == (int(id_), id_, "exp")
        names = [trace["name"] for trace in answer["figures"]["theory_memory"]["data"]]
        assert any(name.startswith("best of") for name in names) == memory, (
            "only a layer with real eigenvalues has a memory curve"
        )
