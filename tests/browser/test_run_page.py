"""The page of a run in a real Chromium: its first screen has the verdict and the charts of stability; its charts share one range
and one cursor, link alerts with their marks, and append new points.

Most tests use a run that diverged before the page is opened. Two tests submit a run that trains while its page is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.test_dashboard import (  # this file uses the same fixtures, but its own runs
    CURVE,
    DIVERGING,
    becomes,
    context,
    drawn_step,
    eventually,
    installation,
    page,
    submit,
)
from tests.installation import Installation

__all__ = ["context", "installation", "page"]
pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]

# the charts of the recorded series; those of an autopsy appear when it has arrived
CHARTS = "[...document.querySelectorAll('figure:not([hidden]) [data-chart]:not([data-slopes] *, [data-autopsy-charts] *)')]"
# The ranges of the visible charts; other charts are drawn when they are scrolled into view.
RANGES = (
    f"() => Object.fromEntries({CHARTS}"
    + """
  .filter((e) => e._fullLayout && e.getBoundingClientRect().top < innerHeight && e.getBoundingClientRect().bottom > 0)
  .map((e) => [e.dataset.chart, e._fullLayout.xaxis.range.map(Math.round)]))"""
)


@pytest.fixture(scope="module")
def diverged(installation: Installation) -> Iterator[dict[str, Any]]:
    with installation.client() as client:
        run = submit(installation, {**DIVERGING, "train": {**DIVERGING["train"], "steps": 5000}})
        yield installation.wait_for_end(client, run)


def all_drawn(page: Any) -> None:
    becomes(page, f"{CHARTS}.every((e) => e.dataset.drawn)")


FIRST = ["loss", "grad_over_weight", "eigenvalue", "grad_over_weight_heatmap"]
SECTIONS = ["why", "stability", "training", "configuration", "files"]
BELOW_BAR = """(name) => { const top = document.querySelector(`#${name} > h2`).getBoundingClientRect().top;
  return top >= document.querySelector('.run-bar').getBoundingClientRect().bottom && top < innerHeight; }"""
HEIGHT = "document.documentElement.scrollHeight"


def test_the_first_screen_has_the_verdict_and_four_charts_and_a_bar_leads_to_the_sections(
    page: Any, installation: Installation, diverged: dict[str, Any]
) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{installation.url}/runs/{diverged['id']}")
    all_drawn(page)
    assert page.evaluate(HEIGHT) < 4400  # with an autopsy
    shown = [
        page.locator("[data-verdict]"),
        *(page.locator(f'[data-chart="{name}"]') for name in FIRST),
        page.locator("[data-lines]"),
    ]
    boxes = [one.bounding_box() for one in shown]
    assert all(box["y"] + box["height"] <= 900 for box in boxes), boxes
    assert boxes[1]["y"] == boxes[2]["y"], "the loss is beside the gradient over the weight"
    links = page.locator(".run-bar nav a:not([hidden])")
    assert [link.get_attribute("href") for link in links.all()] == ["#content", *(f"#{name}" for name in SECTIONS)]
    for name in SECTIONS:
        page.locator(f'.run-bar nav a[href="#{name}"]').click()
        eventually(page, lambda name=name: page.evaluate(BELOW_BAR, name), f"the title of {name} below the bar")


def test_values_at_the_cursor_are_beside_the_chart_under_the_pointer(
    page: Any, installation: Installation, diverged: dict[str, Any]
) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{installation.url}/runs/{diverged['id']}")
    all_drawn(page)
    for name in FIRST:
        figure = page.locator("figure", has=page.locator(f'[data-chart="{name}"]'))
        box = page.locator(f'[data-chart="{name}"] .nsewdrag').first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5, steps=3)
        eventually(
            page, lambda figure=figure: "step" in figure.locator(".readout").inner_text(), f"values of {name} in its caption"
        )
        assert page.evaluate("getComputedStyle(document.querySelector('.hoverlayer')).visibility") == "hidden"
        panel = page.locator(".reading-panel:visible")
        for label in panel.all():
            frame, beside = figure.bounding_box(), label.bounding_box()
            assert beside["x"] >= frame["x"] + frame["width"] or beside["x"] + beside["width"] <= frame["x"], name
        if name == "grad_over_weight":
            assert "λ" in panel.inner_text(), "the caption is too short for the values of all lines"


def test_the_page_is_short_on_a_phone_and_charts_in_a_closed_part_are_drawn_when_it_opens(
    page: Any, installation: Installation, diverged: dict[str, Any]
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/runs/{diverged['id']}")
    becomes(page, "document.querySelector('[data-chart=loss]').dataset.drawn")
    assert page.evaluate(HEIGHT) < 4500, "with the autopsy, which may have arrived"
    page.locator('nav a[href="#stability"]').click()
    becomes(page, "document.querySelector('.run-bar nav').getBoundingClientRect().top < 60")  # the contents stay in view
    assert not page.evaluate("document.querySelector('[data-chart=relative_step]').dataset.drawn")
    page.get_by_text("Charts of the layer").click()
    becomes(page, "document.querySelector('[data-chart=relative_step]').dataset.drawn")
    assert page.evaluate("document.querySelector('[data-chart=relative_step] .main-svg').clientWidth") <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_verdict_of_a_live_page_follows_the_training_and_nothing_is_animated_endlessly(
    page: Any, installation: Installation
) -> None:
    page.emulate_media(reduced_motion="no-preference")
    run = submit(installation, {**CURVE, "train": {**CURVE["train"], "steps": 100_000}})
    page.goto(f"{installation.url}/runs/{run}")
    told = (
        "Number((/at step ([0-9,]+)/.exec(document.querySelector('[data-verdict-sentences]')?.textContent) ?? [])[1]"
        "?.replaceAll(',', ''))"
    )
    becomes(page, f"{told} > 0")
    first = page.evaluate(told)
    becomes(page, f"{told} >= {first + 100}")
    page.locator('.status[data-status="running"]').wait_for()
    becomes(page, "document.getAnimations().every((one) => one.effect.getTiming().iterations !== Infinity)")
    with installation.client() as client:
        client.post(f"/api/runs/{run}/cancel").raise_for_status()
        installation.wait_for_end(client, run)


def test_all_charts_share_range_and_cursor_and_the_url_keeps_the_view(
    page: Any, installation: Installation, diverged: dict[str, Any]
) -> None:
    last = diverged["step"]
    page.goto(f"{installation.url}/runs/{diverged['id']}?from=20&to=60&scale=log&smooth=0.8&rows=end&eigenvalues=3")
    all_drawn(page)
    page.locator('[data-chart="grad_over_weight"]').scroll_into_view_if_needed()
    eventually(page, lambda: {tuple(r) for r in page.evaluate(RANGES).values()} == {(20, 60)}, "the URL's range in all charts")
    assert page.locator("[name=scale]").input_value() == "log"
    # the raw line remains visible under the smoothed line
    becomes(page, "document.querySelector('[data-chart=\"loss\"]').data.some((t) => t.opacity < 0.5)")
    becomes(page, "document.querySelector('[data-chart=\"grad_over_weight_heatmap\"]')._fullLayout.yaxis.type === 'category'")
    reasons = page.locator("[data-lines]").inner_text()
    assert "moved most" in reasons
    assert "λ 3" in reasons

    page.keyboard.press("z")
    eventually(page, lambda: "from=" not in page.url, "an address without a range")
    eventually(page, lambda: all(r[1] >= last - 1 for r in page.evaluate(RANGES).values()), "all charts show the whole run")

    page.locator('[data-chart="loss"]').scroll_into_view_if_needed()
    # the chart is redrawn when it notices that it is visible; before that, it shows no cursor
    eventually(page, lambda: page.evaluate(RANGES).get("loss", [0, 0])[1] >= last - 1, "the loss over the whole run")
    box = page.locator('[data-chart="loss"] .nsewdrag').first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2)
    page.locator('[data-chart="loss"] .cursor').wait_for()
    values = page.locator("figure", has=page.locator('[data-chart="loss"]')).locator(".readout")
    before = values.inner_text()
    assert "train" in before
    page.keyboard.press("ArrowRight")
    eventually(page, lambda: values.inner_text() != before, "the cursor moved")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    eventually(page, lambda: "from=" in page.url, "the range in the address")
    eventually(page, lambda: len({tuple(r) for r in page.evaluate(RANGES).values()}) == 1, "one range for all charts")
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()


def test_alerts_and_chart_marks_are_linked_and_a_button_shows_the_last_steps(
    page: Any, installation: Installation, diverged: dict[str, Any]
) -> None:
    last, blamed = diverged["step"], diverged["divergence"]
    page.goto(f"{installation.url}/runs/{diverged['id']}")
    all_drawn(page)
    page.get_by_role("button", name="Last 200 steps").click()
    eventually(page, lambda: {r[1] for r in page.evaluate(RANGES).values()} == {last + 1}, "the end in all charts")
    if blamed["eigenvalue"] is not None:
        assert page.locator("[data-lines] li", has_text="blamed").inner_text().startswith(f"λ {blamed['eigenvalue']}")
    becomes(  # every chart marks the alerts of the run
        page,
        CHARTS + """.every((e) => e.data?.some((t) => t.name?.endsWith(' alert') && t.x?.length))""",
    )
    assert page.locator("[data-chart] [role=img]").count() == 0
    assert "At step" in (page.locator("#says-loss").text_content() or "")

    row = page.locator("[data-alerts] li").last
    row.click()
    page.locator("[data-alerts] li.linked").wait_for()
    step = page.evaluate("() => Number(/from=(\\d+)/.exec(location.search)?.[1])")
    assert step >= 0
    page.evaluate(
        """() => { const e = document.querySelector('[data-chart="loss"]');
             const t = e.data.findLast((t) => t.name?.endsWith(' alert') && t.x?.length);
             e.emit('plotly_click', {points: [{x: t.x[1], y: 1, customdata: t.customdata[1], data: t}]}); }"""
    )
    page.locator("[data-alerts] li.linked").wait_for()


def test_new_points_match_plotly_s_axes_and_the_page_shows_the_end_of_the_run(page: Any, installation: Installation) -> None:
    run = submit(installation, {**CURVE, "train": {**CURVE["train"], "steps": 100_000}})
    page.goto(f"{installation.url}/runs/{run}")
    drawn_step(page, 20)
    settled = "Number(document.querySelector('[data-chart=\"loss\"]').dataset.drawn)"
    # The page draws new points with `_size`, `l2p` and `c2p`, which are undocumented. They must agree with Plotly's axes.
    where = """() => { const e = document.querySelector('[data-chart="loss"]'), {xaxis, yaxis, _size} = e._fullLayout;
             const box = e.querySelector('.nsewdrag').getBoundingClientRect(), own = e.getBoundingClientRect();
             return [box.left - own.left - _size.l, box.top - own.top - _size.t, box.width - xaxis._length,
                     xaxis.l2p(xaxis.range[1]) - xaxis._length, yaxis.l2p(yaxis.range[0]) - yaxis._length,
                     yaxis.c2p(10 ** yaxis.range[1])]; }"""
    eventually(page, lambda: all(abs(error) < 1.5 for error in page.evaluate(where)), "positions that agree with Plotly's axes")

    def inked() -> bool:
        """True if new points are drawn on a canvas."""
        inked: bool = page.evaluate(
            """() => [...document.querySelectorAll('canvas.tail')].some((c) => c.width
                 && c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v))"""
        )
        return inked

    eventually(page, inked, "a tail on a canvas")
    before = page.evaluate(settled)
    reached = page.evaluate("Number(document.documentElement.dataset.lastStep)")
    drawn_step(page, reached + 100)
    assert page.evaluate(settled) >= before
    with installation.client() as client:
        client.post(f"/api/runs/{run}/cancel").raise_for_status()
        last = installation.wait_for_end(client, run)["step"]
    page.locator('.status[data-status="cancelled"]').wait_for()
    eventually(page, lambda: page.locator('[data-live="eta"]').inner_text() not in ("", "–"), "how long it took")
    drawn_step(page, last)
    page.locator('[data-stream="ended"]').wait_for()


def test_a_page_whose_numbers_cannot_be_loaded_tries_again(
    page: Any, installation: Installation, diverged: dict[str, Any]
) -> None:
    page.forgiven += ["Failed to load resource", "net::ERR_FAILED"]
    page.route("**/overview?**", lambda route: route.abort())
    page.goto(f"{installation.url}/runs/{diverged['id']}")
    page.locator('[data-stream="polling"]').wait_for()
    page.unroute("**/overview?**")
    all_drawn(page)
    page.locator('[data-stream="ended"]').wait_for()
