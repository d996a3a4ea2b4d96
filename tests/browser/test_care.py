"""In a real Chromium, every page has no serious axe violation, does not shift its layout while it loads, fits the width of a
phone, and is usable without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.browser.test_dashboard import becomes, eventually
from tests.server.http_service import BEARER, BODY, TOKEN, running
from tests.server.recording import Recording, claim, nonfinite

pytestmark = [pytest.mark.slow, pytest.mark.browser]

AXE = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = (
    *("/", "/?q=seed%3E", "/runs/1", "/runs/2", "/runs/9", "/compare?runs=1,2", "/compare", "/sweeps", "/sweeps/1", "/new"),
    *("/systems", "/theory", "/paper", "/alerts", "/workers", "/access", "/webhooks", "/trash", "/me", "/docs", "/login"),
)
SHIFTS = """window.shifts = []; new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((e) => e.value)))
  .observe({type: "layout-shift", buffered: true})"""
SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
  .filter(({impact}) => ["serious", "critical"].includes(impact)).map(({id, nodes}) => [id, nodes[0].html]))"""
DRAWN = ("/runs/1", "/compare?runs=1,2", "/theory", "/paper")  # pages with charts
ASKING = ("/", "/runs/2", "/sweeps/1", *DRAWN)  # pages whose scripts request data
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture
def address(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    """A server with a sweep of two runs (one diverged, one queued), a run in the trash, and a token."""
    sqlite = Database(sqlite_url)
    with running(sqlite_url, tmp_path) as (address, _):
        grid = {"model.reparameterization.name": ["direct", "best"]}
        sent = [
            ("sweeps", {"base": BODY | {"name": "memory", "tags": ["a tag"], "train": {"steps": 100}}, "grid": grid}),
            ("runs", BODY),
            ("tokens", {"name": "ci", "scope": "read"}),
            ("runs/3/cancel", {}),
        ]
        for path, body in sent:
            httpx.post(f"{address}/api/{path}", json=body, headers=BEARER, timeout=120).raise_for_status()
        httpx.delete(f"{address}/api/runs/3", headers=BEARER, timeout=120).raise_for_status()
        alert = nonfinite("nonfinite_gradient", 28, series="ssm/0/grad_over_weight", layer=0, eigenvalue=2)
        Recording(sqlite, claim(sqlite), width=4).write(30, [alert])
        where = {"step": 28, "layer": 0, "eigenvalue": 2, "tensor": "w.grad", "value": "NaN"}
        with sqlite.write() as session:
            lifecycle.finish(session, 1, 1, "diverged", "gradient is NaN", {"train_loss": float("nan")}, where)
        yield address


def test_every_page_is_accessible_loads_without_layout_shift_and_fits_a_phone(
    browser: Any, address: str, unavailable: Callable[[str], None]
) -> None:
    if not AXE.exists():
        unavailable("axe-core is not installed; `make lint-js` installs it")
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", bypass_csp=True)
    context.set_default_timeout(120_000)
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.goto(f"{address}/?token={TOKEN}")
    for path in PAGES:
        page.goto(address + path, wait_until="networkidle" if path in ASKING else "load")
        if path in DRAWN:
            page.wait_for_selector("[data-drawn]")
        assert sum(page.evaluate("shifts")) < 0.05, path
        page.evaluate(AXE.read_text())
        if path == "/":  # at desktop width, where the list shows every column
            assert page.evaluate(SERIOUS) == [], path
        page.set_viewport_size({"width": 390, "height": 844})
        eventually(page, lambda: page.evaluate(FITS), f"{path} fits a phone")  # resized charts are drawn again
        assert page.evaluate(SERIOUS) == [], path
        page.set_viewport_size({"width": 1280, "height": 900})
    context.close()


def test_pages_without_scripts_show_only_controls_that_work(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(f"{address}/login")
    page.fill("[name=token]", TOKEN)
    with page.expect_navigation():
        page.click("button")
    page.fill("[name=q]", "status=diverged")
    with page.expect_navigation():
        page.click("button:has-text('Filter')")
    assert page.locator(".runs tbody tr").count() == 1
    with page.expect_navigation():
        page.click(".runs td.name a")
    assert page.title() == "diverged · memory reparameterization=direct · StableSSM"
    assert page.locator("noscript p").first.is_visible()
    assert page.locator("text=Diverged at step 28, layer 0, eigenvalue 2").is_visible()
    for path in PAGES:
        page.goto(address + path)
        for what in (
            "[data-action]",
            "[data-changes]",
            ".plot",
            ".stream",
            "[data-new] .preview pre",
            "text=/connecting|loading/i",
        ):
            assert not [one for one in page.locator(what).all() if one.is_visible()], (path, what)
        assert page.locator("main").inner_text().strip(), path
    context.close()


def test_a_run_that_ends_while_its_page_loads_is_shown_as_ended(browser: Any, address: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(f"{address}/?token={TOKEN}")

    def late(route: Any) -> None:
        httpx.post(f"{address}/api/runs/2/cancel", headers=BEARER, timeout=120)
        route.continue_()

    page.route("**/api/runs/2/overview?**", late)
    page.goto(f"{address}/runs/2")
    page.wait_for_selector('.status[data-status="cancelled"]')
    page.wait_for_selector('[data-stream="ended"]')
    becomes(page, "document.title.startsWith('cancelled · ')")
    context.close()
