"""The page of layers and the form for a new run in a real Chromium: a layer is looked at, submitted, and set up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stablessm_core.layers.registry import LAYERS
from tests.server.http_service import BEARER, TOKEN, running

pytestmark = pytest.mark.browser


@pytest.fixture
def address(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    with running(sqlite_url, tmp_path) as (address, _):
        yield address


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(120_000)
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.goto(f"{address}/?token={TOKEN}")
    yield page
    context.close()
    assert trouble == []


def model_of(address: str, run: int) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{address}/api/runs/{run}", headers=BEARER).raise_for_status().json()["config"]["model"]
    return found


def test_every_layer_has_a_row_and_a_button_that_submits_it(page: Any, address: str) -> None:
    page.click("nav >> text=Systems")
    assert page.locator("table.systems tbody tr").count() == len(LAYERS)
    disc = page.locator("#s4d svg.disc path").bounding_box()
    assert disc["width"] > 60, "its eigenvalues go once around"
    assert page.locator("#mamba svg.distances rect").count() > 3
    page.click("#mamba button")
    page.wait_for_url(re.compile(r"/runs/1$"))
    assert model_of(address, 1)["layer"]["name"] == "mamba"
