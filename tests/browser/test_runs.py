"""The list of runs in a real Chromium: sorting, filters with completion, editing, bulk actions, and live updates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.browser.test_dashboard import becomes, eventually
from tests.server.http_service import BEARER, BODY, TOKEN, running
from tests.server.recording import Recording, claim

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def address(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    with running(sqlite_url, tmp_path) as (address, _):
        yield address


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(120_000)
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(f"{address}/?token={TOKEN}")
    yield page
    context.close()
    assert trouble == []


def submit(address: str, **changes: Any) -> int:
    return int(
        httpx.post(f"{address}/api/runs", json=BODY | changes, headers=BEARER, timeout=120).raise_for_status().json()["id"]
    )


def order(page: Any, *runs: int) -> None:
    """Wait until the list shows exactly these runs in this order."""
    first, *others = (f"tr[data-run='{run}']" for run in runs)
    page.wait_for_selector(" + ".join([f"{first}:first-child", *others]) + ":last-child")


def test_the_list_is_sorted_filtered_and_saved_as_a_view_without_reloading_the_page(page: Any, address: str) -> None:
    for seed, lr in ((2, 0.1), (0, 0.001), (1, 0.01)):
        submit(address, name=f"seed {seed}", train={"seed": seed}, optimizer={"lr": lr}, tags=["a tag"] if seed else [])
    page.reload()
    page.evaluate("window.stayed = true")
    page.click("th[data-column=lr] a")
    order(page, 2, 3, 1)
    assert page.get_attribute("th[data-column=lr]", "aria-sort") == "ascending"
    page.click("th[data-column=lr] a")
    order(page, 1, 3, 2)
    page.wait_for_url(re.compile("sort=-lr"))
    page.focus("#q")
    page.keyboard.type("ta")
    page.click("[role=option] >> text=/^tag$/")
    page.click("[role=option] >> text=a tag")
    assert page.input_value("#q") == 'tag="a tag" '
    page.keyboard.press("Enter")
    order(page, 1, 3)
    page.keyboard.type("seed>")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-filter-error] [role=alert]")  # the error is shown beside the filter field
    assert page.input_value("#q") == 'tag="a tag" seed>'
    order(page, 1, 3)
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    order(page, 1)
    assert page.locator("[data-filter-error] [role=alert]").count() == 0
    page.go_back()
    order(page, 1, 3)
    assert (page.input_value("#sort"), page.is_visible("#sort")) == ("-lr", False)
    page.set_viewport_size({"width": 390, "height": 844})  # a narrow list has no column headers
    page.select_option("#sort", label="lr: lowest first")
    order(page, 3, 1)
    page.wait_for_url(re.compile("sort=lr"))
    page.go_back()
    order(page, 1, 3)
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate("window.stayed"), "the page must not have been reloaded"
    page.click("summary:has-text('Columns')")
    page.check(".chooser [value=seed]")
    page.fill("#any-column", "model.reparameterization.b")
    with page.expect_navigation():  # waits until the next page and its scripts are loaded
        page.click("text=Show these columns")
    page.wait_for_selector("th[data-column='model.reparameterization.b']")
    order(page, 1, 3)
    page.click("summary:has-text('Save view')")
    page.fill("#view-name", "two of them")
    with page.expect_navigation():
        page.click(".chooser >> text=Save")
    page.wait_for_selector("[data-views] >> text=two of them")
    page.goto(address)
    page.wait_for_selector("th[data-column=seed]")  # this browser remembers the columns
    order(page, 3, 2, 1)
    page.click("[data-views] >> text=two of them")
    order(page, 1, 3)


def test_sorting_while_a_back_navigation_still_loads_keeps_the_filter_of_that_page(page: Any, address: str) -> None:
    for lr in (0.1, 0.001, 0.01):
        submit(address, optimizer={"lr": lr})
    page.reload()
    order(page, 3, 2, 1)
    for shown, query in (((2, 1), "lr!=0.01"), ((1,), "lr>0.01")):
        page.fill("#q", query)
        page.keyboard.press("Enter")
        order(page, *shown)
    held: list[Any] = []
    page.route("**/*part=list*", lambda route: held.append(route))
    page.go_back()
    eventually(page, lambda: page.input_value("#q") == "lr!=0.01", "the filter field is restored before the list is loaded")
    page.unroute("**/*part=list*")
    page.set_viewport_size({"width": 390, "height": 844})
    page.select_option("#sort", label="lr: highest first")
    order(page, 1, 2)
    assert held, "the back navigation must have requested the list"


def test_selected_runs_can_be_hidden_deleted_and_restored_and_names_edited_in_place(page: Any, address: str) -> None:
    for seed in range(4):
        submit(address, name=f"seed {seed}", train={"seed": seed})
    httpx.post(f"{address}/api/bulk/cancel", json={"runs": [1, 2]}, headers=BEARER, timeout=120).raise_for_status()
    page.reload()
    page.check("tr[data-run='4'] input[type=checkbox]")
    page.click("[data-do=compare]")
    page.wait_for_selector(".toast >> text=second run")
    page.click("tr[data-run='1'] input[type=checkbox]", modifiers=["Shift"])
    becomes(page, "document.querySelector('[data-count]').textContent === '4 chosen'")
    page.click("[data-do=delete]")
    page.wait_for_selector(".toast >> text=2 runs moved to the trash")
    page.wait_for_selector(".toast.critical >> text=run 3 is queued")
    order(page, 4, 3)
    # runs that were not deleted must stay selected
    becomes(page, "document.querySelector('[data-count]').textContent === '2 chosen'")
    page.click(".toast button >> text=Undo")
    order(page, 4, 3, 2, 1)
    page.click("[data-do=hide]")
    order(page, 2, 1)
    page.click(".toast:has-text('hidden') button")
    page.wait_for_selector(".toast >> text=shown again")
    page.wait_for_selector("[data-part=list]:not([aria-busy])")  # a list that arrives later would replace the form below
    order(page, 4, 3, 2, 1)

    page.focus("tr[data-run='2'] td.name a")
    page.keyboard.press("e")
    becomes(page, "document.activeElement.value === 'seed 1'")
    page.keyboard.type("<b>renamed</b>")
    page.fill("tr[data-run='2'] [name=tags]", "x, y")
    page.fill("tr[data-run='2'] [name=notes]", "a note")
    page.keyboard.press("Enter")
    page.wait_for_selector("tr[data-run='2'] .chip:text-is('y')")
    assert page.inner_text("tr[data-run='2'] .title a") == "<b>renamed</b>"
    shown = httpx.get(f"{address}/api/runs/2", headers=BEARER, timeout=120).json()
    assert (shown["name"], shown["tags"], shown["notes"]) == ("<b>renamed</b>", ["x", "y"], "a note")
    page.goto(f"{address}/?compare=2")
    page.wait_for_selector("[data-looking-for] >> text=Run 2 is chosen")
    page.check("tr[data-run='1'] input[type=checkbox]")
    page.click("[data-do=compare]")
    page.wait_for_url(re.compile(r"/compare\?runs=2,1"))


def test_new_rows_appear_change_their_status_and_do_not_move_under_the_pointer(page: Any, address: str, sqlite_url: str) -> None:
    page.wait_for_selector("text=No runs yet")
    submit(address, name="first")
    order(page, 1)
    becomes(page, "document.title.startsWith('1 queued')")
    database = Database(sqlite_url)
    taken = claim(database)
    Recording(database, taken, weird=False).write(60)
    page.wait_for_selector("tr[data-run='1'] .status[data-status=running]")
    page.wait_for_selector("tr[data-run='1'] [data-spark] polyline")
    page.hover("tr[data-run='1'] td.name")
    submit(address, name="second")
    page.wait_for_selector("[data-news]:not([hidden])")
    order(page, 1)
    with database.write() as session:
        lifecycle.finish(session, taken.run_id, taken.attempt, "diverged", "", {"train_loss": float("nan")}, {"step": 60})
    database.close()
    badge = page.locator("tr[data-run='1'] .status[data-status=diverged]")
    badge.wait_for()  # rows that keep their position are still updated
    assert "diverged" in badge.inner_text()
    page.mouse.move(2, 2)
    order(page, 2, 1)

    page.context.set_offline(True)
    page.wait_for_selector("[data-offline]:not([hidden])")
    page.check("tr[data-run='1'] input[type=checkbox]")
    page.click("[data-do=hide]")
    page.wait_for_selector(".toast.critical >> text=the server cannot be reached")
    assert "Failed to fetch" not in page.inner_text("body")
    page.context.set_offline(False)
    page.wait_for_selector("[data-offline][hidden]", state="attached")


def test_the_first_screen_shows_twelve_runs_and_folded_sweeps_open_in_place(page: Any, address: str) -> None:
    grid = {"model.reparameterization.name": ["direct", "best"], "train.seed": list(range(7))}
    body = {"name": "which map lives?", "base": BODY | {"tags": ["demo"]}, "grid": grid}
    httpx.post(f"{address}/api/sweeps", json=body, headers=BEARER, timeout=120).raise_for_status()
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(address)
    page.goto(address)
    bottoms = page.eval_on_selector_all("tr[data-run]", "rows => rows.map((row) => row.getBoundingClientRect().bottom)")
    assert sum(bottom <= 900 for bottom in bottoms) >= 12
    page.evaluate("window.stayed = true")
    page.check("[name=fold]")
    page.click("form[data-filter] button")
    page.wait_for_selector("tr[data-sweep-row]")
    assert page.locator("tr[data-run]").count() == 0
    page.click("a.fold")
    page.wait_for_selector("tr[data-inside]")
    assert page.locator("tr[data-inside]").count() == 14
    assert page.evaluate("window.stayed") is True


def test_the_form_suggests_projects_and_sends_the_chosen_one(page: Any, address: str) -> None:
    made = httpx.post(f"{address}/api/runs", json={"task": {"name": "digits"}, "project": "hybrid"}, headers=BEARER, timeout=120)
    made.raise_for_status()
    page.goto(f"{address}/new")
    assert page.locator("#projects option").evaluate_all("(all) => all.map((one) => one.value)") == ["hybrid"]
    assert page.get_attribute("#f-project", "list") == "projects"
    page.fill("#f-project", "hybrid")
    becomes(page, "JSON.parse(document.querySelector('[data-preview]').textContent).project === 'hybrid'")
    page.click("aside button[type=submit]")
    page.wait_for_url(re.compile("/runs/2$"))
    assert page.locator(".crumbs a", has_text="hybrid").count() == 1
    page.goto(f"{address}/new?clone=2")
    assert page.input_value("#f-project") == "hybrid"
    page.fill("#f-project", "x" * 201)
    page.click("aside button[type=submit]")
    page.wait_for_selector("[data-error-for=project]:not([hidden])")
    page.fill("#f-project", "")
    page.click("aside button[type=submit]")
    page.wait_for_url(re.compile("/runs/3$"))
    assert page.locator(".crumbs a", has_text="hybrid").count() == 0
