"""The list of runs over REST: hidden runs, bulk actions, saved views per user, filter completion, and curves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

import httpx
import pytest

from server.database.connection import Database
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claim

pytestmark = [pytest.mark.spread, pytest.mark.slow]


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    """Run 1 is running and has records; runs 2 and 3 are queued."""
    with client_of(application(database.url, tmp_path)) as client:
        for seed in (0, 1, 2):
            client.post("/api/runs", json=BODY | {"name": f"seed {seed}", "tags": ["a", "b"][:seed], "train": {"seed": seed}})
        Recording(database, claim(database), weird=False).write(100)
        yield client


def shown(client: httpx.Client, query: str = "") -> list[int]:
    return [run["id"] for run in client.get(f"/api/runs?{query}").raise_for_status().json()["runs"]]


def test_lists_show_hidden_runs_only_on_request(client: httpx.Client) -> None:
    assert client.patch("/api/runs/2", json={"hidden": True}).json()["hidden"] is True
    assert shown(client) == [3, 1]
    assert shown(client, "hidden=true") == [3, 2, 1]
    assert shown(client, "q=hidden=true") == [2]
    assert shown(client, "q=hidden=false OR seed=1") == [3, 2, 1], "a filter that names the field `hidden` overrides the default"
    assert "seed 1" not in client.get("/").text
    assert len(client.get("/api/compare?runs=2,3").json()["runs"]) == 2, "comparisons must include hidden runs"
    assert client.patch("/api/runs/2", json={"hidden": None}).json()["hidden"] is False
    assert shown(client) == [3, 2, 1]


def test_a_bulk_action_handles_each_run_independently(client: httpx.Client) -> None:
    def bulk(action: str, *runs: int) -> dict[str, object]:
        answer: dict[str, object] = client.post(f"/api/bulk/{action}", json={"runs": runs}).raise_for_status().json()
        return answer

    assert bulk("hide", 3, 1, 99) == {"done": [1, 3], "made": {}, "refused": [{"run": 99, "message": "there is no run 99"}]}
    assert shown(client) == [2]
    assert bulk("show", 1, 3)["done"] == [1, 3]
    made = bulk("clone", 2, 98)
    assert made["made"] == {"2": 4}
    assert client.get("/api/runs/4").json()["config"]["train"]["seed"] == 1
    assert bulk("cancel", 2, 3, 4)["done"] == [2, 3, 4]
    again = bulk("cancel", 2)
    assert again["done"] == []
    refused = bulk("delete", 1, 2, 3)
    assert refused["done"] == [2, 3], "all runs except the running one must be deleted"
    assert "run 1 is running" in str(refused["refused"])
    assert shown(client) == [4, 1]
    assert bulk("restore", 2, 3)["done"] == [2, 3]
    assert shown(client) == [4, 3, 2, 1]
    error_of(client.post("/api/bulk/burn", json={"runs": [1]}), 422)
    error_of(client.post("/api/bulk/hide", json={"runs": []}), 422)


def test_a_token_without_the_right_to_delete_cannot_delete_in_bulk(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    secret = client.post("/api/tokens", json={"name": "ci", "scope": "submit"}).json()["secret"]
    with client_of(application(database.url, tmp_path), token=secret) as other:
        error_of(other.post("/api/bulk/delete", json={"runs": [2]}), 403)
        answer = other.post("/api/bulk/hide", json={"runs": [2]}).json()
        assert "another user" in answer["refused"][0]["message"]


def test_saved_views_belong_to_one_user(client: httpx.Client, database: Database, tmp_path: Path) -> None:
    query = "q=status%3Dqueued&sort=-seed&columns=seed,host"
    made = client.post("/api/views", json={"name": "waiting", "query": query})
    assert made.status_code == 201
    again = client.post("/api/views", json={"name": "waiting", "query": "sort=lr"}).json()
    assert (again["id"], again["query"]) == (made.json()["id"], "sort=lr")
    assert [v["name"] for v in client.get("/api/views").json()["views"]] == ["waiting"]
    assert "waiting" in client.get("/").text
    for query, word in (("q=nope%3D1", "nope"), ("columns=nope", "nope"), ("cursor=x", "cursor"), ("limit=many", "limit")):
        assert word in error_of(client.post("/api/views", json={"name": "x", "query": query}), 422)["message"]
    secret = client.post("/api/tokens", json={"name": "ci", "scope": "submit"}).json()["secret"]
    with client_of(application(database.url, tmp_path), token=secret) as other:
        assert other.get("/api/views").json() == {"views": []}
        error_of(other.delete(f"/api/views/{again['id']}"), 404)
    assert client.delete(f"/api/views/{again['id']}").status_code == 204
    assert client.get("/api/views").json() == {"views": []}


def test_filter_completion_offers_fields_and_the_values_of_existing_runs(client: httpx.Client) -> None:
    fields = {field["name"]: field for field in client.get("/api/fields").json()["fields"]}
    assert "diverged" in fields["status"]["values"]
    assert fields["tag"]["values"] == ["a", "b"]
    assert fields["task"]["values"] == ["polynomial_memory"]
    assert fields["hidden"]["values"] == ["true", "false"]
    assert fields["lr"]["kind"] == "number"
    for name, field in fields.items():
        if field["kind"] == "text" and field["values"]:
            assert client.get("/api/runs", params={"q": f'{name}="{field["values"][0]}"'}).status_code == 200, name


def test_one_request_returns_the_small_loss_curves_of_many_runs(client: httpx.Client) -> None:
    sparks = client.get("/api/sparks?runs=1,2,3").json()["sparks"]
    assert list(sparks) == ["1"], "runs without records must be omitted"
    assert 25 <= len(sparks["1"]["last"]) <= 48
    assert sparks["1"]["lost"] is None
    error_of(client.get("/api/sparks?runs=1,x"), 422)


@pytest.mark.parametrize("order", ["seed", "-seed", "bytes_stored", "-created", "host"])
def test_the_runs_page_sorts_by_column_and_can_show_any_field(client: httpx.Client, order: str) -> None:
    page = client.get(
        "/", params={"sort": order, "columns": "seed,bytes_stored,largest_ratio,created,host,model.reparameterization.b"}
    )
    assert page.status_code == 200
    state = "descending" if order.startswith("-") else "ascending"
    assert page.text.count("aria-sort=") == 1
    assert f'aria-sort="{state}"' in page.text
    assert f'<option value="{order}" selected>' in page.text, "narrow screens need this menu, because they show no column headers"
    assert "model.reparameterization.b" in page.text
    if "seed" in order:
        ids = [1, 2, 3] if order == "seed" else [3, 2, 1]
        at = [page.text.index(f'data-run="{run}"') for run in ids]
        assert at == sorted(at)


def test_chosen_columns_are_remembered_and_an_unknown_column_is_an_error_on_the_page(client: httpx.Client) -> None:
    client.get("/", params={"columns": ["seed", "notes,tags"], "remember": "true"})
    text = client.get("/").text
    assert 'data-column="notes"' in text
    assert 'data-column="lr"' not in text
    refused = client.get("/", params={"columns": "nope", "q": "lr>0"})
    assert refused.status_code == 422
    assert "there is no column" in refused.text
    assert 'value="lr&gt;0"' in refused.text, "the error page must keep the filter"


@pytest.mark.parametrize("name", ["val/中", "val/a:b", "val/50%2F", 'val/"x"'])
def test_a_column_with_any_name_is_remembered(client: httpx.Client, name: str) -> None:
    assert client.get("/", params={"columns": name, "remember": "true"}).status_code == 200
    assert f'data-column="{escape(name)}"' in client.get("/").text.replace("&#34;", "&quot;")


def test_the_page_folds_sweeps_into_rows_with_counts_that_open_to_their_runs(client: httpx.Client) -> None:
    grid = {"train.seed": [0, 1, 2]}
    for name in ("older", "newer"):
        client.post("/api/sweeps", json={"name": name, "base": BODY, "grid": grid}).raise_for_status()
    client.post("/api/runs/9/cancel")
    rows = r'<tr data-(run|sweep-row)="(\d+)"'

    def listed(query: str) -> list[tuple[str, str]]:
        page = client.get(f"/?{query}")
        assert page.status_code == 200, page.text
        return re.findall(rows, page.text)

    folded = [("sweep-row", "2"), ("sweep-row", "1"), ("run", "3"), ("run", "2"), ("run", "1")]
    assert listed("fold=true&status=&q=") == folded
    assert len(listed("fold=&q=")) == 9, "an empty value must not fold and must not be an error"
    opened = listed("fold=true&open=1")
    assert opened == [*folded[:2], ("run", "4"), ("run", "5"), ("run", "6"), *folded[2:]]
    assert listed("fold=true&q=seed=1&open=1,2") == [
        ("sweep-row", "2"),
        ("run", "8"),
        ("sweep-row", "1"),
        ("run", "5"),
        ("run", "2"),
    ]
    assert listed("fold=true&status=cancelled") == [("sweep-row", "2")]
    text = re.sub(r"<[^>]+>|\s+", " ", client.get("/?fold=true").text)
    assert "3 runs: 1 cancelled 2 queued" in re.sub(r"\s+", " ", text)
    second = re.search(r'href="([^"]+)" data-more', client.get("/?fold=true&limit=2").text)
    assert second is not None
    assert re.findall(rows, client.get(second[1].replace("&amp;", "&")).text) == folded[2:4]


def test_the_introduction_is_open_only_until_a_browser_has_seen_it(client: httpx.Client) -> None:
    introduction = re.compile(r'<details class="intro"( open)?>')
    first, second = (introduction.search(client.get("/").text) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == (" open", None)
