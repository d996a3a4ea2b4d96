"""`stablessm reproduce`: studies without runs write their reports, and wrong arguments are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from server.cli.reproduce import reproduce
from server.cli.reproduce_paper import newest
from stablessm_core.client import Client
from studies.paper.catalogue import NAMES, design
from studies.paper.registry import load
from studies.paper.submission import start
from tests.server.http_service import TOKEN


def call(*words: str) -> Result:
    return CliRunner().invoke(reproduce, list(words))


def test_every_table_and_figure_has_a_command() -> None:
    assert {*NAMES, "all", "systems"} <= set(reproduce.commands)


@pytest.mark.slow
def test_table5_writes_the_known_ratios_in_every_format(tmp_path: Path) -> None:
    files = [tmp_path / f"table5{ending}" for ending in (".json", ".md", ".tex", ".html")]
    done = call("table5", *(word for file in files for word in ("-o", str(file))))
    assert done.exit_code == 0, done.output
    assert "table5-ratios: holds. At λ = 0.9, 0.99 and 0.999: best 2, 2, 2; exp 4.214, 21.63, 144.7; direct 111.1" in done.output
    report = json.loads(files[0].read_text())
    rows = {row[0]: dict(zip(report["tables"][0]["columns"], row, strict=True)) for row in report["tables"][0]["rows"]}
    for lambda_, best, exp, direct in (("0.9", 2, 4.21, 111), ("0.99", 2, 21.6, 1.01e4), ("0.999", 2, 145, 1e6)):
        shown = [rows[lambda_][name] for name in ("best", "exp", "direct")]
        assert shown == pytest.approx([best, exp, direct], rel=0.01)
    assert "(table5-0.svg)" in files[1].read_text()
    assert "{table5-0.pdf}" in files[2].read_text()
    assert "<svg" in files[3].read_text()
    assert (tmp_path / "table5-0.svg").stat().st_size > 1000
    assert (tmp_path / "table5-0.pdf").read_bytes().startswith(b"%PDF")


def test_wrong_arguments_are_refused_with_what_is_allowed(tmp_path: Path) -> None:
    assert "allowed endings: .json, .html, .md, .tex" in call("table5", "-o", str(tmp_path / "a.pdf")).output
    assert "'paper', 'released'" in call("table2", "--preset", "mine").output
    assert call("table5", "--seeds", "3").exit_code == 2, "a study without random numbers has no seeds"
    assert call("table2", "--seeds", "0").exit_code == 2
    assert call("table2", "--resume", "0").exit_code == 2


@pytest.mark.slow
def test_all_resume_continues_the_newest_reproduction_of_the_same_study_and_size(served_dir: Path) -> None:
    url = json.loads((served_dir / "up.json").read_text())["url"]
    with Client(url, TOKEN) as client:
        _, older = start(client, design("fig3", None, "quick"), load())
        _, newer = start(client, design("fig3", None, "quick"), load())
        start(client, design("table7", None, "quick"), load())
    assert newest("fig3", None, "quick", served_dir) in newer
    assert set(older).isdisjoint(newer)
    assert newest("fig3", None, "full", served_dir) is None
    assert newest("table2", "paper", "quick", served_dir) is None
