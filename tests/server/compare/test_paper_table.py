"""A table for a paper says in every cell how many runs it is about, with the metric, statistic and digits that were chosen."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet
import pytest

from server.compare.aggregation import spread
from server.compare.paper_formats import cell_text
from server.compare.paper_table import Cell
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claim

MAP = "model.reparameterization.name"
GRID: dict[str, Any] = {MAP: ["direct", "best"], "optimizer.lr": [0.1, 0.01], "train.seed": [1, 2, 3]}
LOSSES = [  # of the three seeds of each map and learning rate; None: the run diverged
    [None, None, None],
    [0.5, 0.25, None],
    [0.0123, 0.0127, 0.0131],
]  # the last cell, best at 0.01, is queued


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    """Twelve runs: direct diverges always at 0.1 and once at 0.01, best finishes at 0.1 and waits at 0.01."""
    with client_of(application(database.url, tmp_path)) as client:
        client.post("/api/sweeps", json={"base": BODY, "grid": GRID}).raise_for_status()
        for loss in (loss for cell in LOSSES for loss in cell):
            of = claim(database)
            recorded = Recording(database, of, width=4, weird=False)
            recorded.write(5)
            result = {"train_loss": loss, "eval_loss": None, "eval_accuracy": 1 - loss} if loss else {"train_loss": "NaN"}
            with database.write() as session:
                lifecycle.finish(session, of.run_id, of.attempt, "finished" if loss else "diverged", "", result, None)
        yield client


def asked(client: httpx.Client, **options: Any) -> httpx.Response:
    answer = client.get("/api/compare/table", params={"sweep": 1, **options})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.both_engines
def test_every_cell_says_how_many_of_the_ended_runs_are_finite(client: httpx.Client) -> None:
    table = asked(client, across="lr", statistic="mean").json()
    assert table["row_titles"] == ["map"]
    assert [head["value"] for head in table["heads"]] == [0.01, 0.1], "numbers are in the order of their size"
    assert table["keys"] == [["direct"], ["best"]]
    assert [[cell["text"] for cell in line] for line in table["cells"]] == [
        ["0.375 ± 0.177 (2/3)", "none finite (0/3)"],
        ["none ended (0/0, 3 open)", "0.0127 ± 0.0004 (3/3)"],
    ]
    assert (table["finite"], table["lost"], table["open"], table["total"]) == (5, 4, 3, 12)


def test_latex_has_booktabs_readable_headers_and_math(client: httpx.Client) -> None:
    answer = asked(client, across="lr", statistic="mean", format="latex")
    assert 'filename="sweep-1-paper.tex"' in answer.headers["Content-Disposition"]
    lines = answer.text.splitlines()
    begin = lines.index(r"\begin{tabular}{lrr}")
    assert lines[begin + 1 :] == [
        r"\toprule",
        r" & \multicolumn{2}{c}{final loss by learning rate} \\",
        r"\cmidrule(lr){2-3}",
        r"map & 0.01 & 0.1 \\",
        r"\midrule",
        r"direct & $0.375 \pm 0.177$ (2/3) & none finite (0/3) \\",
        r"best & none ended (0/0, 3 open) & $0.0127 \pm 0.0004$ (3/3) \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert all(line.startswith("%") for line in lines[:begin])
    assert "model." not in answer.text


def test_metrics_statistic_and_digits_are_chosen_and_metrics_are_columns(client: httpx.Client) -> None:
    text = asked(client, metric="loss,accuracy,best_train_loss", digits=2, format="markdown").text
    head, _, direct, best, *rest = text.splitlines()
    assert head == "| map | final loss | accuracy | best loss |"
    assert direct.startswith(r"| direct | 0.38 \[0.31, 0.44\] (2/6) | 0.62 \[0.56, 0.69\] (2/6) | ")
    assert r"| best | 0.013 \[0.013, 0.013\] (3/3, 3 open) | 0.99 \[0.99, 0.99\] (3/3, 3 open) |" in best
    assert "median \\[quartiles\\]" in text or "median [quartiles]" in text
    assert any("5 of" in line for line in rest)
    assert asked(client, metric="eval_loss").json()["cells"][0][0]["text"] == "no value (0/6)"
    one = asked(client, rows="none", format="markdown").text.splitlines()[2]
    assert one.startswith("| all | 0.0131 ")


def test_the_best_loss_is_the_smallest_recorded_loss(client: httpx.Client) -> None:
    [direct, _] = asked(client, metric="best_train_loss", statistic="mean").json()["cells"]
    losses = []
    for run in (4, 5):  # direct at 0.01
        values = [float(v) for v in client.get(f"/api/runs/{run}/series/train/loss").json()["value"]]
        losses.append(min(v for v in values if math.isfinite(v)))
    assert direct[0]["mean"] == pytest.approx(sum(losses) / 2)


def test_csv_and_parquet_have_the_exact_numbers_and_the_counts(client: httpx.Client) -> None:
    rows = list(csv.DictReader(io.StringIO(asked(client, across="optimizer.lr", statistic="mean", format="csv").text)))
    assert rows[1]["learning rate 0.1: mean"] == repr((0.0123 + 0.0127 + 0.0131) / 3)
    assert [(row["learning rate 0.1: finite"], row["learning rate 0.1: ended"]) for row in rows] == [("0", "3"), ("3", "3")]
    table = pyarrow.parquet.read_table(io.BytesIO(asked(client, format="parquet").content))
    assert table.column_names[:4] == ["map", "final loss: median", "final loss: q25", "final loss: q75"]
    assert table["final loss: finite"].to_pylist() == [2, 3]


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"metric": "eval_acuracy"}, "metric", "did you mean eval_accuracy?"),
        ({"rows": "mapp"}, "rows", "did you mean map?"),
        ({"across": "optimizer.lrr"}, "across", "did you mean optimizer.lr?"),
        ({"rows": "lr", "across": "lr"}, "across", "also in rows"),
        ({"digits": 0}, "digits", "digits"),
        ({"statistic": "mode"}, "statistic", "mode"),
        ({"runs": "1"}, "runs", "exactly one"),
    ],
)
def test_an_invalid_choice_is_refused_with_its_field_and_a_guess(
    client: httpx.Client, given: dict[str, Any], field: str, said: str
) -> None:
    error = error_of(client.get("/api/compare/table", params={"sweep": 1, **given}), 422)
    assert error["field"] == field
    assert said in error["message"]


def test_empty_fields_of_a_form_mean_their_defaults(client: httpx.Client) -> None:
    empty = client.get("/api/compare/table?sweep=1&runs=&q=&rows=&across=&metric=")
    assert empty.json() == asked(client).json()
    assert error_of(client.get("/api/compare/table?q=name=nothing"), 422)["field"] == "q"
    assert error_of(client.get("/api/compare/table?runs=999"), 404)["field"] == "runs"


@pytest.mark.parametrize(
    ("values", "statistic", "digits", "plain", "latex"),
    [
        ([1.0, 1.0, 1.0], "mean", 3, "1.00 ± 0.00", r"1.00 \pm 0.00"),
        ([0.12345], "mean", 3, "0.123", "0.123"),
        ([0.9996, 0.9998], "mean", 3, "1.00 ± <0.01", r"1.00 \pm {<}0.01"),
        ([1.23e-7, 1.27e-7], "mean", 3, "(1.25 ± 0.03)e-07", r"(1.25 \pm 0.03) \times 10^{-7}"),
        ([123456.0, 123466.0], "mean", 3, "123461 ± 7", r"123461 \pm 7"),
        ([0.001, 100.0, 3e9], "median", 3, "100 [50.0, 1.50e+09]", r"100 [50.0, 1.50 \times 10^{9}]"),
        ([-0.5, 0.5], "mean", 2, "0.00 ± 0.71", r"0.00 \pm 0.71"),
    ],
)
def test_numbers_have_the_chosen_digits_and_a_deviation_is_never_rounded_to_nothing(
    values: list[float], statistic: Any, digits: int, plain: str, latex: str
) -> None:
    cell = Cell(len(values), 12, 0, True, spread(values))
    assert cell_text(cell, statistic, digits) == f"{plain} ({len(values)}/12)"
    assert cell_text(cell, statistic, digits, latex=True) == f"${latex}$ ({len(values)}/12)"


def test_a_finite_run_whose_metric_is_not_finite_counts_as_lost(database: Database, tmp_path: Path) -> None:
    with client_of(application(database.url, tmp_path)) as client:
        for accuracy in (0.5, "NaN"):
            client.post("/api/runs", json=BODY)
            of = claim(database)
            result = {"train_loss": 0.1, "eval_accuracy": accuracy}
            with database.write() as session:
                lifecycle.finish(session, of.run_id, of.attempt, "finished", "", result, None)
        table = client.get("/api/compare/table?runs=1,2&metric=accuracy,train_loss").json()
    assert [cell["text"] for cell in table["cells"][0]] == ["0.500 (1/2)", "0.100 [0.100, 0.100] (2/2)"]
