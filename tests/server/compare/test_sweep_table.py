"""The table of a sweep: every run is a row in every format, and non-finite numbers are written as such."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet
import pytest

from server.compare.aggregation import summary
from server.compare.sweep_grid import chosen_axes
from server.compare.sweep_table import COUNTS, Column, Table
from server.compare.table_formats import as_csv, as_latex, as_markdown
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import CPU

GRID: dict[str, Any] = {"optimizer.lr": [0.01, 0.3], "train.seed": [1, 2, 3]}
ENDS: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] = [
    ("finished", {"train_loss": 0.1 + 0.2, "eval_loss": 0.5, "seconds": 3.0, "rollbacks": 0}, None),
    ("finished", {"train_loss": 0.1, "eval_loss": 0.7, "rollbacks": 2}, None),
    ("finished", {"train_loss": "NaN", "eval_loss": "Infinity"}, None),
    ("diverged", {"train_loss": "-Infinity"}, {"step": 28, "layer": 0, "eigenvalue": 7, "tensor": "blocks.0.layer.w.grad"}),
    ("failed", None, None),
]  # fmt: skip


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    """A sweep of six runs: three finished, one diverged, one failed, and one is queued."""
    with client_of(application(database.url, tmp_path)) as client:
        client.post("/api/sweeps", json={"base": BODY, "grid": GRID, "name": "a|b & c"}).raise_for_status()
        for status, result, divergence in ENDS:
            with database.write() as session:
                claim = lifecycle.claim(session, "here:1:2", CPU)
                assert claim is not None
                lifecycle.finish(session, claim.run_id, claim.attempt, status, f"it is {status}", result, divergence)
        yield client


def asked(client: httpx.Client, **options: str) -> httpx.Response:
    return client.get("/api/sweeps/1/table", params=options).raise_for_status()


def test_the_sweep_table_has_a_row_for_every_run_whatever_its_status(client: httpx.Client) -> None:
    table = asked(client).json()
    assert [row["run"] for row in table["rows"]] == [1, 2, 3, 4, 5, 6]
    assert [row["status"] for row in table["rows"]] == [*["finished"] * 3, "diverged", "failed", "queued"]
    assert [row["train_loss"] for row in table["rows"]] == [0.1 + 0.2, 0.1, "NaN", "-Infinity", None, None]
    assert [(row["optimizer.lr"], row["train.seed"]) for row in table["rows"]] == [
        (lr, s) for lr in (0.01, 0.3) for s in (1, 2, 3)
    ]
    diverged = table["rows"][3]
    assert [diverged[f"diverged_{part}"] for part in ("step", "layer", "eigenvalue", "tensor")] == [
        28,
        0,
        7,
        "blocks.0.layer.w.grad",
    ]
    assert table["rows"][4]["status_reason"] == "it is failed"
    assert table["rows"][0]["duration_seconds"] >= 0
    assert table["rows"][5]["duration_seconds"] is None
    assert (table["finite"], table["total"], table["name"]) == (2, 6, "a|b & c")
    assert {c["name"]: c["kind"] for c in table["columns"]}["rollbacks"] == "integer"
    assert "seconds" not in table["rows"][0]


def test_the_csv_table_reads_back_to_the_same_numbers(client: httpx.Client) -> None:
    answer = asked(client, format="csv")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert 'filename="sweep-1.csv"' in answer.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["train_loss"] for row in rows] == [repr(0.1 + 0.2), "0.1", "nan", "-inf", "", ""]
    assert [row["eval_loss"] for row in rows] == ["0.5", "0.7", "inf", "", "", ""]


@pytest.mark.slow
def test_the_parquet_table_distinguishes_nan_from_missing_values(client: httpx.Client) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(asked(client, format="parquet").content))
    assert [str(table.schema.field(name).type) for name in ("run", "train_loss", "status")] == ["int64", "double", "string"]
    losses = table["train_loss"].to_pylist()
    assert losses[:2] == [0.1 + 0.2, 0.1]
    assert math.isnan(losses[2])
    assert losses[3:] == [-math.inf, None, None]
    assert table.schema.metadata[b"finite"] == b"2"


def test_markdown_and_latex_tables_state_the_number_of_finite_runs(client: httpx.Client) -> None:
    markdown, latex = asked(client, format="markdown").text, asked(client, format="latex").text
    said = (
        "2 of 5 ended runs finished with a finite loss (3 finished, 1 diverged, 1 failed, 1 queued); 0 of 5 with every eigenvalue"
    )
    assert said in markdown
    assert said in latex
    assert len([line for line in markdown.splitlines() if line.startswith("|")]) == 8
    assert "| nan |" in markdown
    assert "| -inf |" in markdown
    assert " NaN & " in latex
    assert r"$-\infty$" in latex
    assert r"$\infty$" in latex
    assert "status_reason" not in markdown + latex.replace(r"\_", "_")
    assert "it is failed" in asked(client, format="markdown", columns="run,status_reason").text


def test_groups_count_finite_runs_and_average_only_their_losses(client: httpx.Client) -> None:
    rows = asked(client, group_by="optimizer.lr").json()["rows"]
    assert [(r["optimizer.lr"], r["finite"], r["total"], r["diverged"], r["failed"]) for r in rows] == [
        (0.01, 2, 3, 0, 0),
        (0.3, 0, 3, 1, 1),
    ]
    assert rows[0]["train_loss_mean"] == pytest.approx(0.2)
    assert rows[0]["train_loss_std"] == pytest.approx(0.2 / math.sqrt(2))
    assert (rows[0]["train_loss_min"], rows[0]["train_loss_max"]) == (0.1, 0.1 + 0.2)
    assert rows[0]["eval_loss_mean"] == pytest.approx(0.6)
    assert rows[1]["train_loss_mean"] is None


def test_a_run_whose_last_evaluation_is_not_finite_is_lost_in_its_group(client: httpx.Client, database: Database) -> None:
    with database.write() as session:
        session.get_one(Run, 2).result = {"train_loss": 0.1, "eval_loss": "NaN"}
    (group, _) = asked(client, group_by="optimizer.lr").json()["rows"]
    assert (group["finite"], group["lost"], group["eval_loss_median"], group["train_loss_median"]) == (1, 2, 0.5, 0.1 + 0.2)
    assert [run["id"] for run in client.get("/api/runs", params={"q": "lost=true"}).json()["runs"]] == [5, 4, 3, 2]
    for number, lost in ((1, "false"), (2, "true"), (6, "false")):
        assert f'"lost":{lost}' in client.get(f"/api/runs/{number}").text.replace(" ", "")
    assert all(isinstance(run["lost"], bool) for run in client.get("/api/runs").json()["runs"])


def test_each_grid_cell_counts_its_finite_and_stable_runs(client: httpx.Client, database: Database) -> None:
    with database.write() as session:
        session.get_one(Run, 1).nearest_distance = 0.2
        out = session.get_one(Run, 2)
        out.nearest_distance, out.unstable, out.judged_at = -0.5, {"eigenvalues": 3}, 1.0
    grid = client.get("/api/sweeps/1/grid").json()
    assert grid["rows"] == {"path": None, "values": [None]}
    assert grid["columns"] == {"path": "optimizer.lr", "values": [0.01, 0.3]}
    [[calm, wild]] = grid["cells"]
    assert [calm[n] for n in ("finite", "stable", "unstable", "lost", "open", "total", "outcome")] == [2, 1, 1, 1, 0, 3, "lost"]
    assert calm["loss"]["median"] == pytest.approx(0.2)
    assert [wild[n] for n in ("finite", "lost", "open", "runs")] == [0, 2, 1, [4, 5, 6]]
    assert wild["loss"]["median"] is None
    assert [grid[n] for n in ("finite", "stable", "total", "axes")] == [2, 1, 6, ["optimizer.lr", "train.seed"]]
    shown = client.get("/api/sweeps/1").json()
    assert {n: shown[n] for n in COUNTS} == {n: grid[n] for n in COUNTS} == {n: asked(client).json()[n] for n in COUNTS}
    turned = client.get("/api/sweeps/1/grid?rows=train.seed").json()
    assert [len(turned["cells"]), [cell["runs"] for cell in turned["cells"][0]]] == [3, [[1], [4]]]
    text = client.get("/api/sweeps/1/grid?format=markdown").text
    assert "| optimizer.lr | 0.01 | 0.3 |" in text
    assert "2/3 finite, 1/3 stable, 1 lost | 0/2 ended finite, 0/2 ended stable, 2 lost, 1 open |" in text
    assert "2/3 finite" in client.get("/api/sweeps/1/grid?format=latex").text
    refused = error_of(client.get("/api/sweeps/1/grid?rows=optimizer.name"), 422)
    assert (refused["field"], refused["allowed"]) == ("rows", "optimizer.lr, train.seed")


MAP, LR, STATES, SEED = "model.reparameterization.name", "optimizer.lr", "model.d_state", "train.seed"


@pytest.mark.parametrize(
    ("axes", "asked", "expected"),
    [([LR, SEED], (None, None), (None, LR)), ([SEED], (None, None), (None, SEED)), ([MAP], (None, None), (MAP, None)),
     ([LR, MAP, SEED], (None, None), (MAP, LR)), ([LR, STATES], (None, None), (STATES, LR)),
     ([LR, STATES, SEED], (SEED, None), (SEED, LR)), ([LR, STATES], (None, STATES), (None, STATES)),
     ([LR, STATES], (LR, STATES), (LR, STATES))],
)  # fmt: skip
def test_the_default_grid_axes_are_maps_and_learning_rates(axes: list[str], asked: Any, expected: Any) -> None:
    assert chosen_axes(axes, *asked) == expected


def test_table_columns_can_be_chosen_and_unknown_columns_are_refused(client: httpx.Client) -> None:
    assert asked(client, format="csv", columns="train.seed, run").text.splitlines()[:2] == ["train.seed,run", "1,1"]
    assert asked(client, columns="finite,total", group_by="status").json()["rows"][0] == {"finite": 2, "total": 3}
    for name in ("group_by", "columns"):
        refused = error_of(client.get("/api/sweeps/1/table", params={name: "run,weather"}), 422)
        assert refused["field"] == name
        assert "weather" in refused["message"]
        assert "train_loss" in refused["allowed"]
    assert error_of(client.get("/api/sweeps/1/table?format=xlsx"), 422)["field"] == "format"
    assert error_of(client.get("/api/sweeps/9/table"), 404)["field"] == "sweep_id"


HOSTILE = [
    "=1+1",
    "+x",
    "-x",
    "@SUM(A1)",
    "\tx",
    'a"b,c\nd',
    "a|b",
    "a\\b",
    "{x} $5 & 100% #1 a_b ~^ <i>",
    "[x]",
    "*x",
    "naïve Ω",
]


def hostile() -> Table:
    columns = (Column("name", "text", ""), Column("loss", "number", ""))
    return Table(1, None, columns, tuple((name, -1e-30) for name in HOSTILE), summary([]), {})


def test_no_csv_cell_is_a_spreadsheet_formula() -> None:
    rows = list(csv.reader(io.StringIO(as_csv(hostile()).decode(), newline="")))[1:]
    assert not [name for name, _ in rows if name.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert [name.removeprefix("'") for name, _ in rows] == HOSTILE
    assert {loss for _, loss in rows} == {"-1e-30"}  # a number stays a number


def test_hostile_names_stay_inside_their_markdown_and_latex_cells() -> None:
    markdown = as_markdown(hostile()).decode().splitlines()
    rows = [line for line in markdown if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows] == [3] * (len(HOSTILE) + 2)
    assert not [row for row in rows if re.search(r"(?<!\\)<", row)]
    latex = as_latex(hostile()).decode()
    body = latex[latex.index(r"\midrule") : latex.rindex(r"\midrule")].splitlines()[1:]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in body] == [1] * len(HOSTILE)
    assert not [row for row in body if re.search(r"(?<!\\)[$%#_]", row.rpartition(" & ")[0])]
    assert body[6].startswith(r"a\textbar{}b & $-1 \times 10^{-30}$ \\")
    assert body[9].startswith("{[}x] ")
    assert body[11].startswith(r"na\"{\i}ve (U+03A9)")
