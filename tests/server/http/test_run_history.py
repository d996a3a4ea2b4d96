"""A run's log, checkpoints and history over REST."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.checkpoint_store import CheckpointStore
from server.database.connection import Database
from server.database.models import CheckpointRow
from server.lifecycle import transitions as lifecycle
from server.lifecycle.logs import KEPT_FIRST, append_log, store_traceback
from server.series.recording import store_checkpoint
from server.settings import run_folder
from tests.server.http_service import application, client_of, error_of
from tests.server.recording import Recording, claim, claimed
from tests.server.storing import truncate

pytestmark = pytest.mark.slow


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def checkpoint(database: Database, run: lifecycle.Claim, state: Path, step: int, content: bytes) -> Path:
    path = f"runs/{run.run_id}/checkpoints/attempt-{run.attempt}/step-{step:010d}.safetensors"
    with database.write() as session:
        store_checkpoint(session, run.run_id, run.attempt, step, path, hashlib.sha256(content).hexdigest())
    file = state / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_a_log_can_be_read_from_the_position_where_the_reader_stopped(client: httpx.Client, database: Database) -> None:
    run = claimed(database)
    url = f"/api/runs/{run.run_id}/log"
    assert client.get(url).json() == {"run_id": 1, "status": "running", "pieces": [], "next": 0, "tracebacks": []}
    with database.write() as session:
        append_log(session, run.run_id, 1, 0, "one\n")
    first = client.get(url).json()
    assert [(piece["attempt"], piece["text"], piece["cut"]) for piece in first["pieces"]] == [(1, "one\n", 0)]
    with database.write() as session:
        append_log(session, run.run_id, 1, 4, "two\n")
        lifecycle.release(session, run.run_id, 1, "drained")
    again = claim(database)
    with database.write() as session:
        append_log(session, run.run_id, again.attempt, 8 + 1000, "three <b>\n")
        store_traceback(session, run.run_id, again.attempt, "Traceback\n  here\n")
        lifecycle.finish(session, run.run_id, again.attempt, "failed", "why")
    later = client.get(url, params={"after": first["next"]}).json()
    assert [(piece["attempt"], piece["text"], piece["cut"]) for piece in later["pieces"]] == [
        (1, "two\n", 0),
        (2, "three <b>\n", 1000),
    ]
    assert (later["status"], later["tracebacks"][0]["attempt"]) == ("failed", 2)
    assert client.get(url, params={"after": later["next"]}).json()["pieces"] == []
    text = client.get(url, params={"format": "text"})
    assert text.headers["content-type"].startswith("text/plain")
    assert text.text == (
        "--- attempt 1 ---\none\ntwo\n… 1,000 characters are not kept …\n--- attempt 2 ---\nthree <b>\n"
        "--- traceback of attempt 2 ---\nTraceback\n  here\n"
    )


def test_a_long_traceback_keeps_its_beginning_and_its_end(client: httpx.Client, database: Database) -> None:
    run = claimed(database)
    with database.write() as session:
        store_traceback(session, run.run_id, 1, "first\n" + "x" * KEPT_FIRST + "\nlast")
    text = client.get("/api/runs/1/log").json()["tracebacks"][0]["text"]
    assert text.startswith("first\n")
    assert text.endswith("\nlast")
    assert "characters left out" in text
    assert len(text) < 17_000


def test_the_history_lists_every_change_with_its_reason_attempt_and_worker(client: httpx.Client, database: Database) -> None:
    run = claimed(database)
    recording = Recording(database, run)
    recording.write(40)
    with database.write() as session:
        store_checkpoint(session, 1, 1, 20, "runs/1/x", "0" * 64)
        truncate(session, 1, 1, 31, "rolled back to step 30")
        lifecycle.release(session, 1, 1, "lost contact")
    again = claim(database, "gpu-7:44:1763711999")
    with database.write() as session:
        lifecycle.request_cancel(session, 1)
        lifecycle.finish(session, 1, again.attempt, "cancelled", "")
        lifecycle.resume_run(session, 1)
    found = client.get("/api/runs/1/history").json()
    assert [(e["event"], e["status"], e["reason"]) for e in found["events"]] == [
        ("submitted", "queued", "submitted"),
        ("started", "running", "attempt 1 on tester"),
        ("rolled_back", "running", "rolled back to step 30"),
        ("requeued", "queued", "lost contact"),
        ("started", "running", "attempt 2 on gpu-7:44:1763711999, resumed after step 20"),
        ("cancel_requested", "running", "cancel requested"),
        ("ended", "cancelled", "cancelled"),
        ("resumed", "queued", "resumed"),
    ]
    assert [e["truncated_from"] for e in found["events"]] == [None, None, 31, None, 21, None, None, None]
    assert [(a["attempt"], a["host"], a["from_step"], a["to_step"], a["status"]) for a in found["attempts"]] == [
        (1, "tester", 0, 30, "queued"),
        (2, "gpu-7", 20, 20, "cancelled"),
    ]
    since = found["events"][3]["seq"]
    later = client.get("/api/runs/1/history", params={"since": since}).json()
    assert later["events"] == found["events"][4:]


def test_a_checkpoint_is_listed_and_downloaded_with_its_checksum(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    run, content = claimed(database), b"weights" * 300_000
    Recording(database, run).write(50)
    checkpoint(database, run, tmp_path / "state", 20, content)
    checkpoint(database, run, tmp_path / "state", 40, b"newer")
    listed = client.get("/api/runs/1/checkpoints").json()["checkpoints"]
    assert [(c["step"], c["size_bytes"], c["available"], c["host"]) for c in listed] == [
        (40, 5, True, "tester"),
        (20, len(content), True, "tester"),
    ]
    assert str(tmp_path) not in str(listed)
    answer = client.get(listed[1]["url"])
    assert answer.content == content
    digest = hashlib.sha256(content)
    assert answer.headers["etag"] == f'"{digest.hexdigest()}"' == f'"{listed[1]["sha256"]}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["content-disposition"] == 'attachment; filename="run-1-step-0000000020.safetensors"'


def test_only_recorded_undamaged_files_in_the_run_folder_can_be_downloaded(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    run = claimed(database)
    Recording(database, run).write(50)
    damaged = checkpoint(database, run, state, 20, b"good")
    damaged.write_bytes(b"evil")
    error = error_of(client.get("/api/runs/1/checkpoints/20"), 409)
    assert "damaged" in error["message"]
    elsewhere = checkpoint(database, run, state, 30, b"elsewhere")
    elsewhere.unlink()
    error = error_of(client.get("/api/runs/1/checkpoints/30"), 409)
    assert "host tester" in error["message"]
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    checkpoint(database, run, state, 40, b"secret").unlink()
    (run_folder(state, 1) / "checkpoints/attempt-1/step-0000000040.safetensors").symlink_to(secret)
    with database.write() as session:
        for step, path in ((50, "../secret"), (60, str(secret)), (70, "runs/1/../../../secret"), (80, "token")):
            session.add(
                CheckpointRow(
                    run_id=1, step=step, attempt=1, path=path, sha256=hashlib.sha256(b"secret").hexdigest(), created_at=1
                )
            )
    for step in (40, 50, 60, 70, 80):
        answer = client.get(f"/api/runs/1/checkpoints/{step}")
        assert error_of(answer, 409)["field"] == "step"
        assert str(tmp_path) not in answer.text
    assert [c["step"] for c in client.get("/api/runs/1/checkpoints").json()["checkpoints"] if c["available"]] == [20]
    error = error_of(client.get("/api/runs/1/checkpoints/21"), 404)
    assert (error["field"], error["allowed"]) == ("step", "80, 70, 20"), (
        "two checkpoints are kept per run; older checkpoints are listed only if their files exist"
    )
    for part in ("log", "history", "checkpoints", "checkpoints/1"):
        assert error_of(client.get(f"/api/runs/99/{part}"), 404)["field"] == "run_id"


def test_a_checkpoint_of_another_machine_is_downloaded_from_the_checkpoint_store(database: Database, tmp_path: Path) -> None:
    url, run = f"file://{tmp_path / 'store'}", claimed(database)
    Recording(database, run).write(50)
    stored, waiting = (checkpoint(database, run, tmp_path / "state", step, b"weights %d" % step) for step in (20, 40))
    CheckpointStore(url).put(stored, stored.relative_to(tmp_path / "state").as_posix())
    with database.write() as session:
        session.get_one(CheckpointRow, (1, 20)).stored_at = 1.0
    stored.unlink()
    waiting.unlink()
    with client_of(application(database.url, tmp_path, checkpoint_store=url)) as client:
        listed = client.get("/api/runs/1/checkpoints").json()["checkpoints"]
        assert [(c["step"], c["available"]) for c in listed] == [(40, False), (20, True)]
        assert client.get(listed[1]["url"]).content == b"weights 20"
        (tmp_path / "store" / stored.relative_to(tmp_path / "state")).write_bytes(b"weights 21")
        assert "damaged" in error_of(client.get(listed[1]["url"]), 409)["message"]
