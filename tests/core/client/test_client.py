"""Against the real application, the Python client returns exactly what was recorded."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from server.series.recording import store_checkpoint
from stablessm_core.client import ApiError, Client, LiveEvent, find_server
from stablessm_core.report.messages import MetricsMessage
from stablessm_core.spec.config import parse_config
from tests.server.http_service import BODY, TOKEN, InProcess, application, running
from tests.server.recording import Recording, claim, nonfinite
from tests.server.storing import store_metrics

pytestmark = pytest.mark.slow

RATIO = "ssm/0/grad_over_weight"


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.close()


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[Client]:
    with Client("http://127.0.0.1:8000", TOKEN, transport=InProcess(application(database.url, tmp_path))) as client:
        yield client


@pytest.fixture
def recording(client: Client, database: Database) -> Recording:
    client.submit(BODY | {"train": {"steps": 500}, "model": {"d_state": 4}})
    made = Recording(database, claim(database), width=4)
    made.write(200, [nonfinite(step=7)])
    return made


def test_the_client_submits_lists_changes_and_stops_runs(client: Client) -> None:
    first = client.submit(parse_config(BODY), key="once")
    assert client.submit(BODY, key="once")["id"] == first["id"] == 1
    clone = client.clone(1, {"optimizer.lr": 0.5})
    assert clone["config"]["optimizer"]["lr"] == 0.5
    sweep = client.submit_sweep(BODY, {"train.seed": range(120)})
    assert client.sweep(sweep["id"])["statuses"] == {"queued": 120}
    assert client.update_sweep(sweep["id"], name="seeds")["name"] == "seeds"
    assert [run["id"] for run in client.runs(sort="id")] == [1, clone["id"], *(run["id"] for run in sweep["runs"])]
    assert [run["id"] for run in client.runs("lr=0.5")] == [clone["id"]]
    assert len(list(client.runs(limit=7))) == 7
    assert client.update(1, name="x")["name"] == "x"
    assert client.cancel(1)["status"] == "cancelled"
    assert client.resume(1)["status"] == "queued"
    client.cancel(1)
    client.delete(1)
    with pytest.raises(ApiError) as refused:
        client.run(1)
    assert (refused.value.status, refused.value.code, refused.value.field) == (404, "not_found", "run_id")
    assert client.workers() == []


def test_a_refused_submission_names_the_field_and_the_allowed_values(client: Client) -> None:
    with pytest.raises(ApiError, match="allowed: >= 1") as refused:
        client.submit(BODY | {"train": {"steps": 0}})
    assert (refused.value.field, refused.value.allowed) == ("train.steps", ">= 1")


def test_series_arrive_as_numpy_arrays_bit_for_bit(client: Client, recording: Recording) -> None:
    series = client.series(1, RATIO)
    assert (series.step.dtype, series.value.dtype) == (np.int64, np.float32)
    assert np.array_equal(series.step, recording.steps)
    assert np.array_equal(series.value.view(np.uint32), recording.truth[RATIO].view(np.uint32))
    loss = client.series(1, "train/loss", from_step=10, to_step=12)
    assert loss.value.shape == (3,)
    some = client.series(1, RATIO, eigenvalues=[2])
    assert np.array_equal(some.value, recording.truth[RATIO][:, 2], equal_nan=True)
    coarse = client.series(1, RATIO, max_points=10)
    assert coarse.value is None
    assert coarse.max.shape == coarse.nonfinite.shape == (10, 4)
    assert {s["name"] for s in client.catalogue(1)} >= {RATIO, "train/loss"}


def test_series_can_be_read_as_arrow_tables_and_saved_to_files(client: Client, recording: Recording) -> None:
    table = client.arrow(1, RATIO)
    assert table.num_rows == 200
    values = table["value"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(200, 4)
    assert np.array_equal(values, recording.truth[RATIO], equal_nan=True)
    screen = client.overview(1, points=10)["series"]["train/loss"]
    np.testing.assert_array_equal(screen["max"], client.series(1, "train/loss", max_points=10).max)
    layer = client.overview(1, part="layer")["series"][RATIO]
    np.testing.assert_array_equal(layer["value"], client.series(1, RATIO).value)
    assert client.download(1, "train/loss", "csv").startswith(b"step,value\n1,")


def test_the_figure_of_a_page_is_returned_as_a_plotly_figure(client: Client, recording: Recording) -> None:
    figure = client.figure(1, "grad_over_weight", eigenvalues=[1])
    assert figure.layout.yaxis.type == "log"
    lines = [trace for trace in figure.data if trace.meta.get("each") == "eigenvalue"]
    truth = recording.truth[RATIO][:, 1]
    shown = np.where(np.isfinite(truth) & (truth > 0), truth, np.nan).astype(np.float32)
    assert np.array_equal(np.asarray(lines[0].y, np.float32), shown, equal_nan=True)


def test_the_client_reads_alerts_and_comparisons(client: Client, recording: Recording) -> None:
    assert [alert["step"] for alert in client.alerts(1)] == [7]
    assert list(client.alerts(since=next(client.alerts())["id"])) == []
    assert client.compare([1])["ranges"][0]["run_id"] == 1


def test_paginated_lists_are_read_completely(client: Client, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "runs"):
        monkeypatch.setattr(f"stablessm_core.client.{module}.PAGE", 3)
    for seed in range(7):
        client.submit_sweep(BODY, {"train.seed": [seed]}, name=f"sweep {seed}")
    Recording(database, claim(database), width=4).write(20, [nonfinite(step=step) for step in range(1, 8)])
    assert [sweep["id"] for sweep in client.sweeps()] == [7, 6, 5, 4, 3, 2, 1]
    assert [sweep["id"] for sweep in client.sweeps("sweep 3")] == [4]
    assert [alert["step"] for alert in client.alerts()] == [7, 6, 5, 4, 3, 2, 1]
    assert [alert["step"] for alert in client.alerts(1)] == [1, 2, 3, 4, 5, 6, 7]
    assert [alert["step"] for alert in client.alerts(severity="warning")] == []
    assert len([entry for entry in client.audit() if entry["path"] == "/api/sweeps"]) == 7
    for some in (
        client.runs(limit=4),
        client.sweeps(limit=4),
        client.alerts(limit=4),
        client.alerts(1, limit=4),
        client.audit(limit=4),
    ):
        assert len(list(some)) == 4


def test_a_checkpoint_is_downloaded_completely_or_not_at_all(
    client: Client, database: Database, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 5000
    path = "runs/1/checkpoints/attempt-1/step-0000000020.safetensors"
    with database.write() as session:
        store_checkpoint(session, 1, 1, 20, path, hashlib.sha256(content).hexdigest())
    file, target = tmp_path / "state" / path, tmp_path / "got.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert [(one["step"], one["available"]) for one in client.checkpoints(1)] == [(20, True)]
    assert client.download_checkpoint(1, 20, target).read_bytes() == content
    with pytest.raises(ApiError, match="no checkpoint of step 21"):
        client.download_checkpoint(1, 21, target)
    monkeypatch.setattr(httpx.Response, "iter_bytes", lambda self: iter([content[:-1]]))
    with pytest.raises(ValueError, match="damaged in transit"):
        client.download_checkpoint(1, 20, target)
    assert target.read_bytes() == content
    assert [other.name for other in tmp_path.iterdir() if other.name.endswith(".partial")] == []


def test_the_client_reads_the_history_and_the_log_of_a_run(client: Client, recording: Recording) -> None:
    assert [event["status"] for event in client.history(1)["events"]] == ["queued", "running"]
    assert client.log(1)["pieces"] == []


def test_watching_a_run_yields_every_step_once_despite_a_server_restart(
    database: Database, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stablessm_core.client.live.RETRY_SECONDS", (0.1,))
    # A fixed port: while the server is down, the kernel could give an ephemeral port to an outgoing connection.
    with running(database.url, tmp_path, listen=free_port) as (address, _):
        client = Client(address, TOKEN)
        client.submit(BODY | {"train": {"steps": 500}, "model": {"d_state": 4}})
        recording = Recording(database, claim(database), width=4)
        collected: list[LiveEvent] = []

        def collect() -> None:
            for event in client.watch(1, after="0"):
                collected.append(event)

        watching = threading.Thread(target=collect, daemon=True)
        watching.start()
        recording.write(30)
        deadline = time.monotonic() + 60
        while not any(e.kind == "points" for e in list(collected)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    recording.write(20)  # while no server runs
    with running(database.url, tmp_path, listen=free_port):
        recording.write(10)
        with database.write() as session:
            lifecycle.finish(session, 1, 1, "finished")
        watching.join(90)
        assert not watching.is_alive()
    steps = np.concatenate([e.series[RATIO].step for e in collected if e.kind == "points"])
    values = np.concatenate([e.series[RATIO].value for e in collected if e.kind == "points"])
    assert steps.tolist() == list(range(1, 61))
    assert np.array_equal(values, recording.truth[RATIO], equal_nan=True)
    assert collected[-1].data["status"] == "finished"
    assert len({e.id for e in collected}) == len(collected)
    client.close()


def test_watching_an_unreachable_server_raises_an_error_after_the_timeout() -> None:
    with Client("http://127.0.0.1:9", TOKEN) as client, pytest.raises(httpx.TransportError):
        list(client.watch(1, patience=0.0))


def test_the_client_finds_a_server_on_the_same_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server(tmp_path) == ("http://127.0.0.1:8000", None)
    (tmp_path / "up.json").write_text('{"pid": 1, "url": "http://127.0.0.1:8123"}')
    (tmp_path / "token").write_text("the-token\n")
    assert find_server(tmp_path) == ("http://127.0.0.1:8123", "the-token")
    monkeypatch.setenv("STABLESSM_URL", "http://elsewhere:1")
    monkeypatch.setenv("STABLESSM_TOKEN", "other")
    assert find_server(tmp_path) == ("http://elsewhere:1", "other")
    (tmp_path / "up.json").write_text("")  # an empty file, as a clean shutdown leaves it
    monkeypatch.delenv("STABLESSM_URL")
    assert find_server(tmp_path)[0] == "http://127.0.0.1:8000"


def test_free_metrics_have_values_series_and_a_figure_whatever_their_names(client: Client, recording: Recording) -> None:
    own, odd = recording.claim, "val/top-1? 100%#é中"
    with recording.database.write() as session:
        store_metrics(session, own.run_id, own.attempt, MetricsMessage([5, 90], {odd: [math.nan, 0.5], "a": [1.0, None]}))
    assert client.free_metrics(1) == {"a": 1.0, odd: 0.5}
    found = client.series(1, odd)
    assert (found.step.tolist(), str(found.value[0]), float(found.value[1])) == ([5, 90], "nan", 0.5)
    assert client.download(1, odd, "csv") == b"step,value\n5,nan\n90,0.5\n"
    value = next(trace for trace in client.figure(1, "metric", metric=odd).data if trace.name == "value")
    assert [float(y) for y in value.x] == [5, 90]
    with pytest.raises(ApiError, match="needs a metric"):
        client.figure(1, "metric")
