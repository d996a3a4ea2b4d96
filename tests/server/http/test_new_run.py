"""The form for a new run without scripts: presets, JSON, ranges, and every error beside its field."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from server.database.connection import Database
from server.lifecycle.presets import PRESETS
from server.lifecycle.sweep_submission import expand
from stablessm_core.spec.axis_values import axis_values
from stablessm_core.spec.config import parse_config
from tests.server.http_service import application, client_of, error_of

pytestmark = [pytest.mark.spread, pytest.mark.slow]


class Form(HTMLParser):
    """The fields that a browser without scripts would send."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.select = self.text = ""
        self.feed(page[page.index("<form") :])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        name = of.get("name") or ""
        if tag == "input" and name and (of.get("type") != "checkbox" or "checked" in of):
            self.fields[name] = of.get("value") or ""
        elif tag == "select":
            self.select = name
        elif tag == "option" and self.select and ("selected" in of or self.select not in self.fields):
            self.fields[self.select] = of.get("value") or ""
            self.text = self.select if "value" not in of else ""

    def handle_data(self, data: str) -> None:
        if self.text:
            self.fields[self.text], self.text = data, ""

    def handle_endtag(self, tag: str) -> None:
        self.select = "" if tag == "select" else self.select


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        client.headers["Accept"] = "text/html"
        yield client


def sent(client: httpx.Client, path: str = "/new", **changes: str) -> httpx.Response:
    return client.post("/new", data=Form(client.get(path).text).fields | changes)


def errors_of(page: str) -> dict[str, str]:
    found = re.findall(r'data-error-for="([^"]+)" role="alert">([^<]+)<', page)
    return {field: html.unescape(message) for field, message in found}


def problems_of(page: str) -> str:
    """The list of all problems above the form."""
    return re.sub(r"<[^>]+>", " ", page[page.index("data-problems") :].partition("</ul>")[0])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_posted_without_scripts_queues_exactly_its_runs(client: httpx.Client, name: str) -> None:
    preset = PRESETS[name]
    answer = sent(client, f"/new?preset={name}")
    assert answer.status_code == 303, problems_of(answer.text)
    expected = [config for _, config in expand(preset.base, preset.grid)] if preset.grid else [parse_config(preset.base)]
    runs = client.get("/api/runs?sort=id").json()["runs"]
    for config, run in zip(expected, runs, strict=True):
        of_run = parse_config(run["config"])
        assert of_run.model_copy(update={"name": None}) == config.model_copy(update={"name": None})


def test_a_clone_posted_without_scripts_repeats_the_configuration(client: httpx.Client) -> None:
    body = {"task": {"name": "digits"}, "model": {"layer": {"name": "hyena", "inner": {"name": "s4d", "d_state": 6}}}}
    rules = [{"name": "val, x/loss", "condition": "> 5", "steps": 9}, {"name": "a", "condition": "nonfinite", "steps": 1}]
    client.post("/api/runs", json=body | {"alerts": {"max_grad_over_weight": None, "rules": rules}}).raise_for_status()
    answer = sent(client, "/new?clone=1")
    assert answer.status_code == 303, problems_of(answer.text)
    first, second = (client.get(f"/api/runs/{number}").json()["config"] for number in (1, 2))
    assert first == second
    assert second["alerts"]["rules"] == rules


def test_pooled_images_and_a_bare_model_are_read_from_the_form(client: httpx.Client) -> None:
    body = {"task": {"name": "mnist", "pool": 2, "subset": 100, "split": "pooled"}, "model": {"block": "bare"}}
    filled = client.post("/new", data={"json": json.dumps(body), "fill": "json"})
    fields = Form(filled.text).fields
    assert fields["mnist-task.pool:integer"] == "2"
    refused = client.post("/new", data=fields)
    assert refused.status_code == 422
    assert list(errors_of(refused.text)) == ["task.name"], "nothing is wrong but that this server has no MNIST"
    assert client.get("/api/runs?q=task.pool%3D2 task.split%3Dpooled model.block%3Dbare").json()["runs"] == []


def test_every_wrong_field_is_named_at_once_and_the_given_values_are_kept(client: httpx.Client) -> None:
    evil = "<script>alert(1)</script>"
    wrong = {"train.steps:integer": "-3", "optimizer.lr:number": "fast", "name:string": evil, "grid.train.seed": "0-2, x"}
    answer = sent(client, **wrong, **{"place.priority:integer": "9999"})
    assert answer.status_code == 422
    assert {"train.steps", "optimizer.lr", "grid.train.seed", "priority"} <= set(errors_of(answer.text))
    assert 'value="-3"' in answer.text
    assert 'value="0-2, x"' in answer.text
    assert evil not in answer.text
    assert html.escape(evil) in answer.text.replace("&#34;", '"')
    assert client.get("/api/runs").json()["runs"] == []
    body = {
        "base": {"task": {"name": "digits"}, "train": {"steps": -3, "batch_size": 0}},
        "grid": {"optimizer.lr": [0.1, -1, "x"]},
    }
    checked = client.post("/new/check", json=body).json()["problems"]
    assert {problem["field"] for problem in checked} == {"train.steps", "train.batch_size", "grid.optimizer.lr"}


def test_json_fills_in_the_form(client: httpx.Client) -> None:
    sweep = '{"base": {"task": {"name": "digits"}, "train": {"steps": 7}}, "grid": {"model.d_model": [8, 16]}}'
    page = client.post("/new", data={"json": sweep, "fill": "json"})
    assert page.status_code == 200
    fields = Form(page.text).fields
    assert (fields["task.name:string"], fields["train.steps:integer"], fields["grid.model.d_model"]) == ("digits", "7", "8, 16")
    for text, said in (("{", "not JSON"), ("[1]", "neither"), ('{"base": {}, "grid": {"train.seed": 3}}', "not a list")):
        refused = client.post("/new", data={"json": text, "fill": "json"})
        assert refused.status_code == 422
        assert said in errors_of(refused.text)["json"]
    unknown = client.post("/new", data={"json": '{"task": {"name": "digits"}, "trian": {}}', "fill": "json"})
    assert "trian" in unknown.text
    assert error_of(client.get("/new?preset=digit", headers={"Accept": "application/json"}), 422)["field"] == "preset"


def test_the_form_gives_a_run_its_project_and_a_clone_the_project_of_its_original(client: httpx.Client) -> None:
    fields = Form(client.get("/new").text).fields
    given = fields | {"place.project:string": " hybrid ", "model.reparameterization.name:string": "best"}
    made = client.post("/new", data=given, follow_redirects=False)
    assert made.status_code == 303, errors_of(made.text)
    run = made.headers["location"].rsplit("/", 1)[1]
    assert client.get(f"/api/runs/{run}").json()["project"] == "hybrid"
    clone = client.get(f"/new?clone={run}").text
    assert Form(clone).fields["place.project:string"] == "hybrid"
    assert '<option value="hybrid"></option>' in clone
    refused = client.post("/new", data=given | {"place.project:string": "x" * 201})
    assert refused.status_code == 422
    assert "200" in errors_of(refused.text)["project"]
    filled = client.post("/new", data={"json": '{"task": {"name": "digits"}, "project": "pasted"}', "fill": "json"})
    assert (filled.status_code, Form(filled.text).fields["place.project:string"]) == (200, "pasted")
    sent = {"task": {"name": "digits"}, "train": {"steps": 0}, "project": "p"}
    assert [p["field"] for p in client.post("/new/check", json=sent).json()["problems"]] == ["train.steps"]


def test_ranges_of_an_axis_are_expanded() -> None:
    assert axis_values("0-4") == axis_values("0..4") == [0, 1, 2, 3, 4]
    assert axis_values("1e-4..1e-1 log 4") == [1e-4, 1e-3, 1e-2, 1e-1]
    assert axis_values("0..1 linear 3, 0-1, direct, null") == [0.0, 0.5, 1.0, 0, 1, "direct", None]
    assert axis_values("1e-4, -3") == [1e-4, -3]
    assert axis_values("[0.5, 0.9], true") == [[0.5, 0.9], True]
    for text in ("4-0", "0..1 log 4", "1..2 log 1", "1..2 log 99999", "0-99999999", "s4d-x"):
        assert axis_values(text) == [text]
    assert axis_values(" , ") == []
