"""The commands of docs/paper.md, from the sweep to the table and the figures."""

from __future__ import annotations

import re
import shlex
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import func, select

from server.cli.main import main
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import TOKEN, running
from tests.server.recording import Recording, claim

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[3] / "docs" / "paper.md"


def commands() -> tuple[dict[str, str], list[list[str]]]:
    """The files that the page writes by `cat`, and the arguments of its `stablessm` commands."""
    (block,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    files = dict(re.findall(r"^cat > (\S+) <<'JSON'\n(.*?)^JSON$", block, flags=re.MULTILINE | re.DOTALL))
    return files, [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("stablessm ")]


def train(database: Database, runs: int, stop: threading.Event) -> None:
    """Train all runs once they are queued, as a worker would: the map `direct` diverges at the higher learning rate."""

    def queued() -> int:
        with database.read() as session:
            return session.scalar(select(func.count()).where(Run.status == "queued")) or 0

    while queued() < runs and not stop.is_set():
        time.sleep(0.02)
    for seed in range(runs):
        of = claim(database)
        Recording(database, of, width=4, seed=seed, weird=False).write(30)
        lost = of.config["model"]["reparameterization"]["name"] == "direct" and of.config["optimizer"]["lr"] == 0.02
        with database.write() as session:
            result = {"train_loss": "NaN" if lost else 0.01 + seed / 1000}
            lifecycle.finish(session, of.run_id, of.attempt, "diverged" if lost else "finished", "", result)


def test_the_commands_of_the_page_write_its_table_and_figures(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, arguments = commands()
    assert [line[0] for line in arguments] == ["sweep", "table", "figure", "figure", "table"]
    monkeypatch.setattr("server.cli.sweeps.POLL_SECONDS", 0.02)
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    stop = threading.Event()
    training = threading.Thread(target=train, args=(sqlite, 12, stop), daemon=True)
    with running(sqlite.url, tmp_path) as (address, _):
        training.start()
        environment = {"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}
        try:
            for line in arguments:
                done = CliRunner().invoke(main, line, env=environment)
                assert done.exit_code == (2 if line[0] == "sweep" else 0), (line, done.output)
        finally:
            stop.set()
        training.join()
    table = Path("loss.tex").read_text()
    assert r"\toprule" in table
    assert "final loss by learning rate" in table
    assert "none finite (0/2)" in table
    assert table.count("(2/2)") == 5
    for name, width in (("final-loss.pdf", 85), ("loss.pdf", 175)):
        pdf = Path(name).read_bytes()
        assert b"/FontFile2" in pdf
        (points,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)
        assert float(points) == pytest.approx(width / 25.4 * 72, abs=0.01)
    assert Path("best.csv").read_text().startswith("map,learning rate,best loss: median,")
