"""Every error response has the same structure and names the field and the allowed values. No input causes a 500."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from server.errors import CODES
from server.http.refusals import MAX_BODY_BYTES
from stablessm_core.spec.config import RunConfig
from tests.server.http_service import BODY, application, client_of, error_of

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def app(sqlite_url: str, tmp_path: Path) -> FastAPI:
    return application(sqlite_url, tmp_path)


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with client_of(app) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "field", "allowed"),
    [
        ('{"task": {"name": "digits"}, "typo": 1}', "typo", None),
        ('{"task": {"name": "digits", "length": 3}}', "task.length", None),
        ("{}", "task", None),
        ('{"task": {"name": "sudoku"}}', "task.name", "polynomial_memory"),
        ('{"task": {"name": "digits"}, "train": {"steps": -1}}', "train.steps", ">= 1"),
        ('{"task": {"name": "digits"}, "train": {"steps": "100"}}', "train.steps", None),
        ('{"task": {"name": "digits"}, "train": {"steps": 1e30}}', "train.steps", None),
        ('{"task": {"name": "digits"}, "train": {"steps": 99999999999999999999999}}', "train.steps", "<= 10000000"),
        ('{"task": {"name": "digits"}, "model": {"d_state": 100000}}', "model.d_state", "<= 65536"),
        ('{"task": {"name": "digits"}, "optimizer": {"lr": NaN}}', "optimizer.lr", None),
        ('{"task": {"name": "digits"}, "optimizer": {"lr": 1e400}}', "optimizer.lr", None),
        ('{"task": {"name": "digits"}, "optimizer": {"lr": -Infinity}}', "optimizer.lr", None),
        (
            '{"task": {"name": "digits"}, "model": {"reparameterization": {"name": "tanh", "time": "continuous"}}}',
            "model.reparameterization.time",
            "tanh (discrete)",
        ),
        ('{"task": {"name": "digits"}, "train": {"batch_size": 65536}, "model": {"d_model": 8192}}', "train.batch_size", "<="),
        ('{"task": {"name": "digits"}, "name": "a\\u0000b"}', "name", None),
        ('{"task": {"name": "char_lm", "file": "../../etc/passwd"}}', "task.file", None),
        ("[1, 2]", "body", None),
        ("null", "body", None),
        ("{not json", "body", None),
        ("", "body", None),
    ],
)
def test_a_bad_configuration_names_the_field_and_what_is_allowed(
    client: httpx.Client, body: str, field: str, allowed: str | None
) -> None:
    error = error_of(client.post("/api/runs", content=body, headers=JSON), 422)
    assert error["field"] == field, error
    assert allowed is None or allowed in error["allowed"]


def test_an_unknown_field_of_a_body_is_refused_with_the_known_fields_of_the_body(app: FastAPI, client: httpx.Client) -> None:
    bodies = [route for route in app.state.routes if getattr(route, "body_field", None) and route.path.startswith("/api/")]
    assert {"/api/runs", "/api/runs/{run_id}", "/api/sweeps", "/api/queues/{name}"} <= {route.path for route in bodies}
    for route in bodies:
        annotation = route.body_field.field_info.annotation
        model = next(part for part in (*get_args(annotation), annotation) if hasattr(part, "model_fields"))
        body = model.model_config["json_schema_extra"]["examples"][0] | {"colour": "red"}
        path = re.sub(r"{\w+}", "1", route.path.replace("{action}", "hide"))
        error = error_of(client.request(min(route.methods), path, json=body), 422)
        assert (error["field"], error["allowed"]) == ("colour", ", ".join(model.model_fields)), route.path


@pytest.mark.parametrize("section", ["model.reparameterization", "optimizer", "train", "telemetry", "alerts", "task"])
def test_an_unknown_field_of_a_section_is_refused_with_the_known_fields_of_the_section(
    client: httpx.Client, section: str
) -> None:
    body: dict[str, Any] = {"task": {"name": "digits"}}
    place, model = body, RunConfig.model_validate(body)
    for name in section.split("."):
        place, model = place.setdefault(name, {}), getattr(model, name)
    place["colour"] = 1
    for error in (
        error_of(client.post("/api/runs", json=body), 422),
        error_of(client.post("/api/sweeps", json={"base": body, "grid": {"train.seed": [0]}}), 422),
    ):
        assert (error["field"], error["allowed"]) == (f"{section}.colour", ", ".join(type(model).model_fields))


@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5", str(2**63), "9" * 30, "9" * 5000, "%00"])
@pytest.mark.parametrize("path", ["/api/runs/{}", "/api/runs/{}/series", "/api/runs/{}/stream", "/api/sweeps/{}"])
def test_an_invalid_id_is_refused(client: httpx.Client, path: str, number: str) -> None:
    error = error_of(client.get(path.format(number)), 422)
    assert error["field"] in ("run_id", "sweep_id")


@pytest.mark.parametrize(
    "path",
    ["/api/runs/77", f"/api/runs/{2**63 - 1}", "/api/runs/77/series", "/api/runs/77/series/train/loss", "/api/runs/77/alerts",
     "/api/runs/77/stream", "/api/runs/77/figures/loss", "/api/sweeps/77", "/api/compare?runs=77", "/api/nothing"],
)  # fmt: skip
def test_an_unknown_resource_gives_404(client: httpx.Client, path: str) -> None:
    error = error_of(client.get(path), 404)
    assert error["code"] == "not_found"
    assert "field" in error or path == "/api/nothing"


def test_an_unknown_method_is_refused_with_the_allowed_methods(client: httpx.Client) -> None:
    answer = client.put("/api/runs/1", json={})
    assert error_of(answer, 405)["allowed"] == answer.headers["Allow"] == "DELETE, GET, PATCH"
    assert error_of(client.delete("/api/runs"), 405)["allowed"] == "GET, POST"


def test_a_body_that_is_not_json_is_refused(client: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        error = error_of(client.post("/api/runs", content=b'{"task": {"name": "digits"}}', headers={"Content-Type": kind}), 415)
        assert error["allowed"] == "application/json"


def test_a_body_that_is_too_large_is_refused_with_or_without_a_declared_length(client: httpx.Client) -> None:
    error = error_of(client.post("/api/runs", content=b" " * (MAX_BODY_BYTES + 1), headers=JSON), 413)
    assert f"{MAX_BODY_BYTES:,}" in error["allowed"]
    error_of(client.post("/api/runs", content=b"{}", headers={**JSON, "Content-Length": "9" * 30}), 413)


def test_a_deeply_nested_body_is_refused(client: httpx.Client) -> None:
    answer = client.post("/api/runs", content=b'{"task":' * 20_000 + b"1" + b"}" * 20_000, headers=JSON)
    assert error_of(answer, answer.status_code)["code"] in ("bad_request", "invalid")


def test_errors_of_pages_are_pages_and_errors_of_the_api_are_json(client: httpx.Client) -> None:
    browser = {"Accept": "text/html"}
    page = client.get("/runs/77", headers=browser)
    assert page.status_code == 404
    assert "there is no run 77" in page.text
    assert client.get("/nope", headers=browser).headers["Content-Type"].startswith("text/html")
    assert "text/html" in client.get("/runs/x", headers=browser).headers["Content-Type"]
    error_of(client.get("/runs/77"), 404)
    error_of(client.get("/api/nope", headers=browser), 404)


def test_names_are_escaped_on_every_page(client: httpx.Client) -> None:
    hostile = "<script>alert(1)</script>"
    client.post("/api/runs", json=BODY | {"name": hostile, "tags": [hostile]})
    for path in ("/", "/runs/1", "/compare?runs=1", "/new?clone=1", f"/?q={hostile}", f"/?tag={hostile}", f"/{hostile}"):
        assert hostile not in client.get(path, headers={"Accept": "text/html"}).text, path


def test_an_unexpected_error_is_logged_but_its_response_reveals_no_internals(
    app: FastAPI, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    app.state.broadcaster.viewers = "broken"  # the next comparison with a number fails inside the handler
    client.post("/api/runs", json=BODY)
    with caplog.at_level(logging.ERROR, "stablessm.server"):
        error = error_of(client.get("/api/runs/1/stream"), 500)
    assert error["code"] == "internal"
    assert "TypeError" not in error["message"]
    assert "TypeError" in caplog.text


def test_an_unreachable_database_gives_503(tmp_path: Path) -> None:
    app = application("postgresql+psycopg://127.0.0.1:1/none", tmp_path)
    with client_of(app) as client:
        answer = client.get("/api/runs")
        assert error_of(answer, 503)["code"] == "unavailable"
        assert answer.headers["Retry-After"] == "2"
        assert client.get("/healthz").status_code == 200
        error_of(client.get("/readyz"), 503)


def test_an_unmigrated_database_is_not_ready(tmp_path: Path) -> None:
    with client_of(application(f"sqlite:///{tmp_path}/empty.db", tmp_path)) as client:
        error_of(client.get("/readyz"), 503)


def test_every_error_code_is_in_the_openapi_document(app: FastAPI) -> None:
    text = app.openapi()["components"]["schemas"]["ErrorDetail"]["properties"]["code"]["description"]
    assert all(code in text for code in CODES.values())


NAMES = ("task", "name", "model", "train", "steps", "optimizer", "lr", "tags", "d_state", "base", "grid", "set", "x")
QUERY = ["q", "status", "tag", "sort", "cursor", "limit", "group_by", "runs", "since", "series", "after", "eigenvalues"]
anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(body=anything, path=st.sampled_from(["/api/runs", "/api/sweeps", "/api/runs/1/clone"]))
def test_no_json_body_causes_a_500(client: httpx.Client, body: object, path: str) -> None:
    answer = client.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert answer.status_code in (201, 404, 422), answer.text
    if answer.status_code != 201:
        error_of(answer, answer.status_code)


@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    name=st.sampled_from(QUERY),
    value=st.text(max_size=30) | st.integers().map(str) | st.floats().map(str),
    path=st.sampled_from(["/api/runs", "/api/compare", "/api/alerts", "/", "/compare"]),
)
def test_no_query_parameter_causes_a_500(client: httpx.Client, name: str, value: str, path: str) -> None:
    answer = client.get(path, params={name: value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")})
    assert answer.status_code in (200, 404, 422), answer.text
