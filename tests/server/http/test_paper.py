"""GET /api/paper and the page /paper: every claim with its verdict, from the runs of this server, else from committed reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from server.cli.reproduce_paper import Sweeps
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from stablessm_core.client import Client
from studies.culprits import Findings
from studies.culprits_report import culprits_report
from studies.paper.catalogue import design
from studies.paper.groups import Group
from studies.paper.outcomes import collect
from studies.paper.registry import folder as registry_folder
from studies.paper.registry import load
from studies.paper.report import dumps, trained_report
from studies.paper.submission import start, submit, take_up
from tests.server.http_service import TOKEN, application, client_of, error_of
from tests.server.recording import claim
from tests.studies.test_culprits_text import POINTS, SIZE, cells

pytestmark = pytest.mark.slow

REGISTRY = load()
REPORTS = registry_folder()
PLAN = design("fig3", seeds=2)


@pytest.fixture
def app(sqlite: Database, tmp_path: Path) -> Any:
    return application(sqlite.url, tmp_path)


@pytest.fixture
def http(app: Any) -> Iterator[httpx.Client]:
    with client_of(app) as client:
        yield client


@pytest.fixture
def client(http: httpx.Client) -> Client:
    """A client of the same application; closing `http` closes its transport."""
    return Client("http://127.0.0.1:8000", TOKEN, transport=http._transport)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the registered claims, from which committed reports are read."""
    found = tmp_path / "registered"
    found.mkdir()
    (found / "claims.json").write_bytes((registry_folder() / "claims.json").read_bytes())
    monkeypatch.setattr("studies.paper.registry.FOLDERS", (found,))
    return found


def act_as_worker(database: Database, runs: int, dies: int = 0) -> None:
    """Act as the worker: the first `dies` runs diverge and have no autopsy, and all others finish."""
    for number in range(runs):
        claimed = claim(database)
        with database.write() as session:
            versions = {
                "versions": {"stablessm": "1", "torch": "2"},
                "device_name": "a CPU",
                "threads": 1,
                "precision": "float32",
            }
            lifecycle.set_environment(session, claimed.run_id, claimed.attempt, versions)
            status, loss = ("diverged", float("nan")) if number < dies else ("finished", 0.25)
            where = {"step": 3, "layer": 0, "eigenvalue": 1, "tensor": "w", "value": "NaN"} if number < dies else None
            result = {"train_loss": loss, "eval_loss": loss, "seconds": 1.0}
            lifecycle.finish(session, claimed.run_id, claimed.attempt, status, "", result, where)
            session.execute(update(Run).where(Run.id == claimed.run_id).values(largest_ratio=0.1 + claimed.run_id / 100))


def culprits_findings() -> Findings:
    parts: list[dict[str, Any]] = [{"id": 1, "part": "maps", "base": {}, "grid": {}, "runs": 9}]
    return Findings(replace(SIZE, seeds=2), [1], cells(), list(POINTS), [], ["torch 2"], parts=parts)


def claims_of(http: httpx.Client) -> dict[str, dict[str, Any]]:
    answer = http.get("/api/paper")
    assert answer.status_code == 200, answer.text[:300]
    return {one["id"]: one for one in answer.json()["claims"]}


def test_every_registered_claim_has_a_verdict_a_reason_and_its_sentence(http: httpx.Client) -> None:
    answer = http.get("/api/paper").json()
    assert [one["id"] for one in answer["claims"]] == [one.id for one in REGISTRY.claims]
    assert answer["claims_sha256"] == REGISTRY.sha256
    assert sum(answer["counts"].values()) == len(REGISTRY.claims)
    for one in answer["claims"]:
        assert one["why"], one["id"]
        assert one["sentence"], one["id"]
        assert one["command"] or one["verdict"] == "cannot be tested here", one["id"]
    by_id = {one["id"]: one for one in answer["claims"]}
    assert by_id["table4-lra"]["verdict"] == by_id["table6-3b"]["verdict"] == "cannot be tested here"
    assert (by_id["table5-ratios"]["verdict"], by_id["table5-ratios"]["source"]) == ("holds", "computed")


def test_the_page_shows_one_card_per_claim_and_the_command_where_a_result_is_missing(http: httpx.Client) -> None:
    page = http.get("/paper", headers={"Accept": "text/html"})
    assert page.status_code == 200
    cards = re.findall(r'<article class="card claim" id="([\w-]+)"', page.text)
    assert sorted(cards) == sorted(one.id for one in REGISTRY.claims)
    assert "not CIFAR-10" in page.text
    missing = [one for one in claims_of(http).values() if one["report"] is None and one["command"]]
    for one in missing:
        assert f"To judge it: <code>{one['command']}</code>" in page.text


@pytest.mark.usefixtures("folder")
def test_runs_of_this_server_judge_a_claim_and_are_linked(http: httpx.Client, client: Client, sqlite: Database) -> None:
    group, ids = start(client, PLAN, REGISTRY)
    before = claims_of(http)["fig3-best-smallest"]
    assert "16 of 16 runs of the part “main” have not ended." in before["problems"]
    act_as_worker(sqlite, PLAN.runs, dies=1)
    after = claims_of(http)["fig3-best-smallest"]
    assert (after["verdict"], after["source"], after["sweeps"]) == ("cannot tell", "runs", ids)
    assert after["why"] == "2 seeds; 12 were registered."
    assert f'href="/sweeps/{ids[0]}"' in http.get("/paper").text
    report = trained_report(collect(Sweeps(client, group.group), PLAN, group), REGISTRY)
    assert report["cells"][0]["unchecked"] == 1, "a death without an autopsy"
    assert report["sweeps"][0]["runs"] == PLAN.runs


@pytest.mark.usefixtures("folder")
def test_page_and_command_report_the_same_bytes_twice(client: Client, http: httpx.Client, sqlite: Database) -> None:
    full = design("fig3", seeds=1)
    group, _ = start(client, full, REGISTRY)
    act_as_worker(sqlite, full.runs)
    own = dumps(trained_report(collect(Sweeps(client, group.group), full, group), REGISTRY)).encode()
    assert http.get("/api/paper/reports/fig3").content == own
    assert http.get("/api/paper/reports/fig3").content == own
    html = http.get("/api/paper/reports/fig3?format=html").content
    assert html == http.get("/api/paper/reports/fig3?format=html").content


@pytest.mark.usefixtures("folder")
def test_a_deleted_run_is_named_on_the_page(client: Client, http: httpx.Client, sqlite: Database) -> None:
    full = design("fig3", seeds=1)
    start(client, full, REGISTRY)
    act_as_worker(sqlite, full.runs)
    assert claims_of(http)["fig3-best-smallest"]["problems"] == []
    client.bulk("delete", [1, 2])
    found = claims_of(http)["fig3-best-smallest"]
    assert found["verdict"] == "cannot tell"
    assert f"2 of {full.runs} runs of the part “main” do not exist any more." in found["problems"]


def test_an_interrupted_reproduction_is_taken_up_without_new_runs(client: Client, sqlite: Database) -> None:
    plan = design("table7", seeds=1)
    group, ids = start(client, plan, REGISTRY)
    assert submit(client, plan, group) == ids, "the same sweeps again"
    client.cancel_sweep(ids[0])
    again, found, numbers = take_up(client, ids[1])
    assert (again.signature, again.seeds, found, numbers) == (plan.signature, 1, group, ids)
    assert {run["status"] for number in ids for run in client.sweep(number)["runs"]} == {"queued"}
    act_as_worker(sqlite, plan.runs)
    assert collect(Sweeps(client, group.group), plan, group).problems == []


def test_a_part_that_was_never_submitted_is_submitted_when_the_reproduction_is_taken_up(client: Client) -> None:
    plan = design("table7", seeds=1)
    group, ids = start(client, plan, REGISTRY)
    other = Group(**{**vars(group), "group": "ffffffff"})
    first = client.submit_sweep(
        dict(plan.parts[0].base) | {"tags": _tags(other, plan)}, plan.grid(plan.parts[0]), name="(ffffffff)"
    )
    _, _, numbers = take_up(client, first["id"])
    assert len(numbers) == 3
    assert set(numbers).isdisjoint(ids)


def _tags(group: Group, plan: Any) -> list[str]:
    from studies.paper.groups import tags

    return tags(group, plan.parts[0])


def test_sweeps_of_other_studies_cannot_be_taken_up(client: Client) -> None:
    other = client.submit_sweep({"task": {"name": "polynomial_memory"}}, {"train.seed": [0]})
    with pytest.raises(ValueError, match="belongs to no reproduction; expected a sweep whose runs have the tag `paper`"):
        take_up(client, other["id"])


def test_reports_and_figures_are_files_in_every_format(http: httpx.Client) -> None:
    kinds = {"json": b"{", "html": b"<!doctype html>", "md": b"# Table 5", "tex": b"\\documentclass"}
    for format, start_ in kinds.items():
        answer = http.get(f"/api/paper/reports/table5?format={format}")
        assert answer.status_code == 200, format
        assert answer.content.startswith(start_), format
        assert f'filename="table5.{format}"' in answer.headers["Content-Disposition"]
    assert json.loads(http.get("/api/paper/reports/table5").content)["study"] == "table5"
    svg = http.get("/api/paper/reports/table5/figures/0?format=svg")
    assert svg.content.startswith(b"<?xml")
    assert http.get("/api/paper/reports/table5/figures/0").json()["data"]


def test_unknown_reports_and_figures_are_refused_with_what_is_allowed(http: httpx.Client) -> None:
    error = error_of(http.get("/api/paper/reports/table9"), 404)
    assert "table5" in error["allowed"]
    assert error["field"] == "report"
    assert error_of(http.get("/api/paper/reports/table5/figures/7"), 404)["allowed"] == "0 to 0"


def test_beyond_the_paper_shows_who_killed_the_runs_with_intervals_and_tests(folder: Path, http: httpx.Client) -> None:
    unknown = {one["name"]: one for one in http.get("/api/paper").json()["beyond"]}
    assert (unknown["culprits"]["report"], unknown["culprits"]["command"]) == (None, "stablessm reproduce culprits")
    assert "No runs of this installation and no committed report answer this yet." in http.get("/paper").text
    (folder / "culprits.json").write_text(dumps(culprits_report(culprits_findings(), REGISTRY)))
    found = {one["name"]: one for one in http.get("/api/paper").json()["beyond"]}["culprits"]
    assert (found["report"], found["source"], found["seeds"], found["size"]) == ("culprits", "committed", 2, "quick")
    native = found["deaths"][0]
    assert (native["layer"], native["map"], native["runs"], native["deaths"]) == ("s5", "native", 3, 2)
    assert native["float64"] == {"range": 1, "dynamics": 1}
    assert native["killed_by"] == {"recurrence": 1, "other weights": 1}
    assert native["live_frozen"]["count"] == 1
    assert native["live_with_best"]["interval"] == pytest.approx([0.342, 1.0], abs=1e-3)
    assert any("exact McNemar test, p = 0.5" in one for one in found["findings"])
    page = http.get("/paper").text
    assert "Who kills a state-space model?" in page
    assert 'data-chart="paper_stability"' in page
    for format, part in (
        ("html", "<svg"),
        ("md", "| s5 | native | 3 | 2/3"),
        ("tex", "begin{longtable}"),
        ("json", '"findings"'),
    ):
        assert part in http.get(f"/api/paper/reports/culprits?format={format}").text, format
    drawn = http.get("/api/paper/reports/culprits/figures/0").json()
    assert [trace["name"] for trace in drawn["data"]] == ["e^(88.72/T) - 1", "best, lives", "direct, lives", "direct, fatal step"]


def test_of_two_reports_the_one_with_more_seeds_is_shown_first(
    folder: Path, http: httpx.Client, client: Client, sqlite: Database
) -> None:
    known = json.loads((REPORTS / "fig3.json").read_bytes())
    (folder / "fig3.json").write_text(dumps(known | {"seeds": 12}))
    start(client, PLAN, REGISTRY)
    act_as_worker(sqlite, PLAN.runs)
    shown = next(one for one in http.get("/api/paper").json()["reports"] if one["name"] == "fig3")
    assert (shown["source"], shown["seeds"]) == ("committed", 12)
    assert shown["other"] == {"source": "runs", "size": "full", "seeds": 2}
    assert http.get("/api/paper/reports/fig3").json()["seeds"] == 12
    assert http.get("/api/paper/reports/fig3?source=runs").json()["seeds"] == 2
    assert "Not shown: a report with 2 seeds" in http.get("/paper").text
    assert error_of(http.get("/api/paper/reports/fig3?source=computed"), 404)["allowed"] == "committed, runs"
    (folder / "fig3.json").write_text(dumps(known | {"seeds": 1}))
    shown = next(one for one in http.get("/api/paper").json()["reports"] if one["name"] == "fig3")
    assert (shown["source"], shown["other"]["source"]) == ("runs", "committed")


def test_an_installation_without_registered_claims_says_so(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.paper.registry.FOLDERS", (Path("/nowhere"),))
    assert "no registered claims" in error_of(http.get("/api/paper"), 404)["message"]
