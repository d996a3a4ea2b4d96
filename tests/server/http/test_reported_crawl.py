"""Every GET route and page, with reported runs whose configurations nobody checked. Their pages say nothing about our trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from stablessm_core.telemetry.how import How
from stablessm_core.telemetry.statuses import AT_REST
from tests.server.http_service import BODY, application, client_of
from tests.server.reported import PATHS, ended, opened, recorded

pytestmark = [pytest.mark.slow, pytest.mark.spread]


def nested(depth: int) -> Any:
    found: Any = {"model": {"layer": {"name": ["stable"]}}}
    for _ in range(depth):
        found = {"model": [found], "optimizer": {"name": {}}}
    return found


STRINGS = {
    "model": "mamba-130m", "train": "fast", "optimizer": "lion", "task": "pile", "telemetry": "all", "alerts": "none",
    "name": "x", "tags": "a,b",
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "empty": {},
    "strings": STRINGS,
    "nested": nested(48),
    "large": {f"key {number:04d}": "<b>" + "x" * 40 for number in range(1200)},
    "list": [1, None, {"model": None}],
    "numbers": {"model": {"layer": 3, "reparameterization": 1e300}, "train": {"steps": "many"}, "optimizer": {"lr": "nan"}},
}
HOWS = (
    How(),
    How(optimizer="adamw", lr=0.1, momentum=0.9, grad_clip=1.0, length=128, every=1, precision="bfloat16", total_steps=1000),
)
EVERY = ("", "/verdict", "/autopsy", "/overview", "/series", "/metrics", "/memory")
OF_RUN = (
    "/forks", "/siblings", "/log", "/log?format=text", "/history", "/checkpoints", "/checkpoints/1",
    "/steps?step=5", "/steps?step=39&layer=1", "/series/train/loss", "/series/ssm/0/eigenvalue?max_points=20",
    "/series/ssm/1/weight?format=csv", "/overview?reasons=true", "/figures/loss", "/figures/eigenvalue",
    "/figures/boundary_distance?layer=1", "/alerts",
)  # fmt: skip
FILTERS = (
    "q=layer=stable_ssm", "q=reparam=exp", "q=lr>0", "q=kind=reported", "q=steps>1", "q=config.model=mamba-130m",
    "q=config.optimizer.lr=nan", "q=config.model.layer>2", "q=config.0=1", "q=status=lost", "q=NOT project=hybrid",
    "q=project~hyb",
)  # fmt: skip
ORDERS = (
    "sort=lr", "sort=layer", "sort=-largest_ratio", "sort=project", "sort=-status",
)  # fmt: skip
COLUMNS = "lr,steps,layer,reparam,d_state,config.model,config.optimizer.lr,project,kind,progress,curve,duration"
EVERYWHERE = (
    "/api/fields", "/api/views", "/api/trash", "/api/figures", "/api/systems", "/api/theory", "/api/alerts", "/api/sweeps",
    "/api/queues", "/api/queues/default", "/api/workers", "/api/me", "/api/users", "/api/audit", "/api/webhooks", "/api/tokens",
    "/healthz", "/readyz", "/metrics", "/sweeps", "/sweeps/1", "/alerts", "/alerts?group=run", "/workers", "/trash", "/theory",
    "/systems", "/paper", "/docs", "/me", "/access", "/api/sweeps/1", "/api/sweeps/1/table", "/api/sweeps/1/grid", "/new",
    "/api/paper", "/api/sweeps/1/figures/sweep_final_loss", "/login", "/api/theory/figures/theory_map",
    "/api/alerts?q=kind=reported",
    "/api/paper/reports/table5", "/api/paper/reports/table5/figures/0", "/openapi.json",
    "/webhooks", "/api/silences",
)  # fmt: skip
STREAM = "/api/runs/{run_id}/stream"  # never ends
FORBIDDEN = ("AdamW", "stable_ssm", "Resume", "Fork", "Clone", "Replay")

Answers = dict[str, httpx.Response]


def planted(database: Database) -> list[int]:
    """A run of each configuration in each status, with and without layers and numbers."""
    runs = []
    for number, (name, status) in enumerate(product(CONFIGS, ("running", *AT_REST))):
        layers = PATHS if number % 2 else ()
        run = opened(
            database, config=CONFIGS[name], how=HOWS[number // 2 % 2], layers=layers, name=f"{name} {status}", tags=["odd"],
            project="hybrid" if number % 3 else "",
        )  # fmt: skip
        bad = (1, 3, 31) if status == "diverged" and layers else None
        if number % 5:
            recorded(database, run, bad=bad)
        place = {"step": 31, "layer": 1, "eigenvalue": 3, "tensor": "A_log", "value": "NaN"} if bad and number % 5 else None
        result = {"train_loss": "NaN"} if status == "diverged" else {"val/acc": 0.5} if number % 4 == 0 else None
        ended(database, run, status, divergence=place, result=result)
        runs.append(run)
    return runs


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """The answer of every address, by address."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "postgres":
        url = request.getfixturevalue("module_postgres_url")
    else:
        url = f"sqlite:///{folder / 'stablessm.db'}"
    database = Database(url)
    database.migrate()
    with client_of(application(url, folder, reported_lease_seconds=600)) as client:
        sweep = {"base": BODY, "grid": {"train.seed": [0, 1]}}
        ours = [run["id"] for run in client.post("/api/sweeps", json=sweep).raise_for_status().json()["runs"]]
        runs = planted(database)
        yield {address: client.get(address) for address in addresses(runs, ours)}
    database.close()


def addresses(runs: list[int], ours: list[int]) -> list[str]:
    found = [f"/api/runs/{run}{path}" for run in runs for path in EVERY]
    found += [f"/api/runs/{run}{path}" for run in runs[::7] for path in OF_RUN]
    found += [f"{page}{run}" for run in runs[::7] for page in ("/theory?run=", "/api/theory?run=", "/new?clone=")]
    found += [f"/runs/{run}" for run in runs]
    both = ",".join(map(str, [*ours, *runs]))
    chosen = (f"runs={both}", "sweep=1", f"runs={both}&group_by=project", "q=kind=reported&group_by=config.model")
    found += [f"{path}?{query}" for path in ("/compare", "/api/compare", "/api/compare/claims") for query in chosen]
    compared = ("/api/compare/curves", "/api/compare/table", "/api/compare/figures/compare_loss")
    found += [f"{path}?{query}" for path in compared for query in chosen[:2]]
    found += [f"{path}{query}" for path in ("/?", "/api/runs?") for query in ("", *FILTERS, *ORDERS)]
    found += [f"/?columns={COLUMNS}"]
    at_rest = "kind=reported NOT status=running"
    found += [f"/api/exports?q={query}" for query in (at_rest, "status=running")] + [f"/api/sparks?runs={both}"]
    return [*found, *EVERYWHERE]


def test_every_route_answers_without_an_error_of_the_server(answers: Answers) -> None:
    assert {address: answer.status_code for address, answer in answers.items() if answer.status_code >= 500} == {}
    assert len(answers) > 400


def test_every_page_and_every_list_shows_reported_runs(answers: Answers) -> None:
    shown = [
        address for address in answers if re.match(r"/runs/|/\?|/$|/compare|/api/(runs|compare|sparks)\?|/api/runs/\d+$", address)
    ]
    assert len(shown) > 90
    assert {address: answers[address].text[:300] for address in shown if answers[address].status_code != 200} == {}
    assert "mamba-130m" in answers["/api/runs?q=config.model=mamba-130m"].text


def test_the_crawl_reaches_every_get_route(answers: Answers, tmp_path: Path) -> None:
    app = application(f"sqlite:///{tmp_path / 'unused.db'}", tmp_path)
    routes = [route for route in app.state.routes if "GET" in (getattr(route, "methods", None) or ())]
    paths = {address.partition("?")[0] for address in answers}
    missed = {route.path for route in routes if not any(route.path_regex.match(path) for path in paths)}
    assert {path for path in missed if not path.startswith("/static/")} == {STREAM}


def test_no_page_of_a_reported_run_speaks_of_our_trainer(answers: Answers) -> None:
    pages = {address: answer.text for address, answer in answers.items() if re.match(r"/runs/\d+$", address)}
    twins = {
        address: answer.text for address, answer in answers.items() if re.match(r"/api/runs/\d+(/verdict|/autopsy)?$", address)
    }
    assert len(pages) == len(twins) / 3 == len(CONFIGS) * (1 + len(AT_REST))
    assert {(address, word) for address, text in (pages | twins).items() for word in FORBIDDEN if word in text} == set()
    for word in ("Undefined", "undefined", "None<"):
        assert [
            address for address, text in pages.items() if word in re.sub(r"<(script|pre).*?</\1>", "", text, flags=re.DOTALL)
        ] == []
