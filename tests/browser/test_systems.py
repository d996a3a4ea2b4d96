"""The page of layers and the form for a new run in a real Chromium: a layer can be viewed, submitted and configured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stablessm_core.spec.layers import LAYERS
from tests.server.http_service import BEARER, TOKEN, running

pytestmark = [pytest.mark.slow, pytest.mark.browser]


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
    assert [one for one in trouble if "422" not in one] == []  # some tests expect an error 422 from the server


def model_of(address: str, run: int) -> dict[str, Any]:
    found: dict[str, Any] = (
        httpx.get(f"{address}/api/runs/{run}", headers=BEARER, timeout=120).raise_for_status().json()["config"]["model"]
    )
    return found


def test_every_layer_has_a_row_and_a_button_that_submits_a_run(page: Any, address: str) -> None:
    with page.expect_navigation():
        page.click("nav >> text=Systems")
    assert page.locator("table.systems tbody tr").count() == len(LAYERS)
    disc = page.locator("#s4d svg.disc path").bounding_box()
    assert disc["width"] > 60, "the eigenvalues of s4d are spread around the disc"
    assert page.locator("#mamba svg.distances rect").count() > 3
    page.click("#mamba button")
    page.wait_for_url(re.compile(r"/runs/1$"))
    assert model_of(address, 1)["layer"]["name"] == "mamba"


def test_the_form_offers_the_options_of_the_chosen_layer(page: Any, address: str) -> None:
    page.goto(f"{address}/new")
    page.locator('[data-path="train.steps"]').fill("50")
    maps = "[...document.querySelectorAll('[data-path=\"model.reparameterization.name\"] option')]"
    offered = f"{maps}.filter((o) => !o.hidden).map((o) => o.value)"
    assert {"best", "tanh", "native"} <= set(page.evaluate(offered))
    page.locator('[data-path="model.layer.name"]').select_option("mamba")
    page.locator('[data-path="model.d_state"]').wait_for(state="hidden")
    page.locator('[data-path="model.reparameterization.time"]').wait_for(state="hidden")
    map_ = page.locator('[data-path="model.reparameterization.name"]')
    assert map_.input_value() == "native"
    assert "tanh" not in page.evaluate(offered), "the map tanh has no continuous form"
    map_.select_option("best")
    assert float(page.locator('[data-path="model.reparameterization.b"]').input_value()) < 0.0625
    page.locator('[data-path="model.layer.transition"]').select_option("s7")
    assert page.evaluate(offered) == ["native"]
    page.locator('[data-path="model.layer.transition"]').select_option("s6")
    page.locator('[data-path="model.layer.name"]').select_option("hyena")
    page.locator('[data-path="model.layer.inner.name"]').select_option("s4d")
    page.locator('[data-is="hyena"] [data-is="s4d"] [data-path="model.layer.inner.d_state"]').fill("6")
    page.locator('[data-is="hyena"] [data-is="s4d"] [data-path="model.layer.inner.dt_min"]').fill("9")
    page.get_by_role("button", name="Submit run").click()
    page.locator('[data-is="s4d"] .error', has_text="dt_min").first.wait_for()  # the error appears at its field
    page.locator('[data-is="hyena"] [data-is="s4d"] [data-path="model.layer.inner.dt_min"]').fill("0.002")
    page.get_by_role("button", name="Submit run").click()
    page.wait_for_url(re.compile(r"/runs/1$"))
    model = model_of(address, 1)
    assert model["layer"]["inner"] | {"d_state": 6, "dt_min": 0.002} == model["layer"]["inner"]
    assert model["reparameterization"]["name"] == "native"

    page.goto(f"{address}/systems")
    with page.expect_navigation():  # waits until the script of the form has read the URL
        page.click("#s4d a")
    assert page.locator('[data-path="model.layer.name"]').input_value() == "s4d"
    page.locator('[data-path="model.layers"]').fill('"lru", {"name": "mamba", "d_state": 4}')
    page.get_by_role("button", name="Submit run").click()
    page.wait_for_url(re.compile(r"/runs/2$"))
    assert [one["name"] for one in model_of(address, 2)["layers"]] == ["lru", "mamba"]
    page.goto(f"{address}/new?clone=2")
    page.get_by_role("button", name="Submit run").click()
    page.wait_for_url(re.compile(r"/runs/3$"))
    assert model_of(address, 3) == model_of(address, 2)
