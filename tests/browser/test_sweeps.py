"""A sweep in a real Chromium at phone width is found in the list, renamed, downloaded as a file, and cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BEARER, BODY, TOKEN, running
from tests.server.recording import claim

pytestmark = [pytest.mark.slow, pytest.mark.browser]
GRID = {"model.reparameterization.name": ["direct", "best"], "optimizer.lr": [0.01, 0.3]}


@pytest.fixture
def address(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    """A server with one sweep of four runs: one has finished, one has diverged, and two are queued."""
    database = Database(sqlite_url)
    with running(sqlite_url, tmp_path) as (address, _):
        httpx.post(
            f"{address}/api/sweeps", json={"name": "maps", "base": BODY, "grid": GRID}, headers=BEARER, timeout=120
        ).raise_for_status()
        for status, loss in (("finished", 0.5), ("diverged", float("nan"))):
            taken = claim(database)
            where = {"step": 28, "layer": 0, "eigenvalue": 7, "tensor": "w.grad"} if status == "diverged" else None
            with database.write() as session:
                lifecycle.finish(session, taken.run_id, taken.attempt, status, "", {"train_loss": loss}, where)
        yield address
    database.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    context.set_default_timeout(120_000)
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.goto(f"{address}/?token={TOKEN}")
    yield page
    context.close()
    assert trouble == []


def test_a_sweep_is_found_renamed_downloaded_and_cancelled(page: Any, address: str) -> None:
    with page.expect_navigation():
        page.click("nav >> text=Sweeps")
    assert (
        re.sub(r"\s+", " ", page.inner_text(".outcome")).strip() == "1 of 2 ended runs finite, 0 stable · 1 diverged · 2 queued"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    with page.expect_navigation():
        page.click("text=maps")
    page.wait_for_selector("[data-part=grid] a.cell")
    assert "step 28, layer 0, eigenvalue 7" in page.inner_text("[data-run='2']")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("text=Rename")
    page.fill("#name", "maps by <b>rate</b>")
    with page.expect_navigation():
        page.click("text=Save")
    page.wait_for_selector("h1:has-text('maps by <b>rate</b>')")
    with page.expect_download() as download:
        page.locator("a:text-is('CSV')").last.click()
    assert Path(download.value.path()).read_text().count("\n") == 5
    page.on("dialog", lambda dialog: dialog.accept())
    with page.expect_navigation():
        page.click("text=Cancel its runs")
    shown = httpx.get(f"{address}/api/sweeps/1", headers=BEARER, timeout=120).json()
    assert shown["statuses"] == {"cancelled": 2, "diverged": 1, "finished": 1}
