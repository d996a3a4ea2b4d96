"""In a real Chromium, an administrator adds a destination, tests it, and silences a project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installation import Installation
from tests.server.receiver import Receiver, receiving

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TOKEN = "token-of-the-tests-0123456789"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def address(sqlite_url: str, data_dir: Path, free_port: int) -> Iterator[str]:
    environment = {"STABLESSM_DATABASE_URL": sqlite_url, "STABLESSM_TOKEN": TOKEN, "STABLESSM_WEBHOOK_HOSTS": "127.0.0.1"}
    made = Installation(data_dir, free_port, environment=environment)
    try:
        made.start("serve", "--port", str(free_port), "--data-dir", str(data_dir))
        made.wait_until_it_answers()
        yield made.url
    finally:
        made.kill_all()


def test_an_administrator_adds_and_tests_a_destination_and_silences_a_project(
    browser: Any, address: str, receiver: Receiver
) -> None:
    context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {TOKEN}"})
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(f"{address}/webhooks")
    assert "Nobody is told yet" in page.inner_text("main")
    page.fill("#url", f"http://127.0.0.1:{receiver.port}/SECRET")
    with page.expect_navigation():
        page.click("form[data-add] button")
    page.click("button[data-test]")
    page.wait_for_selector(".toast:has-text('it answered 204')")
    assert b"This is a test" in receiver.calls[0][1]
    page.fill("#silence-project", "<b>hybrid</b>")
    with page.expect_navigation():
        page.click("form[data-silence] button")
    page.wait_for_selector("td:has-text('project <b>hybrid</b>')")
    with page.expect_navigation():
        page.click("[data-part=silences] td button")
    assert "None." in page.inner_text("[data-part=silences]")
    context.close()
