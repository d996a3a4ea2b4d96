"""Attacks every operation of the HTTP interface. ATTACK_REQUESTS: number of requests per engine (`make attack`: 10,000)."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.database.connection import Database
from tests.server.http_service import BEARER, BODY, running
from tests.server.recording import Recording, claimed

pytestmark = [pytest.mark.both_engines, pytest.mark.long]

REQUESTS = int(os.environ.get("ATTACK_REQUESTS", "600"))


def filled(database_url: str) -> None:
    database = Database(database_url)
    Recording(database, claimed(database, name="recorded")).write(64)
    database.close()


@pytest.mark.timeout(1800)
def test_no_request_crashes_the_service_or_contradicts_the_openapi_document(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Imported here, because the import takes a second and every test process collects this file.
    from tests.server.attack import Tally, attack

    filled(database_url)
    tally, began = Tally(), time.monotonic()
    with (
        caplog.at_level(logging.ERROR),
        running(database_url, tmp_path, failures_per_minute=1_000_000, runs_per_minute=0) as (url, _),
    ):
        attack(url, BEARER, REQUESTS, tally)
        assert httpx.get(f"{url}/readyz", headers=BEARER, timeout=90).status_code == 200
    print(f"\n{database_url.partition(':')[0]}, {time.monotonic() - began:.0f} s\n", *tally.lines(), sep="\n")
    assert list(tally.problems)[:5] == []
    assert not any(status >= 500 for status in tally.statuses)
    assert tally.requests >= REQUESTS
    assert len(tally.operations) >= 20
    assert {200, 201, 404, 409, 422} <= tally.statuses.keys(), "the attack must receive responses of every common status"
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_no_event_id_breaks_a_stream(sqlite_url: str, tmp_path: Path) -> None:
    filled(sqlite_url)
    heard = set()
    with running(sqlite_url, tmp_path) as (url, _), httpx.Client(base_url=url, headers=BEARER, timeout=90) as client:

        @given(position=st.integers().map(str) | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30))
        def listen(position: str) -> None:
            with client.stream("GET", "/api/runs/1/stream", headers={"Last-Event-ID": position.strip()}) as answer:
                heard.add(answer.status_code)
                first = next(answer.iter_raw())
                assert first.startswith(b"retry:" if answer.status_code == 200 else b'{"error"'), first

        listen()
        assert client.get("/readyz").status_code == 200
    assert heard <= {200, 422}
    assert 200 in heard


HOSTILE = {
    "markup": "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "quotes": "\"'`${document.title}`--><!--{{7*7}}{% raw %}",
    "right to left": "\u202eevil\u202c \u2066x",
    "wide": "\U0001f4a5" * 60,
    "combining": "a" + "\u0301" * 150,
    "url": "javascript:alert(1)//",
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_name_is_refused_or_shown_as_text_on_every_page(sqlite_url: str, tmp_path: Path, name: str) -> None:
    with running(sqlite_url, tmp_path) as (url, _), httpx.Client(base_url=url, headers=BEARER, timeout=60) as client:
        answer = client.post("/api/runs", json=BODY | {"name": name, "tags": [name[:60]]})
        assert answer.status_code in (201, 422)
        if answer.status_code == 422:
            assert answer.json()["error"]["field"] in ("name", "tags.0")
            return
        client.patch("/api/runs/1", json={"notes": name * 10})
        for path in (
            "/",
            "/runs/1",
            "/compare?runs=1",
            "/new?clone=1",
            "/alerts",
            f"/?q=name~x&tag={name[:20]}",
            f"/runs/{name[:50]}",
        ):
            page = client.get(path, headers={"Accept": "text/html"})
            assert page.status_code < 500, path
            outside_scripts = re.sub(r"<script[^>]* src=[^>]*></script>", "", page.text)
            assert "<script>document" not in outside_scripts, path
            assert "<img src=x" not in page.text, path
            assert 'href="javascript:' not in page.text, path


def test_every_text_of_ten_thousand_characters_is_refused_or_bounded(sqlite_url: str, tmp_path: Path) -> None:
    long = "x" * 10_000
    with running(sqlite_url, tmp_path) as (url, _), httpx.Client(base_url=url, headers=BEARER, timeout=60) as client:
        assert client.post("/api/runs", json=BODY).status_code == 201
        asked = {
            "name": client.post("/api/runs", json=BODY | {"name": long}),
            "tags.0": client.post("/api/runs", json=BODY | {"tags": [long]}),
            "task.name": client.post("/api/runs", json={"task": {"name": long}}),
            "idempotency-key": client.post("/api/runs", json=BODY, headers={"Idempotency-Key": long}),
            "q": client.get("/api/runs", params={"q": long}),
            "sort": client.get("/api/runs", params={"sort": long}),
            "cursor": client.get("/api/runs", params={"cursor": long}),
        }
        for field, answer in asked.items():
            assert answer.status_code == 422, field
            assert answer.json()["error"]["field"].lower() == field
            assert len(answer.content) < 3000, "an error must not repeat its long input"
        assert client.get(f"/runs/{long}", headers={"Accept": "text/html"}).status_code in (404, 422)
        assert client.get(f"/api/runs/1/series/{long}").status_code == 404
        assert client.patch("/api/runs/1", json={"notes": long}).status_code == 200, "notes may be long"
        assert client.get("/runs/1", headers={"Accept": "text/html"}).status_code == 200
