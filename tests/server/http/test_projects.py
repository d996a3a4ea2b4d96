"""Runs and sweeps belong to projects: they are submitted with one, listed and compared by it, and keep it in their copies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from server.cli.main import main
from server.database.connection import Database
from tests.server.http_service import BODY, TOKEN, application, client_of, error_of, running
from tests.server.reported import opened

pytestmark = pytest.mark.slow


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        yield client


def listed(client: httpx.Client, q: str) -> list[int]:
    return [run["id"] for run in client.get("/api/runs", params={"q": q, "sort": "id"}).json()["runs"]]


def test_a_run_gets_its_project_from_its_submission_and_its_configuration_does_not_change(client: httpx.Client) -> None:
    made = client.post("/api/runs", json=BODY | {"project": " hybrid "}).raise_for_status().json()
    plain = client.post("/api/runs", json=BODY).json()
    assert (made["project"], plain["project"]) == ("hybrid", "")
    assert (made["kind"], made["config"]) == ("trained", plain["config"])
    assert listed(client, "project=hybrid") == [made["id"]]
    assert listed(client, 'project=""') == [plain["id"]]
    assert "project" in error_of(client.post("/api/runs", json=BODY | {"project": "x" * 201}), 422)["field"]


def test_copies_of_a_run_keep_its_project_unless_they_name_another(client: httpx.Client) -> None:
    run = client.post("/api/runs", json=BODY | {"project": "hybrid"}).json()["id"]
    copies = [client.post(f"/api/runs/{run}/clone", json=body).raise_for_status().json() for body in ({}, {"project": "other"})]
    fork = client.post(f"/api/runs/{run}/fork", json={"changes": {"optimizer.lr": 0.5}}).raise_for_status().json()
    assert [one["project"] for one in (*copies, fork)] == ["hybrid", "other", "hybrid"]


def test_the_project_of_a_run_can_be_changed(client: httpx.Client, sqlite: Database) -> None:
    run, reported = client.post("/api/runs", json=BODY).json()["id"], opened(sqlite, project="old")
    for number in (run, reported):
        assert client.patch(f"/api/runs/{number}", json={"project": "new"}).json()["project"] == "new"
        assert client.patch(f"/api/runs/{number}", json={"project": None}).json()["project"] == ""


def test_a_sweep_and_its_runs_have_a_project(client: httpx.Client) -> None:
    sweep = {"base": BODY, "grid": {"train.seed": [0, 1]}, "project": "hybrid"}
    made = client.post("/api/sweeps", json=sweep).raise_for_status().json()
    client.post("/api/sweeps", json=sweep | {"project": ""}).raise_for_status()
    assert made["project"] == "hybrid"
    assert {run["project"] for run in made["runs"]} == {"hybrid"}
    found = client.get("/api/sweeps", params={"project": "hybrid"}).json()["sweeps"]
    assert [one["id"] for one in found] == [made["id"]]
    assert "project" in client.get(f"/api/sweeps/{made['id']}/table?format=csv").text.splitlines()[0].split(",")
    assert "project" not in client.get("/api/sweeps/2/table?format=csv").text.splitlines()[0].split(",")
    page = client.get("/sweeps?project=hybrid").text
    assert 'href="/sweeps/1"' in page
    assert 'href="/sweeps/2"' not in page


def test_pages_show_the_project_and_lead_to_its_runs(client: httpx.Client) -> None:
    run = client.post("/api/runs", json=BODY | {"project": 'a "b" & c'}).json()["id"]
    page = client.get(f"/runs/{run}").text
    assert "project <a" in page
    [link] = [part.split('"')[0] for part in page.split('href="') if part.startswith("/?q=project")]
    assert f'href="/runs/{run}"' in client.get(link.replace("&amp;", "&")).text
    assert f'href="/runs/{run}"' in client.get("/?columns=project,kind").text


def test_comparisons_group_by_project(client: httpx.Client) -> None:
    for project, lr in (("one", 0.1), ("one", 0.2), ("two", 0.1)):
        client.post("/api/runs", json=BODY | {"project": project, "optimizer": {"lr": lr}}).raise_for_status()
    found = client.get("/api/compare", params={"runs": "1,2,3", "group_by": "project"}).json()
    assert {group["label"]: group["runs"] for group in found["groups"]} == {"one": [1, 2], "two": [3]}


def test_a_reported_run_is_refused_where_our_workers_would_train_it(client: httpx.Client, sqlite: Database) -> None:
    run = opened(sqlite)
    actions: dict[str, Any] = {"clone": {}, "fork": {}, "resume": None, "autopsy": {"step": 1}}
    for action, body in actions.items():
        assert error_of(client.post(f"/api/runs/{run}/{action}", json=body), 409)["field"] == "kind", action
    assert client.get(f"/new?clone={run}").status_code == 409
    assert client.post("/api/bulk/clone", json={"runs": [run]}).json()["refused"][0]["run"] == run
    assert client.post(f"/api/runs/{run}/cancel").json()["cancel_requested"] is True


def test_the_command_line_submits_and_lists_by_project(sqlite: Database, tmp_path: Path) -> None:
    file, grid = tmp_path / "run.json", tmp_path / "sweep.json"
    file.write_text(json.dumps(BODY))
    grid.write_text(json.dumps({"base": BODY, "grid": {"train.seed": [0, 1]}}))
    opened(sqlite, name="theirs", config=[1], project="hybrid")
    with running(sqlite.url, tmp_path) as (address, _):
        environment = {"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}

        def run(*arguments: str) -> str:
            done = CliRunner().invoke(main, arguments, env=environment, catch_exceptions=False)
            assert done.exit_code == 0, done.output
            return done.output

        run("submit", str(file), "--project", "hybrid", "--set", "name=ours")
        run("submit", str(file), "--project", 'an "other"', "--set", "name=unlike")
        run("sweep", str(grid), "--project", "hybrid", "--name", "seeds")
        found = run("runs", "--project", "hybrid")
        assert "theirs" in found
        assert "ours" in found
        assert "unlike" not in found
        assert "unlike" in run("runs", "--project", 'an "other"')
        assert "reported" in run("show", "1")
        assert "seeds" in run("sweeps", "--project", "hybrid")
        assert "seeds" not in run("sweeps", "--project", "none")
        assert "theirs" in run("compare", "--project", "hybrid", "--group-by", "kind")
