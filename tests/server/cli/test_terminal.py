"""Without a terminal, the command line prints whole lines without styles, shows non-finite numbers and escapes foreign text."""

from __future__ import annotations

import math
from typing import Any

import pytest

from server.cli.run_views import run_page, run_table
from server.cli.terminal import number, show


def a_run(**changes: Any) -> dict[str, Any]:
    config = {"task": {"name": "digits"}, "model": {"reparameterization": {"name": "best"}}, "optimizer": {"lr": 0.01}}
    return {
        "id": 7, "status": "diverged", "status_reason": "loss is NaN", "step": 30, "steps": 1000, "attempt": 1, "alerts": 2,
        "name": None, "config": config, "result": {"train_loss": "NaN"}, "divergence": None, "environment": None,
        "waits_for": None, "forms": [{"map": "best", "time": "discrete"}], "steps_per_second": None, "eta_seconds": None,
        "user": "alice", "host": "node-7", "gpu_name": "NVIDIA H200",
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        ("-Infinity", "-Infinity"),
        (0.123456, "0.1235"),
        (None, ""),
    ],
)
def test_non_finite_numbers_are_printed_by_name(value: float | str | None, shown: str) -> None:
    assert number(value) == shown


def test_a_long_table_row_stays_on_one_line_without_trailing_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    show(run_table([a_run(name="x" * 200), a_run(id=12)]))
    title, first, second = capsys.readouterr().out.splitlines()
    assert title.split() == ["run", "status", "step", "task", "map", "lr", "loss", "alerts", "by", "name"]
    assert first.split() == ["7", "diverged", "30/1000", "digits", "best", "0.01", "NaN", "2", "alice", "x" * 200]
    assert second == " 12  diverged  30/1000  digits  best  0.01   NaN       2  alice"
    show(run_table([]))
    assert capsys.readouterr().out == "No runs.\n"


def test_a_run_is_shown_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    alert = {"severity": "critical", "step": 29, "message": "it is NaN"}
    show(run_page(a_run(waits_for="a worker"), [alert]))
    assert capsys.readouterr().out.splitlines() == [
        "run 7  diverged  loss is NaN",
        "  step 30 of 1000, attempt 1",
        "  by alice on node-7, NVIDIA H200",
        "  waits for a worker",
        "result",
        "  train_loss = NaN",
        "config",
        "  task.name = digits",
        "  model.reparameterization.name = best",
        "  optimizer.lr = 0.01",
        "1 alerts",
        "  critical step 29: it is NaN",
    ]


def test_foreign_text_is_printed_without_markup_or_terminal_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(name="[red]\x1b[2Jname[/red] :smile:", status_reason="\x1b]0;title\x07")
    show(run_table([run]))
    show(run_page(run, []))
    shown = capsys.readouterr().out
    assert "[red]\N{REPLACEMENT CHARACTER}[2Jname[/red] :smile:" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown
