"""The comparison in a real Chromium: the table is the legend, what is pointed at stands out, the address gives the view again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.database.connection import Database
from server.runs import lifecycle
from tests.server.http_service import TOKEN, running
from tests.server.recording import Recording, claimed

pytestmark = pytest.mark.browser
LOSS = '[data-chart="compare_loss"]'


@pytest.fixture
def address(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    """Two maps with two seeds each: `direct` lost its second run, whose loss was the lowest of all."""
    database = Database(sqlite_url)
    ends = {("best", 0): 0.5, ("best", 1): 0.6, ("direct", 0): 0.4, ("direct", 1): 0.01}
    for (name, seed), loss in ends.items():
        recording = Recording(database, claimed(database, model__reparameterization__name=name, train__seed=seed), seed=seed)
        recording.write(60)
        status = "diverged" if (name, seed) == ("direct", 1) else "finished"
        with database.write() as session:
            result = {"train_loss": loss, "seconds": 6.0}
            lifecycle.finish(session, recording.claim.run_id, recording.claim.attempt, status, "", result)
    with running(sqlite_url, tmp_path) as (address, _):
        yield address
    database.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.goto(f"{address}/?token={TOKEN}")
    yield page
    context.close()
    assert trouble == []


def lines(page: Any) -> list[str]:
    """The runs whose lines can be seen in the drawn chart."""
    found: list[str] = page.evaluate(
        f"[...document.querySelectorAll('{LOSS} .scatterlayer .trace')].filter((g) => g.style.display !== 'none')"
        ".flatMap((g) => /tracerun(\\d+)/.exec(g.getAttribute('class'))?.[1] ?? [])"
    )
    return sorted(found)


def test_runs_are_compared_and_the_address_gives_the_view_again(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?runs=1,2,3,4,99999&x=tokens")
    assert "Run 99999 does not exist" in page.inner_text("[data-missing]")
    page.wait_for_selector(f"{LOSS}[data-drawn-at]")
    assert lines(page) == ["1", "2", "3", "4"]
    assert page.evaluate(f"document.querySelector('{LOSS}').layout.xaxis.title.text") == "tokens"
    ranks = page.locator("section:has(> header:has-text('Groups')) tbody tr")
    assert re.sub(r"\s+", " ", ranks.nth(0).inner_text()).startswith("1 best 2 / 2"), "what lost a run does not come first"
    assert "1 lost" in ranks.nth(1).inner_text()
    assert "1 of 2" in page.inner_text("section:has(> header:has-text('Differences to best'))")
    assert page.locator("svg.parallel polyline").count() == 4
    headers = page.locator(".legend-table thead code").all_inner_texts()
    assert headers == ["model.reparameterization.name", "train.seed"]

    page.hover("tr[data-run='2'] .name")
    assert page.locator(f"{LOSS}.dimmed").count() == 1
    assert page.locator("polyline.lit").get_attribute("data-run") == "2"
    page.locator("input[data-line='3']").uncheck()
    assert lines(page) == ["1", "2", "4"]
    page.wait_for_url("**/compare?*off=3*")
    page.select_option("[data-view=show]", "groups")
    page.locator("input[data-line='1']").check()
    page.wait_for_selector(f"{LOSS} .tracemedian1", state="attached")
    page.wait_for_selector(f"{LOSS} .tracerun1", state="attached")
    assert [text.strip() for text in page.locator(".group-legend span").all_inner_texts()] == ["best (2)", "direct (2)"]
    page.reload()
    page.wait_for_selector(f"{LOSS}[data-drawn-at]")
    assert (page.input_value("[data-view=show]"), page.input_value("[data-view=x]"), lines(page)) == ("groups", "tokens", ["1"])
    for x, button in ((0.3, "down"), (0.7, "up")):  # a zoom is kept in the address, and shown by both charts
        box = page.locator(f"{LOSS} .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + x * box["width"], box["y"] + box["height"] / 2, steps=3)
        getattr(page.mouse, button)()
    page.wait_for_url(re.compile(r"from=[\d.]+&to=[\d.]+"))
    zoomed = "(name) => document.querySelector(`[data-chart=${name}]`).layout.xaxis.range.map((x) => Number(x.toPrecision(6)))"
    shown = page.evaluate(zoomed, "compare_loss")
    assert 0 < shown[0] < shown[1] < 60 * page.evaluate("Number(document.querySelector('tr[data-run]').dataset.tokens)")
    page.reload()
    page.wait_for_selector('[data-chart="compare_max_ratio"][data-drawn-at]')
    assert [page.evaluate(zoomed, name) for name in ("compare_loss", "compare_max_ratio")] == [shown, shown]
    page.locator(f"{LOSS} .nsewdrag").first.dblclick()
    page.wait_for_url(lambda url: "from=" not in url)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_one_run_alone_asks_for_a_second(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?runs=1,1")
    assert "needs a second one" in page.inner_text("[data-alone]")
    assert page.input_value("#runs") == "1,"
    page.wait_for_selector(f"{LOSS}[data-drawn-at]")
    assert lines(page) == ["1"]
