"""Sweeps on the command line: they are submitted from a file, watched, listed, and written as a table."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import func, select

from server.cli.main import main
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY
from tests.server.recording import claim

pytestmark = [pytest.mark.spread, pytest.mark.slow]

SWEEP = json.dumps({"name": "seeds", "base": BODY, "grid": {"train.seed": [1, 2]}})


def run(served_dir: Path, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text, env={"STABLESSM_DATA_DIR": str(served_dir)}, catch_exceptions=False)


def end(database: Database, status: str, loss: float) -> None:
    taken = claim(database)
    with database.write() as session:
        lifecycle.finish(session, taken.run_id, taken.attempt, status, "why \x1b[2J", {"train_loss": loss})


def test_a_sweep_is_submitted_from_a_file_and_listed(served_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.json"
    file.write_text(SWEEP)
    done = run(served_dir, "sweep", str(file), "--set", "train.steps=7", "--name", "mine", "--priority", "5")
    assert done.exit_code == 0, done.output
    assert "sweep 1 has 2 runs: http://" in done.output
    runs = [json.loads(line) for line in run(served_dir, "runs", "sweep=1", "--json").output.splitlines()]
    assert [(one["steps"], one["priority"], one["sweep_name"]) for one in runs] == [(7, 5, "mine")] * 2
    assert run(served_dir, "sweep", "-", text=SWEEP).exit_code == 0
    listed = run(served_dir, "sweeps").output.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [["2", "0/0", "0/0"], ["1", "0/0", "0/0"]]
    assert "seed x 2" in listed[1]
    assert [json.loads(line)["id"] for line in run(served_dir, "sweeps", "seeds", "--json").output.splitlines()] == [2]
    assert run(served_dir, "sweeps", "nothing").output == "No sweeps.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{nope", "is not JSON"),
        ("[]", "a sweep must be a JSON object"),
        (json.dumps({"base": BODY}), "a sweep needs 'grid'"),
        (json.dumps(BODY), "a sweep needs 'base', a JSON object; the given fields are task"),
        (json.dumps({"base": BODY, "grid": {"train.seed": []}}), "at least one value"),
        (json.dumps({"base": BODY, "grid": {"train.seed": [1]}, "title": "x"}), "title"),
    ],
)
def test_an_invalid_sweep_file_is_refused_in_one_line(served_dir: Path, text: str, said: str) -> None:
    done = run(served_dir, "sweep", "-", text=text)
    assert done.exit_code == 1
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize(("second", "status"), [("finished", 0), ("diverged", 2)])
def test_watching_a_sweep_prints_how_each_run_ends(
    served_dir: Path, sqlite: Database, monkeypatch: pytest.MonkeyPatch, second: str, status: int
) -> None:
    monkeypatch.setattr("server.cli.sweeps.POLL_SECONDS", 0.02)

    def queued() -> int:
        with sqlite.read() as session:
            return session.scalar(select(func.count()).where(Run.status == "queued")) or 0

    def train() -> None:
        while queued() < 2:
            time.sleep(0.02)
        end(sqlite, "finished", 0.5)
        end(sqlite, second, float("nan") if second == "diverged" else 0.25)

    training = threading.Thread(target=train, daemon=True)
    training.start()
    done = run(served_dir, "sweep", "-", "--watch", text=SWEEP)
    training.join()
    assert done.exit_code == status, done.output
    assert "run 1 seed=1: finished, loss 0.5" in done.output
    assert f"run 2 seed=2: {second}" in done.output
    assert "\x1b" not in done.output
    assert f"{2 if second == 'finished' else 1} of 2 runs finished with a finite loss" in done.output


def test_a_sweep_table_is_written_in_the_format_of_its_file_suffix(served_dir: Path, sqlite: Database, tmp_path: Path) -> None:
    run(served_dir, "sweep", "-", text=SWEEP)
    end(sqlite, "finished", 0.5)
    end(sqlite, "diverged", float("nan"))
    printed = run(served_dir, "sweep-table", "1", "--columns", "run,status,train_loss").output
    assert printed.splitlines()[2:4] == ["| 1 | finished | 0.5 |", "| 2 | diverged | nan |"]
    assert run(
        served_dir, "sweep-table", "1", "--group-by", "name", "--columns", "finite,total", "--format", "csv"
    ).output.split() == [
        "finite,total",
        "1,1",
        "0,1",
    ]
    for name in ("t.csv", "t.parquet", "t.md", "t.tex", "t.json"):
        assert "bytes" in run(served_dir, "sweep-table", "1", "-o", str(tmp_path / name)).output
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").num_rows == 2
    assert "tabular" in (tmp_path / "t.tex").read_text()
    refused = run(served_dir, "sweep-table", "1", "--format", "parquet")
    assert (refused.exit_code, "the file with -o" in refused.output) == (1, True)
    unknown = run(served_dir, "sweep-table", "1", "--columns", "weather")
    assert (unknown.exit_code, "train_loss" in unknown.output) == (1, True)


def test_a_paper_table_is_written_in_the_format_of_its_file_ending_or_refused(
    served_dir: Path, sqlite: Database, tmp_path: Path
) -> None:
    run(served_dir, "sweep", "-", text=SWEEP)
    end(sqlite, "finished", 0.5)
    end(sqlite, "diverged", float("nan"))
    for of in ("sweep:1", "1,2", "task=polynomial_memory"):
        printed = run(served_dir, "table", of, "--digits", "2").output.splitlines()
        assert printed[0] == "| map | final loss |"
        assert printed[2].endswith("| 0.50 (1/2) |"), printed
    for name in ("t.csv", "t.parquet", "t.md", "t.tex", "t.json"):
        assert "bytes" in run(served_dir, "table", "sweep:1", "-o", str(tmp_path / name)).output
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").num_rows == 1
    for arguments, said in (
        (("-o", str(tmp_path / "t.xlsx")), "allowed: .csv, .parquet, .md, .tex, .json"),
        (("--format", "parquet"), "the file with -o"),
        (("--metric", "weather"), "eval_accuracy"),
    ):
        refused = run(served_dir, "table", "sweep:1", *arguments)
        assert refused.exit_code
        assert said in " ".join(refused.output.split())
