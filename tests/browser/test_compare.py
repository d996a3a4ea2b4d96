"""The comparison page in a real Chromium: the table of runs is the legend, the line of the run under the pointer is
highlighted, and the URL restores the view."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.browser.test_dashboard import becomes, eventually
from tests.server.http_service import TOKEN, running
from tests.server.recording import Recording, claimed

pytestmark = [pytest.mark.slow, pytest.mark.browser]
LOSS = '[data-chart="compare_loss"]'


@pytest.fixture
def address(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    """A server with two maps and two seeds each. The second run of `direct` diverged, although its loss was lowest."""
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
    """The ids of the runs whose lines are visible in the chart."""
    found: list[str] = page.evaluate(
        f"[...document.querySelectorAll('{LOSS} .scatterlayer .trace')].filter((g) => g.style.display !== 'none')"
        ".flatMap((g) => /tracerun(\\d+)/.exec(g.getAttribute('class'))?.[1] ?? [])"
    )
    return sorted(found)


def test_runs_are_compared_and_the_url_restores_the_view(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?runs=1,2,3,4,99999&x=tokens")
    assert "Run 99999 does not exist" in page.inner_text("[data-missing]")
    page.wait_for_selector(f"{LOSS}[data-drawn-at]")
    assert lines(page) == ["1", "2", "3", "4"]
    assert page.evaluate(f"document.querySelector('{LOSS}').layout.xaxis.title.text") == "tokens"
    ranks = page.locator("section:has(> header:has-text('Groups')) tbody tr")
    assert re.sub(r"\s+", " ", ranks.nth(0).inner_text()).startswith("1 best 2 / 2"), (
        "a group with a lost run must not rank first"
    )
    assert "1 lost" in ranks.nth(1).inner_text()
    assert "1 of 2" in page.inner_text("section:has(> header:has-text('Differences from best'))")
    assert page.locator("svg.parallel polyline").count() == 4
    headers = page.locator(".legend-table thead code").all_inner_texts()
    assert headers == ["model.reparameterization.name", "train.seed"]

    page.hover("tr[data-run='2'] .name")
    page.locator(f"{LOSS}.dimmed").wait_for()
    page.wait_for_selector("polyline.lit[data-run='2']", state="attached")
    assert page.locator("polyline.lit").count() == 1
    page.locator("input[data-line='3']").uncheck()
    eventually(page, lambda: lines(page) == ["1", "2", "4"], "the line of run 3 is hidden")
    page.wait_for_url("**/compare?*off=3*")
    page.select_option("[data-view=show]", "groups")
    page.locator("input[data-line='1']").check()
    page.wait_for_selector(f"{LOSS} .tracemedian1", state="attached")
    page.wait_for_selector(f"{LOSS} .tracerun1", state="attached")
    page.wait_for_url("**/compare?*on=1*")
    assert [text.strip() for text in page.locator(".group-legend span").all_inner_texts()] == ["best (2)", "direct (2)"]
    page.reload()
    page.wait_for_selector(f"{LOSS}[data-drawn-at]")
    assert (page.input_value("[data-view=show]"), page.input_value("[data-view=x]"), lines(page)) == ("groups", "tokens", ["1"])
    page.locator(LOSS).scroll_into_view_if_needed()
    for x, button in ((0.3, "down"), (0.7, "up")):  # the URL keeps the zoom, and both charts show it
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

    def zoomed_out() -> bool:  # repeated, because Plotly ignores a double click that takes more than 0.3 s
        page.locator(f"{LOSS} .nsewdrag").first.dblclick()
        page.wait_for_timeout(500)
        return "from=" not in page.url

    eventually(page, zoomed_out, "a URL without a range")
    page.select_option("select[data-metric]", "ssm/0/weight")
    page.wait_for_url("**metric=ssm%2F0%2Fweight*")
    page.select_option("select[data-smooth]", "0.9")
    page.wait_for_selector(f"{LOSS} .tracerun1", state="attached")
    eventually(page, lambda: page.locator(f"{LOSS} .scatterlayer .trace[class*=raw]").count() == 1, "the faint line below it")
    assert "exponential mean, with weight 0.9" in page.inner_text("[data-part=note]")
    page.set_viewport_size({"width": 390, "height": 844})
    becomes(page, "document.documentElement.scrollWidth <= 390")  # resized charts are drawn again


def test_a_comparison_of_one_run_requests_a_second_run(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?runs=1,1")
    assert "needs a second run" in page.inner_text("[data-alone]")
    assert page.input_value("#runs") == "1,"
    page.wait_for_selector(f"{LOSS}[data-drawn-at]")
    assert lines(page) == ["1"]
