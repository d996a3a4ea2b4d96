"""Programs open runs of their own and post records: stored once, all or nothing, under the fence of their attempt."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from sqlalchemy import func, select

from server.database.connection import Database
from server.database.models import AlertRow, AuditRow, BlockRow, Run, Transition
from server.database.payloads import stored_numbers
from server.ingest import blocks
from server.lifecycle.reported import mark_lost
from server.series import alerts
from stablessm_core.report.frames import CONTENT_TYPE, LIMITS, pack
from stablessm_core.report.messages import (
    CatalogueMessage,
    EndMessage,
    EnvironmentMessage,
    MetricsMessage,
    TruncateMessage,
    to_bytes,
)
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, SeriesSpec, layer_catalogue, scalar
from stablessm_core.telemetry.sink import Flush
from tests.mutated_frames import CATALOGUE, FORM, flush, messages
from tests.server.http_service import BEARER, BODY, application, client_of, error_of, running
from tests.server.reporting import Program

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]
LOSSES = [scalar(TRAIN_LOSS)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "report_a_run.py"


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> FastAPI:
    return application(database_url, tmp_path, runs_per_minute=0)


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with client_of(app) as client:
        yield client


@pytest.fixture
def database(app: FastAPI) -> Database:
    found: Database = app.state.database
    return found


def losses(first: int, *values: float) -> Flush:
    block = Block(SCALARS, 0, first, 1, np.array([values], np.float32))
    return Flush([block], [], first + len(values) - 1, 1.0)


def stored(database: Database, run_id: int) -> dict[tuple[str, int, int], bytes]:
    with database.read() as session:
        rows = session.scalars(select(BlockRow).where(BlockRow.run_id == run_id)).all()
        return {(row.group_name, row.level, row.first_step): stored_numbers(row).tobytes() for row in rows}


def snapshot(database: Database, run_id: int) -> Any:
    """Everything about a run that a post could change, except its heartbeats."""
    with database.read() as session:
        run = session.get_one(Run, run_id)
        columns = {c.key: getattr(run, c.key) for c in Run.__table__.columns if c.key != "beat"}
        counts = [session.scalar(select(func.count()).where(t.run_id == run_id)) for t in (AlertRow, Transition)]
    return columns, counts, stored(database, run_id)


def row(database: Database, run_id: int) -> Run:
    with database.read() as session:
        return session.get_one(Run, run_id)


def token(client: httpx.Client, name: str, scope: str) -> dict[str, str]:
    answer = client.post("/api/tokens", json={"name": name, "scope": scope})
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['secret']}"}


def test_a_program_opens_a_run_with_its_own_description(client: httpx.Client, database: Database) -> None:
    more = {
        "project": "hybrid", "name": "mamba", "config": {"model": "mamba-130m", "x": [1, None, "ü"]}, "tags": ["a"],
        "how": {"optimizer": "adamw", "lr": "recorded", "grad_clip": 1.0}, "total_steps": 5000,
        "layers": [{"name": "mixer", "path": "backbone.layers.0.mixer", "width": 4}],
    }  # fmt: skip
    answer = client.post("/api/ingest/runs", json={"id": str(uuid.uuid4()).upper()} | more)
    assert answer.status_code == 201
    opened = answer.json()
    assert opened["limits"] == vars(LIMITS)
    assert (opened["attempt"], opened["next_step"], opened["url"]) == (1, 1, f"/runs/{opened['run_id']}")
    assert opened["lease_seconds"] == 60
    assert abs(opened["server_time"] - time.time()) < 30
    run = row(database, opened["run_id"])
    assert (run.kind, run.status, run.config, run.reported_config) == ("reported", "running", {}, more["config"])
    assert (run.project, run.name, run.tags) == ("hybrid", "mamba", ["a"])
    assert run.how is not None
    assert (run.how["optimizer"], run.how["total_steps"], run.how["momentum"]) == ("adamw", 5000, None)
    assert run.layers == [more["layers"][0] | {"note": None}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "7"), ("id", 7), ("project", "x" * 201), ("project", "a\0"), ("tags", [""] * 21),
        ("config", "x" * 66_000), ("config", {"a": "\0"}), ("config", {"a": 2**64}), ("how", {"lr": "fast"}),
        ("how", {"loss": 1}), ("how", {"grad_clip": -1}), ("layers", [{"name": "a", "path": "b"}]),
        ("layers", [{"name": "a", "path": "b", "width": 0}]), ("total_steps", 0), ("total_steps", 2**53), ("resume", "auto"),
        ("from_step", -1), ("client_time", -1), ("client_time", 1e12), ("secret", 1),
    ],
)  # fmt: skip
def test_a_wrong_description_is_refused_with_its_field(client: httpx.Client, field: str, value: object) -> None:
    error = error_of(client.post("/api/ingest/runs", json={"id": str(uuid.uuid4())} | {field: value}), 422)
    assert error["field"].split(".")[0] == field
    assert client.get("/api/runs").json()["runs"] == []


def test_a_very_deep_configuration_is_refused(client: httpx.Client) -> None:
    for depth in (40, 5000):
        body = f'{{"id": "{uuid.uuid4()}", "config": {"[" * depth + "]" * depth}}}'
        answer = client.post("/api/ingest/runs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)


def test_a_known_id_is_refused_or_continued_as_asked(client: httpx.Client) -> None:
    program = Program(client)
    error = error_of(program.open(), 409)
    assert (error["code"], error["field"]) == ("exists", "id")
    error_of(client.post("/api/ingest/runs", json={"id": str(uuid.uuid4()), "resume": "must"}), 404)
    for attempt, resume in enumerate(("allow", "must"), 2):
        answer = program.open(resume=resume)
        assert (answer.status_code, answer.json()["run_id"], answer.json()["attempt"]) == (200, program.run_id, attempt)
    assert client.post("/api/ingest/runs", json={"id": str(uuid.uuid4()), "resume": "allow"}).status_code == 201


def test_records_are_stored_bit_for_bit_and_give_the_same_derived_series(client: httpx.Client, database: Database) -> None:
    program, sent = Program(client), flush(1, 320)
    answer = program.post(CatalogueMessage(CATALOGUE), sent)
    assert answer.status_code == 200
    assert answer.json() == {"seq": 2, "stored_through": 320, "stop_requested": False}
    found = stored(database, program.run_id)
    assert found == {(b.group, b.level, b.first_step): b.values.tobytes() for b in sent.blocks}
    with database.read() as session:
        payloads = {block.payload for block in session.scalars(select(BlockRow))}
    assert all(payload in to_bytes(sent) for payload in payloads), "payloads are stored as they came"
    answer = client.get(f"/api/runs/{program.run_id}/series/ssm/0/eigenvalue", params={"max_points": 400}).json()
    (layer,) = (b.values for b in sent.blocks if (b.group, b.level) == ("ssm/0", 0))
    expected = FORM.derive("eigenvalue", {"weight": layer[4:8].T.astype(np.float64), "dt": layer[8:].T.astype(np.float64)})
    np.testing.assert_allclose(np.array(answer["value"], np.float64), expected, rtol=1e-6, atol=1e-40)
    alerts = client.get(f"/api/runs/{program.run_id}/alerts").json()["alerts"]
    assert [(a["kind"], a["step"], a["value"]) for a in alerts] == [("nonfinite_gradient", 1, "NaN")]
    assert row(database, program.run_id).largest_ratio == 3.5


def test_each_kind_of_record_is_stored(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    assert program.post(*messages()).json()["stored_through"] == 300
    run = row(database, program.run_id)
    assert (run.status, run.status_reason, run.attempt) == ("diverged", "a gradient became NaN", 1)
    assert run.environment == {"device": "cpu", "data": {"length": 128}, "parameters": 4096}
    assert run.divergence == {"step": 300, "layer": 0, "value": "NaN"}
    logged = client.get(f"/api/runs/{program.run_id}/series/val/loss").json()
    assert logged["step"] == [1, 64]
    assert [value if isinstance(value, str) else value[0] for value in logged["value"]] == ["NaN", "Infinity"]


def test_a_repeated_post_changes_nothing(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    posts = [
        (CatalogueMessage(CATALOGUE), flush(1)),
        (flush(65, seed=1), MetricsMessage([70], {"val/acc": [0.5]})),
        (TruncateMessage(100, "back"), flush(101, seed=2)),
        (EndMessage("finished", "done", {"train_loss": 1.0}),),
    ]
    for post in posts:
        first = program.post(*post)
        assert first.status_code == 200, first.text
        before = snapshot(database, program.run_id)
        again = program.post(*post)
        assert again.json() == first.json()
        assert snapshot(database, program.run_id) == before
    for post in posts:
        assert program.post(*post).status_code == 200, "a program may send everything again"
        assert snapshot(database, program.run_id)[2] == before[2]


def test_a_second_truncation_to_the_same_step_takes_back_what_was_stored_since(client: httpx.Client) -> None:
    program = Program(client)
    program.post(CatalogueMessage(LOSSES), losses(1, 1.0, 2.0, 3.0))
    for value in (20.0, 30.0):
        program.post(TruncateMessage(1, "back"))
        assert program.post(losses(2, value, value, value)).json()["stored_through"] == 4
    assert client.get(f"/api/runs/{program.run_id}/series/train/loss").json()["value"] == [1.0, 30.0, 30.0, 30.0]


def test_a_repeat_with_news_stores_only_the_news(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    program.describe()
    assert program.post(losses(1, 1.0, 2.0)).json()["seq"] == 2
    assert program.post(losses(1, 9.0, 9.0), losses(3, 3.0)).json() == {"seq": 3, "stored_through": 3, "stop_requested": False}
    assert client.get(f"/api/runs/{program.run_id}/series/train/loss").json()["value"] == [1.0, 2.0, 3.0]


def test_events_have_no_gaps_whatever_is_repeated(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    program.describe()
    for i in range(6):
        program.post(losses(i + 1, 1.0))
        program.post(losses(i + 1, 1.0), MetricsMessage([i + 1], {"acc": [float(i)]}))
        program.post()
    with database.read() as session:
        numbers = {*session.scalars(select(BlockRow.seq)), *session.scalars(select(Transition.seq))}
    seq = row(database, program.run_id).seq
    assert seq == 13
    assert numbers | {n for n in range(1, 14) if n % 2} == set(range(1, 14)), "a metric's block keeps its newest number only"


def test_a_bad_frame_is_named_and_nothing_of_its_post_is_stored(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    program.describe()
    program.post(losses(1, 1.0))
    before = snapshot(database, program.run_id)
    good = to_bytes(losses(2, 1.0))
    wide = Flush([Block(SCALARS, 0, 3, 1, np.ones((2, 1), np.float32))], [], 3, None)
    strange = Flush([Block("ssm/7", 0, 3, 1, np.ones((2, 1), np.float32))], [], 3, None)
    over = Flush([Block(SCALARS, 0, 1, 1, np.ones((1, 5), np.float32))], [], 5, None)
    other = CatalogueMessage([SeriesSpec(TRAIN_LOSS, SCALARS, 2, "", "")])
    for bad, field in [
        (b"x", "record"), (to_bytes(wide), "blocks.0.shape"), (to_bytes(strange), "blocks.0.group"),
        (to_bytes(over), "blocks.0.first_step"), (to_bytes(other), "series"),
        (to_bytes(CatalogueMessage([SeriesSpec("a", "ssm/1", 1, "", "")])), "series.0"),
        (to_bytes(CatalogueMessage([SeriesSpec("a", SCALARS, 1, "", "")])), "series"),
        (to_bytes(EndMessage("queued", "")), "status"),
    ]:  # fmt: skip
        error = error_of(program.post_bytes(pack([good, bad])), 422)
        assert error["field"] == f"frames.1.{field}"
        assert error["allowed"]
        assert snapshot(database, program.run_id) == before
    assert program.post_bytes(pack([good])).status_code == 200, "the good record was not stored before"


def test_a_series_from_which_others_cannot_be_computed_is_refused(client: httpx.Client) -> None:
    program = Program(client)
    lacking = [series for series in layer_catalogue(0, 4, FORM) if not series.name.endswith("/dt")]
    narrow = [SeriesSpec(s.name, s.group, 3 if s.name.endswith("/dt") else s.width, "", "", s.derived, s.form)
              for s in layer_catalogue(0, 4, FORM)]  # fmt: skip
    for series in (lacking, narrow):
        assert error_of(program.post(CatalogueMessage(series)), 422)["field"].startswith("frames.0.series")
    assert client.get(f"/runs/{program.run_id}", headers={"Accept": "text/html"}).status_code == 200


def test_points_without_coarse_levels_are_bounded(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_UNCOVERED", 100)
    program = Program(client)
    program.describe()
    assert program.post(losses(1, *[1.0] * 100)).status_code == 200
    assert error_of(program.post(losses(101, 1.0)), 422)["field"] == "frames.0.blocks.0.level"
    other = Program(client)
    other.describe()
    for i in range(4):
        assert other.post(flush(1 + 320 * i, 320, alerts=0)).status_code in (200, 422)


def test_alerts_of_a_run_are_bounded(client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "MAX_RUN_ALERTS", 5)
    program = Program(client)
    raised = [KINDS["no_progress"].alert(step=i, message="x") for i in range(8)]
    for _ in range(2):
        assert program.post(Flush([], raised, 10, None)).status_code == 200
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(AlertRow)) == 5


def test_opening_again_fences_the_earlier_attempt(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    program.describe()
    program.post(losses(1, 1.0, 2.0, 3.0, 4.0))
    second = program.open(resume="must").json()
    assert (second["attempt"], second["next_step"]) == (2, 5)
    before = snapshot(database, program.run_id)
    for post in ([losses(5, 5.0)], [], [EndMessage("failed", "")]):
        error = error_of(program.post(*post, attempt=1), 409)
        assert (error["code"], error["field"]) == ("fenced", "X-Attempt")
        assert snapshot(database, program.run_id) == before
    error_of(program.post(attempt=3), 409)
    assert program.post(losses(5, 5.5), attempt=2).json()["stored_through"] == 5


def test_a_program_that_went_back_to_a_checkpoint_replaces_the_later_steps(client: httpx.Client) -> None:
    program = Program(client)
    program.post(CatalogueMessage(LOSSES), losses(1, *map(float, range(1, 11))), MetricsMessage([9], {"acc": [0.5]}))
    again = program.open(resume="must", from_step=6).json()
    assert again["next_step"] == 7
    assert program.post(losses(7, 70.0, 80.0), attempt=2).json()["stored_through"] == 8
    loss = client.get(f"/api/runs/{program.run_id}/series/train/loss").json()
    assert loss["value"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0, 80.0]
    history = client.get(f"/api/runs/{program.run_id}/history").json()["events"]
    assert [event["truncated_from"] for event in history] == [None, 7]


def test_a_run_that_was_lost_runs_again_with_the_next_post(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    program.describe()
    program.post(losses(1, 1.0))
    with database.write() as session:
        beat = session.get_one(Run, program.run_id).beat
        assert mark_lost(session, program.run_id, 1, beat, "no message for 60 s")
    assert row(database, program.run_id).status == "lost"
    answer = program.post(losses(2, 2.0)).json()
    assert answer == {"seq": 5, "stored_through": 2, "stop_requested": False}
    run = row(database, program.run_id)
    assert (run.status, run.finished_at, run.attempt) == ("running", None, 1)
    with database.read() as session:
        numbers = [*session.scalars(select(Transition.seq)), *session.scalars(select(BlockRow.seq))]
    assert sorted(numbers) == [1, 2, 3, 4, 5]


def test_a_late_post_completes_an_ended_run_and_does_not_reopen_it(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    program.describe()
    program.post(losses(1, 1.0), EndMessage("failed", "an exception"))
    with database.write() as session:
        run = session.get_one(Run, program.run_id)
        run.compacted_at = run.judged_at = 1.0
    late = [CatalogueMessage(layer_catalogue(1, 4, FORM)), losses(2, 2.0), MetricsMessage([2], {"acc": [1.0]}),
            EndMessage("finished", "no"), losses(3, 3.0)]  # fmt: skip
    assert program.post(*late).json()["stored_through"] == 3
    run = row(database, program.run_id)
    assert (run.status, run.status_reason) == ("failed", "an exception")
    assert (run.compacted_at, run.judged_at) == (None, None), "the new steps must also be merged and judged"
    assert client.get(f"/api/runs/{program.run_id}/series/train/loss").json()["value"] == [1.0, 2.0, 3.0]
    again = program.open(resume="allow").json()
    assert (again["next_step"], row(database, program.run_id).status) == (4, "running")
    assert program.post(EndMessage("finished", ""), attempt=2).status_code == 200
    assert row(database, program.run_id).status == "finished"


def test_the_cancel_button_asks_the_program_to_stop(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    assert program.post().json()["stop_requested"] is False
    assert client.post(f"/api/runs/{program.run_id}/cancel").status_code == 200
    assert program.post().json()["stop_requested"] is True
    program.post(EndMessage("cancelled", "stopped on request"))
    assert row(database, program.run_id).status == "cancelled"
    assert program.open(resume="allow").status_code == 200
    assert program.post(attempt=2).json()["stop_requested"] is False


def test_an_empty_post_is_a_heartbeat(client: httpx.Client, database: Database) -> None:
    program = Program(client)
    before = row(database, program.run_id)
    answer = client.post(f"/api/ingest/runs/{program.run_id}/records", headers={"X-Attempt": "1", "Content-Length": "0"})
    assert answer.json() == {"seq": 1, "stored_through": 0, "stop_requested": False}
    after = row(database, program.run_id)
    assert (after.beat, after.seq) == (before.beat + 1, before.seq)


def test_bodies_that_are_too_large_or_of_another_type_are_refused(client: httpx.Client) -> None:
    program = Program(client)
    record = to_bytes(EnvironmentMessage({"a": "x" * 60_000}))
    assert program.post_bytes(pack([record] * 60)).status_code == 200, "3.6 MB are more than a JSON body may have"
    error = error_of(program.post_bytes(bytes(LIMITS.body_bytes + 1)), 413)
    assert f"{LIMITS.body_bytes:,}" in error["allowed"]
    error = error_of(program.post_bytes(iter([bytes(1 << 20)] * 5)), 413)
    assert f"{LIMITS.body_bytes:,}" in error["allowed"]
    error = error_of(program.post_bytes(pack([record]), **{"Content-Type": "application/json"}), 415)
    assert error["allowed"] == CONTENT_TYPE
    for attempt in ("0", "x", "-1", "2147483648"):
        sent = {"X-Attempt": attempt, "Content-Type": CONTENT_TYPE}
        answer = client.post(f"/api/ingest/runs/{program.run_id}/records", content=b"", headers=sent)
        assert error_of(answer, 422)["field"].lower() == "x-attempt"
    error_of(client.post(f"/api/ingest/runs/{program.run_id}/records", content=b""), 422)
    error_of(client.post("/api/ingest/runs/999/records", content=b"", headers={"X-Attempt": "1"}), 404)


def test_an_ingest_token_writes_its_own_runs_and_reads_nothing(client: httpx.Client, app: FastAPI) -> None:
    ours, theirs = token(client, "ours", "ingest"), token(client, "theirs", "ingest")
    program = Program(client, headers=ours)
    assert program.post(CatalogueMessage(LOSSES), losses(1, 1.0)).status_code == 200
    assert client.post("/api/runs", json=BODY).status_code == 201
    stranger = Program(client, headers=theirs)
    stranger.headers = ours
    assert error_of(stranger.post(), 403)["field"] == "run_id"
    assert error_of(stranger.open(resume="allow"), 403)["field"] == "run_id"
    assert error_of(stranger.open(), 403)["field"] == "run_id"
    trained = client.post("/api/ingest/runs/2/records", content=b"", headers=ours | {"X-Attempt": "1"})
    assert error_of(trained, 403)["field"] == "run_id"
    walked = 0
    for route in app.state.routes:
        path = re.sub(r"\{[^}]*\}", "1", route.path)
        for method in sorted(route.methods - {"HEAD", "OPTIONS"}):
            if path in ("/healthz", "/login") or path.startswith("/api/ingest/"):
                continue
            answer = client.request(method, path, headers=ours)
            assert answer.status_code == 403, (method, path, answer.status_code)
            walked += method == "GET"
    assert walked > 40


def test_other_tokens_report_runs_according_to_their_scope_and_user(client: httpx.Client) -> None:
    reader, one, other = token(client, "r", "read"), token(client, "one", "submit"), token(client, "other", "submit")
    error_of(client.post("/api/ingest/runs", json={"id": str(uuid.uuid4())}, headers=reader), 403)
    program = Program(client, headers=one)
    assert program.post().status_code == 200
    program.headers = other
    error_of(program.post(), 403)
    program.headers = dict(BEARER)
    assert program.post().status_code == 200, "an administrator may write every run"
    client.post("/api/runs", json=BODY)
    error = error_of(client.post("/api/ingest/runs/2/records", content=b"", headers={"X-Attempt": "1"}), 409)
    assert "trained by our workers" in error["message"]


def test_opening_a_run_is_audited_and_its_posts_are_not(client: httpx.Client, app: FastAPI, database: Database) -> None:
    program = Program(client, headers=token(client, "ours", "ingest"))
    for i in range(3):
        assert program.post(MetricsMessage([i], {"loss": [1.0]})).status_code == 200
    program.post_bytes(b"bad")
    program.post(attempt=7)
    program.headers = token(client, "theirs", "ingest")
    program.post()
    app.state.audit.flush()
    with database.read() as session:
        rows = session.execute(select(AuditRow.path, AuditRow.status, AuditRow.run_id).order_by(AuditRow.id)).all()
    records = f"/api/ingest/runs/{program.run_id}/records"
    assert [tuple(r) for r in rows if "ingest" in r.path] == [
        ("/api/ingest/runs", 201, program.run_id),
        (records, 403, program.run_id),
    ]


def test_posts_and_bytes_of_a_token_are_limited(database_url: str, tmp_path: Path) -> None:
    app = application(database_url, tmp_path, ingest_posts_per_minute=4, ingest_mib_per_minute=2)
    with client_of(app) as client:
        program = Program(client, headers=token(client, "ours", "ingest"))
        answers = [program.post() for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 4 + [429]
        assert 1 <= int(answers[-1].headers["Retry-After"]) <= 16
        assert "4 posts a minute" in error_of(answers[-1], 429)["allowed"]
        other = Program(client, headers=token(client, "theirs", "ingest"))
        big = pack([to_bytes(EnvironmentMessage({"a": "x" * 60_000}))] * 20)
        assert other.post_bytes(big).status_code == 200
        refused = other.post_bytes(big)
        assert "2 MiB a minute" in error_of(refused, 429)["allowed"]
        assert int(refused.headers["Retry-After"]) >= 1
        assert other.post().status_code == 200, "heartbeats have no bytes"


def test_a_clock_that_is_far_off_is_reported_and_changes_no_time(client: httpx.Client, database: Database) -> None:
    near = Program(client, more={"client_time": time.time() - 3})
    assert -10 < near.opened["clock_offset_seconds"] < 0
    assert "clock" not in row(database, near.run_id).status_reason
    far = Program(client, more={"client_time": 0.0})
    assert far.opened["clock_offset_seconds"] < -1e9
    run = row(database, far.run_id)
    assert "the program's clock is" in run.status_reason
    assert "behind the server's" in run.status_reason
    assert abs(run.created_at - time.time()) < 60
    ahead = Program(client, more={"client_time": 1e11})
    assert "ahead of the server's" in row(database, ahead.run_id).status_reason


def test_a_run_in_the_trash_takes_no_posts(client: httpx.Client) -> None:
    program = Program(client)
    program.post(EndMessage("finished", ""))
    assert client.delete(f"/api/runs/{program.run_id}").status_code in (200, 204)
    assert "trash" in error_of(program.post(), 404)["message"]
    assert "trash" in error_of(program.open(resume="allow"), 409)["message"]


def test_the_quota_of_bytes_holds_for_reported_runs(client: httpx.Client) -> None:
    ours = token(client, "ours", "ingest")
    program = Program(client, headers=ours)
    program.post(CatalogueMessage(LOSSES), losses(1, 1.0))
    user = client.get(f"/api/runs/{program.run_id}").json()["user"]
    (number,) = (u["id"] for u in client.get("/api/users").json()["users"] if u["name"] == user)
    assert client.patch(f"/api/users/{number}", json={"max_bytes": 1}).status_code == 200
    answer = client.post("/api/ingest/runs", json={"id": str(uuid.uuid4())}, headers=ours)
    assert error_of(answer, 422)["field"] == "max_bytes"
    assert program.post(losses(2, 2.0)).status_code == 200, "a run that was opened may go on"


def test_the_rules_of_a_program_raise_alerts_for_its_scalars_and_metrics(client: httpx.Client) -> None:
    rules = [{"name": TRAIN_LOSS, "condition": "> 5", "steps": 2}, {"name": "val/acc", "condition": "nonfinite"}]
    error = error_of(client.post("/api/ingest/runs", json={"id": str(uuid.uuid4()), "alerts": {"rules": [{"name": "a"}]}}), 422)
    assert error["field"].startswith("alerts.rules")
    program = Program(client, more={"alerts": {"rules": rules}})
    post = (CatalogueMessage(LOSSES), losses(1, 1.0, 9.0, 9.0, 1.0), MetricsMessage([3], {"val/acc": [float("nan")]}))
    assert program.post(*post).status_code == 200
    assert program.post(*post).status_code == 200
    found = client.get(f"/api/runs/{program.run_id}/alerts").json()["alerts"]
    assert sorted((a["kind"], a["series"], a["step"]) for a in found) == [("rule", TRAIN_LOSS, 3), ("rule", "val/acc", 3)]


def test_a_program_that_dies_in_the_middle_of_a_post_leaves_nothing_of_it(
    database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(database_url, tmp_path) as (url, _), httpx.Client(base_url=url, headers=BEARER, timeout=60) as client:
        program = Program(client)
        program.describe()
        database = Database(database_url)
        before = snapshot(database, program.run_id)
        body = pack([to_bytes(flush(1, 320))])
        head = f"POST /api/ingest/runs/{program.run_id}/records HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\n"
        head += f"Authorization: {BEARER['Authorization']}\r\nX-Attempt: 1\r\nContent-Type: {CONTENT_TYPE}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        for sent in (len(body) // 2, len(body) - 1):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as dying:
                dying.sendall(head.encode() + body[:sent])
        assert program.post().status_code == 200
        assert snapshot(database, program.run_id) == before
        assert program.post_bytes(body).json()["stored_through"] == 320
        database.close()
    assert "unexpected error" not in capfd.readouterr().err


def test_a_post_while_the_database_is_away_may_be_repeated_later(tmp_path: Path) -> None:
    with client_of(application("postgresql+psycopg://127.0.0.1:1/none", tmp_path)) as client:
        sent = {"X-Attempt": "1", "Content-Type": CONTENT_TYPE}
        for answer in (
            client.post("/api/ingest/runs/1/records", content=b"", headers=sent),
            client.post("/api/ingest/runs", json={"id": str(uuid.uuid4())}),
        ):
            assert error_of(answer, 503)["code"] == "unavailable"
            assert answer.headers["Retry-After"] == "2"


def test_the_example_reports_a_run_with_the_standard_library_alone(database_url: str, tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    with running(database_url, tmp_path) as (url, _), httpx.Client(base_url=url, headers=BEARER, timeout=60) as client:
        secret = token(client, "example", "ingest")["Authorization"].removeprefix("Bearer ")
        environment = {"STABLESSM_URL": url, "STABLESSM_TOKEN": secret, "PATH": ""}
        command = [sys.executable, "-I", "-S", str(EXAMPLE)]  # without site-packages
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        run = client.get("/api/runs/1").json()
        assert done.stdout == f"{url}/runs/1\n"
        assert (run["status"], run["step"], run["kind"], run["project"]) == ("finished", 400, "reported", "examples")
        loss = client.get("/api/runs/1/series/train/loss").json()["value"]
        assert len(loss) == 400
        assert loss[-1] < loss[0] / 2, "it fits something"
        distance = client.get("/api/runs/1/series/ssm/0/boundary_distance").json()["value"]
        assert 0 < min(distance[-1]) < 1
        assert client.get("/runs/1", headers={"Accept": "text/html"}).status_code == 200


def test_the_example_ends_as_cancelled_when_somebody_cancels_its_run(database_url: str, tmp_path: Path) -> None:
    stops = """
import json, runpy, sys, urllib.request
ask = urllib.request.urlopen
class Answer:  # cancels the run as soon as it is open
    def __init__(self, answer): self.body = answer.read()
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def read(self): return self.body
def cancelling(request, *rest, **more):
    answer = Answer(ask(request, *rest, **more))
    if request.full_url.endswith("/api/ingest/runs"):
        header = {"Authorization": "Bearer " + sys.argv[2]}
        ask(urllib.request.Request(request.full_url.replace("ingest/runs", "runs/1/cancel"), b"", header)).read()
    return answer
urllib.request.urlopen = cancelling
runpy.run_path(sys.argv[1], run_name="__main__")
"""
    with running(database_url, tmp_path) as (url, _), httpx.Client(base_url=url, headers=BEARER, timeout=60) as client:
        owner = BEARER["Authorization"].removeprefix("Bearer ")
        environment = {"STABLESSM_URL": url, "STABLESSM_TOKEN": owner, "PATH": ""}
        command = [sys.executable, "-I", "-S", "-c", stops, str(EXAMPLE), owner]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        run = client.get("/api/runs/1").json()
        assert (run["status"], run["status_reason"], run["step"]) == ("cancelled", "stopped on request", 50)


def test_many_records_of_metrics_in_a_post_are_stored_as_one_event(client: httpx.Client) -> None:
    program = Program(client)
    program.describe()
    post = [MetricsMessage([step], {"acc": [step / 2], **({"rare": [1.0]} if step % 10 == 0 else {})}) for step in range(1, 101)]
    assert program.post(*post, losses(1, 1.0), MetricsMessage([100], {"acc": [7.0]})).json()["seq"] == 3
    for name, expected in (("acc", [step / 2 for step in range(1, 100)] + [7.0]), ("rare", [1.0] * 10)):
        found = client.get(f"/api/runs/{program.run_id}/series/{name}").json()
        assert found["value"] == expected
    many = [MetricsMessage([1], {f"m{i}": [1.0] for i in range(n, n + 1000)}) for n in (0, 1000, 2000)]
    assert error_of(program.post(losses(2, 1.0), *many, EndMessage("finished", "")), 422)["field"] == "frames.3.values"


def test_a_group_that_another_server_described_is_known(client: httpx.Client, database_url: str, tmp_path: Path) -> None:
    program = Program(client)
    program.post(CatalogueMessage(LOSSES), losses(1, 1.0))
    with client_of(application(database_url, tmp_path / "other")) as other:
        other.headers["Authorization"] = BEARER["Authorization"]
        there = Program(other, program.id, {"resume": "allow"})
        assert there.post(CatalogueMessage(layer_catalogue(0, 4, FORM))).status_code == 200
    values = Flush([Block("ssm/0", 0, 2, 1, np.ones((12, 1), np.float32))], [], 2, None)
    assert program.post(values, losses(2, 2.0), attempt=2).json()["stored_through"] == 2
