"""`stablessm reproduce culprits`: the files that it writes, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from server.cli.main import main
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from studies import culprits
from studies.culprits_report import findings_of
from studies.culprits_text import culprits_text
from tests.server.recording import claim

pytestmark = [pytest.mark.spread, pytest.mark.slow]


def reproduce(served_dir: Path, *arguments: str) -> Result:
    command = ["reproduce", "culprits", *arguments]
    return CliRunner().invoke(main, command, env={"STABLESSM_DATA_DIR": str(served_dir)}, catch_exceptions=False)


def test_the_report_and_its_figure_are_written(
    sqlite: Database, served_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act_as_worker(*_arguments: object) -> None:
        while claimed(sqlite):
            pass

    monkeypatch.setattr(culprits, "wait_for_sweeps", act_as_worker)
    output = tmp_path / "report.md"
    done = reproduce(served_dir, "--quick", "--seeds", "1", "--layers", "gla,retnet", "-o", str(output))
    assert done.exit_code == 0, done.output
    assert "if interrupted, continue with --resume 1" in done.stderr
    text = output.read_text()
    assert "| gla | 1/1 [0.21, 1.00] |  |  |  |" in text
    assert "| retnet | 1/1 [0.21, 1.00] |  |  |  |" in text
    assert text.endswith("![|λ| against the length of the sequence](report.svg)\n")
    assert (tmp_path / "report.svg").read_bytes().startswith(b"<?xml")
    files = [tmp_path / f"report{ending}" for ending in (".json", ".html", ".tex")]
    written = reproduce(served_dir, "--resume", "1", *(word for file in files for word in ("-o", str(file))))
    assert written.exit_code == 0, written.output
    report = json.loads(files[0].read_text())
    assert report["tables"][0]["rows"][0] == ["gla", "1/1 [0.21, 1.00]", "", "", ""]
    assert culprits_text(findings_of(report)).rstrip().splitlines()[4:] == text.rpartition("![")[0].rstrip().splitlines()[4:]
    assert "<svg" in files[1].read_text()
    assert (tmp_path / "report-0.pdf").read_bytes().startswith(b"%PDF")
    again = reproduce(served_dir, "--resume", "2")
    assert again.exit_code == 0, again.output
    assert again.stdout.strip() == text.rpartition("![")[0].strip(), "the same runs give the same report"


def claimed(database: Database) -> bool:
    """Finish the next queued run; False if there is none."""
    try:
        own = claim(database)
    except AssertionError:
        return False
    with database.write() as session:
        lifecycle.finish(session, own.run_id, own.attempt, "finished", "", {"train_loss": 0.5})
    return True


def test_bad_input_gets_one_clear_error(served_dir: Path) -> None:
    for arguments, error in (
        (["--layers", "s4x"], "'s4x'; allowed: stable_ssm"),
        (["--resume", "7"], "no sweep 7"),
        (["--seeds", "0"], "0 is not in the range 1<=x<=12"),
        (["-o", "report.pdf"], "allowed endings: .json, .html, .md, .tex"),
    ):
        done = reproduce(served_dir, *arguments)
        assert done.exit_code != 0
        assert error in done.output
