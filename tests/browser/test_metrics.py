"""Free metrics in a real Chromium: groups stay closed until the reader opens them, their charts show every value, and new
values and new names arrive while the page is open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from server.database.models import Run
from stablessm_core.report.messages import MetricsMessage
from tests.browser.test_dashboard import becomes, context, page
from tests.installation import Installation, hold_port
from tests.server.reported import opened
from tests.server.storing import store_metrics

__all__ = ["context", "page"]
pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]
RULE = {"name": "val/loss", "condition": "nonfinite", "steps": 1}
NAMES = "[...document.querySelectorAll('[data-metric-groups] figure')].map((f) => f.dataset.metric)"
POINTS = "Array.from(document.querySelector('[data-metric=\"{}\"] .plot')?.data?.find((t) => t.name === 'value')?.x ?? [])"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with hold_port() as held:
        made = Installation(tmp_path_factory.mktemp("metrics") / "state", held.getsockname()[1])
        try:
            made.start("serve", "--port", str(made.port), "--data-dir", str(made.data_dir))
            made.wait("server", lambda: answers(made))
            yield made
        finally:
            made.kill_all()


def answers(installation: Installation) -> bool:
    """True once the server answers."""
    try:
        with installation.client() as client:
            return client.get("/api/runs").is_success
    except (httpx.TransportError, FileNotFoundError):
        return False


@pytest.fixture(scope="module")
def database(installation: Installation) -> Iterator[Database]:
    database = Database(f"sqlite:///{installation.data_dir / 'stablessm.db'}")
    yield database
    database.close()


@pytest.fixture(scope="module")
def run(database: Database) -> int:
    """A reported run with 3 metrics of `val`, 100 of `layers`, and one without a prefix."""
    number = opened(database, name="logs metrics")
    with database.write() as session:
        session.get_one(Run, number).rules = [RULE]
    log(
        database,
        number,
        [500, 1000, 1500],
        {"val/loss": [2.0, math.nan, 1.0], "val/acc": [0.1, 0.2, 0.3], "val/x": [None, 1.0, 2.0]},
    )
    log(database, number, [10, 20], {f"layers/{i}": [float(i), float(i)] for i in range(100)} | {"seconds": [1.0, 2.0]})
    return number


def log(database: Database, run: int, steps: list[int], values: dict[str, list[float | None]]) -> None:
    with database.write() as session:
        found = session.get_one(Run, run)
        found.beat += 1
        found.status = "running"  # on a busy machine the server may have called the silent run lost
        store_metrics(session, run, 1, MetricsMessage(steps, values))


def open_group(page: Any, name: str) -> None:
    page.locator(f"[data-metric-group='{name}'] > summary").click()


def test_groups_are_closed_and_an_opened_group_draws_the_charts_in_view(page: Any, installation: Installation, run: int) -> None:
    page.goto(f"{installation.url}/runs/{run}")
    page.locator("#metrics").scroll_into_view_if_needed()
    assert page.locator("[data-metric-group] > summary").all_text_contents() == ["without a prefix 1", "layers 100", "val 3"]
    assert page.evaluate(NAMES) == []
    open_group(page, "val")
    becomes(page, f"{NAMES}.join() === 'val/acc,val/loss,val/x'")
    page.locator("[data-metric='val/loss']").scroll_into_view_if_needed()
    becomes(page, f"{POINTS.format('val/loss')}.join() === '500,1000,1500'")
    lost = "document.querySelector('[data-metric=\"val/loss\"] .plot').data.find((t) => t.name === 'NaN / Inf').x"
    assert page.evaluate(f"() => Array.from({lost})") == [1000]
    assert page.locator("[data-metric='val/acc'] figcaption").inner_text().startswith("val/acc")
    with page.expect_download() as download:
        page.locator("[data-metric='val/loss'] a", has_text="CSV").click()
    assert download.value.path().read_text() == "step,value\n500,2\n1000,nan\n1500,1\n"


def test_a_large_group_shows_some_charts_and_a_search_finds_the_others(page: Any, installation: Installation, run: int) -> None:
    page.goto(f"{installation.url}/runs/{run}")
    open_group(page, "layers")
    becomes(page, f"{NAMES}.length === 24")
    assert page.evaluate(NAMES)[:3] == ["layers/0", "layers/1", "layers/2"]
    page.get_by_role("button", name="Show more (76 left)").click()
    becomes(page, f"{NAMES}.length === 48")
    page.locator("[data-metrics-find]").fill("rs/97")
    becomes(page, f"{NAMES}.join() === 'layers/97'")
    assert page.locator("[data-metric-group='val']").is_hidden()


def test_new_values_and_new_names_arrive_on_the_open_page(
    page: Any, installation: Installation, database: Database, run: int
) -> None:
    page.goto(f"{installation.url}/runs/{run}")
    open_group(page, "val")
    page.locator("[data-stream='live']").wait_for()
    page.locator("[data-metric='val/acc']").scroll_into_view_if_needed()
    becomes(page, f"{POINTS.format('val/acc')}.length === 3")
    log(database, run, [1500, 2000], {"val/acc": [0.4, 0.5], "new/name": [None, 7.0]})
    becomes(page, f"{POINTS.format('val/acc')}.join() === '500,1000,1500,2000'")
    becomes(page, "document.querySelector('[data-metric=\"val/acc\"] figcaption').innerText.includes('0.5')")
    becomes(page, "document.querySelector('[data-metric-group=new]') !== null")
    with installation.client() as client:
        found = client.get("/api/runs", params={"q": "val/acc>=0.5", "metrics": "val/acc,seconds"}).json()["runs"]
    assert [one["metrics"] for one in found] == [{"val/acc": 0.5, "seconds": 2.0}]


def test_an_alert_of_a_rule_leads_to_the_chart_of_its_metric(page: Any, installation: Installation, run: int) -> None:
    page.goto(f"{installation.url}/runs/{run}")
    alert = page.locator("[data-alerts] [data-alert-id]")
    assert "your rule 'nonfinite'" in alert.inner_text()
    alert.locator("a").last.click()
    becomes(page, f"{POINTS.format('val/loss')}.length > 0")
    lines = "document.querySelector('[data-metric=\"val/loss\"] .plot').data.find((t) => t.name === 'warning alert').x"
    becomes(page, f"Array.from({lines}).includes(1000)")


def test_a_metric_is_a_column_of_the_list(page: Any, installation: Installation, run: int) -> None:
    page.goto(f"{installation.url}/?columns=status,val/loss,metric.seconds&sort=-val/loss")
    heads = page.locator("th[data-column]").all_inner_texts()
    assert [head.strip(" ▼▲") for head in heads][2:] == ["val/loss", "seconds"]
    cells = page.locator(f"tr[data-run='{run}'] td").all_inner_texts()
    assert cells[-2:] == ["1", "2"]
