"""No absolute path of a worker reaches a reader. The test uses a real worker, damaged data and a failing run, and searches all
responses, pages and output."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from server.cli.main import main
from server.database.connection import Database
from server.database.models import Worker
from tests.server.http_service import BEARER, TOKEN, running
from tests.worker.station import Station

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("runs", "show 1", "show 1 --json", "watch 1", "logs 1", "checkpoints 1", "compare 1", "queue list")


@pytest.fixture
def station(sqlite_url: str, tmp_path: Path) -> Iterator[Station]:
    station = Station(Database(sqlite_url), tmp_path / "state")
    data = station.data_dir / "data"
    (data / "mnist").mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (data / "mnist" / name).write_bytes(b"damaged")
    (data / "words.txt").write_text("to be or not to be " * 500)
    yield station
    station.close()


def test_no_response_page_or_output_contains_an_absolute_path_of_the_worker(station: Station, tmp_path: Path) -> None:
    station.start("--slots", "1")

    def knows_its_data() -> bool:
        with station.database.read() as session:
            return any("words.txt" in worker.capabilities.get("data", {}) for worker in session.query(Worker))

    station.until("the worker's data sets", knows_its_data)
    (station.data_dir / "data" / "words.txt").write_bytes(b"")  # a missing file would return the run to the queue
    run_id = station.submit({"task": {"name": "char_lm", "file": "words.txt"}})
    run = station.until_ended(run_id)
    assert run.status == "failed"
    assert "words.txt" in run.status_reason
    log = station.data_dir / "runs" / str(run_id) / "log.txt"
    assert str(station.data_dir) in log.read_text(), "the local log must contain the path, so that the test can detect a leak"
    station.until("the end of its log", lambda: any("run failed" in text for _, text in station.run_log(run_id)))
    answers = {}
    with (
        running(station.database.url, tmp_path) as (address, _),
        httpx.Client(base_url=address, headers=BEARER, timeout=60) as client,
    ):
        document = client.get("/openapi.json").json()
        paths = [path for path, methods in document["paths"].items() if "get" in methods and "stream" not in path]
        for path in [
            *paths,
            "/",
            "/runs/1",
            "/runs/1?x=1",
            "/alerts",
            "/workers",
            "/new?clone=1",
            "/compare?runs=1",
            "/access",
            "/paper",
        ]:
            known = {
                "run_id": "1",
                "name": "default",
                "step": "1",
                "chart": "loss",
                "sweep_id": "1",
                "report": "table5",
                "number": "0",
            }
            answers[path] = client.get(path.format(**known)).text
        environment = {"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}
        for command in COMMANDS:
            answers[command] = CliRunner().invoke(main, command.split(), env=environment).output
    assert "Traceback (most recent call last)" in answers["/api/runs/{run_id}/log"]
    assert "Traceback (most recent call last)" in answers["logs 1"]
    assert "mnist" in answers["/api/workers"]
    secret = {str(station.data_dir), str(tmp_path), str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")}
    told = [(place, path) for place, text in answers.items() for path in secret if path in text]
    assert not told
