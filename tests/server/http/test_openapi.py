"""The OpenAPI document is complete: it has every documented path, an example of every response, and the real error body."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from server.database.connection import Database
from server.errors import error_json
from server.http.schemas.compare import CompareAnswer
from server.http.schemas.runs import EXAMPLE_ALERT, AlertAnswer, ErrorAnswer, RunAnswer
from server.lifecycle.run_fields import EXAMPLE_RUN
from stablessm_core.spec.config import RunConfig
from tests.server.http_service import application, client_of
from tests.server.recording import Recording, claimed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
CONTRACT = {
    "/api/ingest/runs": "post",
    "/api/ingest/runs/{run_id}/records": "post",
    "/api/ingest/runs/{id}/compare": "post",
    "/api/runs": "get post",
    "/api/runs/{run_id}": "get patch delete",
    "/api/runs/{run_id}/restore": "post",
    "/api/bulk/{action}": "post",
    "/api/fields": "get",
    "/api/sparks": "get",
    "/api/views": "get post",
    "/api/views/{view_id}": "delete",
    "/api/trash": "get",
    "/api/trash/{run_id}": "delete",
    "/api/runs/{run_id}/cancel": "post",
    "/api/runs/{run_id}/resume": "post",
    "/api/runs/{run_id}/clone": "post",
    "/api/runs/{run_id}/fork": "post",
    "/api/runs/{run_id}/forks": "get",
    "/api/runs/{run_id}/siblings": "get",
    "/api/runs/{run_id}/series": "get",
    "/api/runs/{run_id}/series/{name}": "get",
    "/api/runs/{run_id}/metrics": "get",
    "/api/runs/{run_id}/overview": "get",
    "/api/runs/{run_id}/steps": "get",
    "/api/figures": "get",
    "/api/theory": "get",
    "/api/paper": "get",
    "/api/paper/reports/{report}": "get",
    "/api/paper/reports/{report}/figures/{number}": "get",
    "/api/systems": "get",
    "/api/runs/{run_id}/figures/{chart}": "get",
    "/api/compare/figures/{chart}": "get",
    "/api/sweeps/{sweep_id}/figures/{chart}": "get",
    "/api/theory/figures/{chart}": "get",
    "/api/runs/{run_id}/stream": "get",
    "/api/runs/{run_id}/alerts": "get",
    "/api/runs/{run_id}/log": "get",
    "/api/runs/{run_id}/checkpoints": "get",
    "/api/runs/{run_id}/checkpoints/{step}": "get",
    "/api/runs/{run_id}/history": "get",
    "/api/runs/{run_id}/verdict": "get",
    "/api/runs/{run_id}/autopsy": "get post",
    "/api/runs/{run_id}/memory": "get",
    "/api/alerts": "get",
    "/api/queues": "get",
    "/api/queues/{name}": "get patch",
    "/api/sweeps": "get post",
    "/api/sweeps/{sweep_id}": "get patch",
    "/api/sweeps/{sweep_id}/table": "get",
    "/api/sweeps/{sweep_id}/cancel": "post",
    "/api/compare": "get",
    "/api/compare/curves": "get",
    "/api/compare/claims": "get",
    "/api/compare/table": "get",
    "/api/sweeps/{sweep_id}/grid": "get",
    "/api/exports": "get",
    "/api/imports": "post",
    "/api/me": "get patch",
    "/api/users": "get post",
    "/api/users/{user_id}": "patch",
    "/api/tokens": "get post",
    "/api/tokens/{token_id}": "delete",
    "/api/audit": "get",
    "/api/webhooks": "get post",
    "/api/webhooks/{webhook_id}": "delete",
    "/api/webhooks/{webhook_id}/enable": "post",
    "/api/webhooks/{webhook_id}/test": "post",
    "/api/silences": "get post",
    "/api/silences/{silence_id}": "delete",
    "/api/workers": "get",
    "/healthz": "get",
    "/readyz": "get",
    "/metrics": "get",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("openapi")
    return application(f"sqlite:///{folder}/x.db", folder).openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, op) for path, methods in document["paths"].items() for method, op in methods.items()]


def test_the_openapi_document_has_exactly_the_expected_endpoints(document: dict[str, Any]) -> None:
    assert {path: set(methods) for path, methods in document["paths"].items()} == {p: set(m.split()) for p, m in CONTRACT.items()}


def test_every_operation_has_a_description_and_a_unique_name(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    for path, method, operation in operations(document):
        assert operation["description"], (path, method)
        assert operation["tags"], (path, method)


def test_every_error_response_uses_the_same_schema(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        refusals = {code: answer for code, answer in operation["responses"].items() if code >= "400"}
        assert {"401", "404", "421", "422", "503"} <= set(refusals), (path, method)
        for code, answer in refusals.items():
            schema = answer["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
            assert schema == "ErrorAnswer", (path, method, code)
    assert "HTTPValidationError" not in document["components"]["schemas"]
    ErrorAnswer.model_validate(error_json(422, "text", "field", "allowed"), strict=True)


def test_every_response_has_an_example_or_a_schema(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        good = next(answer for code, answer in operation["responses"].items() if code < "300")
        if method == "delete":
            continue
        for kind, content in good["content"].items():
            described = any(content.get(part) for part in ("example", "examples", "schema"))
            assert described, (path, method, kind)


def test_every_request_body_has_an_example(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        if "application/json" not in operation.get("requestBody", {"content": {}})["content"]:
            continue  # the body is an archive, which has no example
        text = json.dumps(operation["requestBody"])
        name = text.partition("#/components/schemas/")[2].partition('"')[0]
        assert document["components"]["schemas"][name]["examples"]


def test_the_examples_are_valid_for_their_models() -> None:
    RunAnswer.model_validate(EXAMPLE_RUN)
    AlertAnswer.model_validate(EXAMPLE_ALERT)
    RunConfig.model_validate_json(json.dumps(EXAMPLE_RUN["config"]))
    CompareAnswer.model_validate(CompareAnswer.model_json_schema()["examples"][0])


def test_every_integer_parameter_declares_its_bounds(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for parameter in operation.get("parameters", []):
            schemas = [parameter["schema"], *parameter["schema"].get("anyOf", [])]
            for schema in schemas:
                if schema.get("type") == "integer":
                    assert {"minimum", "maximum"} <= set(schema), (path, method, parameter["name"])


def test_the_bearer_token_is_declared_as_security_scheme(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["security"] == [{"token": []}]
    assert document["paths"]["/healthz"]["get"]["security"] == []


def test_the_api_documentation_names_exactly_the_existing_endpoints(document: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for path, methods in CONTRACT.items():
        written = path.replace("{run_id}", "{id}").replace("{sweep_id}", "{id}")
        written = (
            written.replace("{token_id}", "{id}")
            .replace("{webhook_id}", "{id}")
            .replace("{silence_id}", "{id}")
            .replace("{user_id}", "{id}")
            .replace("{view_id}", "{id}")
        )
        for method in methods.split():
            assert f"`{method.upper()} {written}`" in text, (method, written)
    named = re.findall(r"^\| `((?:GET|POST|PATCH|DELETE) [^`]+)`", text, re.MULTILINE)
    assert len(named) == sum(len(methods.split()) for methods in CONTRACT.values())


@pytest.mark.parametrize("format", ["json", "typed"])
@pytest.mark.parametrize("chosen", ["", "&eigenvalues=0,2"])
def test_a_series_response_is_valid_for_the_openapi_document(sqlite_url: str, tmp_path: Path, format: str, chosen: str) -> None:
    database = Database(sqlite_url)
    Recording(database, claimed(database)).write(64)
    database.close()
    with client_of(application(sqlite_url, tmp_path)) as client:
        document = client.get("/openapi.json").json()
        validator = jsonschema.Draft202012Validator(
            {"$ref": "#/components/schemas/SeriesAnswer", "components": document["components"]}
        )
        for points in (1000, 5):
            answer = client.get(f"/api/runs/1/series/ssm/0/grad_over_weight?format={format}&max_points={points}{chosen}").json()
            validator.validate(answer)
            assert set(answer) <= set(document["components"]["schemas"]["SeriesAnswer"]["properties"])
