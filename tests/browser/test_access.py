"""In a real Chromium, a user signs in and out, and creates, uses and revokes a token on the access page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.access.tokens import SECRET
from tests.installation import Installation

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TOKEN = "token-of-the-tests-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def address(sqlite_url: str, data_dir: Path, free_port: int) -> Iterator[str]:
    made = Installation(data_dir, free_port, environment={"STABLESSM_DATABASE_URL": sqlite_url, "STABLESSM_TOKEN": TOKEN})
    try:
        made.start("serve", "--port", str(free_port), "--data-dir", str(data_dir))
        made.wait_until_it_answers()
        yield made.url
    finally:
        made.kill_all()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    context.set_default_timeout(120_000)
    page = context.new_page()
    yield page
    context.close()


def sign_in(page: Any, address: str, token: str) -> None:
    page.goto(f"{address}/access")
    page.fill("#token", token)
    with page.expect_navigation():  # waits until the next page and its scripts are loaded
        page.click("text=Sign in >> visible=true")


def test_a_user_can_sign_in_create_and_revoke_a_token_and_sign_out(page: Any, address: str) -> None:
    sign_in(page, address, TOKEN)
    assert page.inner_text("h1") == "Access"
    page.fill("#name", "<b>ci</b>")
    page.click("text=Create token")
    secret = page.inner_text("[data-part=tokens] [data-secret]:not([hidden]) code")
    assert SECRET.fullmatch(secret)
    key = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{address}/api/runs", headers=key, timeout=60).status_code == 200
    with page.expect_navigation():
        page.click("text=Done")
    page.wait_for_selector("td:has-text('<b>ci</b>')")
    assert secret not in page.content()
    page.on("dialog", lambda dialog: dialog.accept())
    with page.expect_navigation():
        page.click("text=Revoke")
    page.wait_for_selector("[data-state=revoked]")
    assert httpx.get(f"{address}/api/runs", headers=key, timeout=60).status_code == 401
    page.click("text=Sign out")
    page.wait_for_url("**/login")
    assert page.goto(f"{address}/access").status == 401


def test_a_read_token_can_see_runs_and_the_access_page_names_the_missing_scope(page: Any, address: str) -> None:
    made = httpx.post(f"{address}/api/tokens", json={"name": "wall", "scope": "read"}, headers=BEARER, timeout=60).json()[
        "secret"
    ]
    sign_in(page, address, made)
    assert "this needs a token of the scope admin" in page.inner_text("main")
    assert page.goto(f"{address}/").status == 200
    assert page.evaluate("document.cookie") == ""
