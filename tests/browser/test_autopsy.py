"""The autopsy on the page of a run in a real Chromium: it arrives on the open page, shows what was measured, and can be asked for
by a button."""

from __future__ import annotations

from typing import Any

import pytest

from server.database.connection import Database
from server.database.models import Run
from server.settings import Settings
from tests.browser.test_dashboard import context, eventually, installation, page, submit, trace
from tests.installation import Installation

__all__ = ["context", "installation", "page"]
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.browser, pytest.mark.timeout(900)]

DYING: dict[str, Any] = {  # `direct` with a rate that rises until an eigenvalue overflows
    "task": {"name": "polynomial_memory", "length": 100},
    "model": {"d_model": 16, "d_state": 8, "reparameterization": {"name": "direct"}},
    "optimizer": {"lr": 1.0, "warmup_steps": 100},
    "train": {"steps": 200, "batch_size": 8, "eval_every": 0, "checkpoint_every": 10, "device": "cpu"},
}


@pytest.fixture(scope="module")
def died(installation: Installation) -> dict[str, Any]:
    """A run that died: the one of the test above, if that test has run."""
    with installation.client() as client:
        runs: list[dict[str, Any]] = client.get("/api/runs", params={"status": "diverged"}).json()["runs"]
        return runs[0] if runs else installation.wait_for_end(client, submit(installation, DYING))


def autopsy(page: Any, state: str, seconds: float = 150) -> Any:
    """The part of the page with the autopsy, once it has this state."""
    shown = page.locator(f'[data-autopsy="{state}"]')
    shown.wait_for(timeout=seconds * 1000)
    return shown


def drawn(page: Any, chart: str) -> None:
    page.locator(f'[data-chart="{chart}"]').scroll_into_view_if_needed()
    page.locator(f'[data-chart="{chart}"][data-drawn]').wait_for()


def test_the_autopsy_of_a_dead_run_arrives_on_its_open_page(page: Any, installation: Installation) -> None:
    with installation.client() as client:
        client.patch("/api/queues/default", json={"paused": True}).raise_for_status()
        run = submit(installation, DYING)
        page.goto(f"{installation.url}/runs/{run}")
        assert page.locator("[data-autopsy]").count() == 0, "the run has not ended"
        page.evaluate("window.opened = true")
        client.patch("/api/queues/default", json={"paused": False}).raise_for_status()
    found = autopsy(page, "done", seconds=600)  # beside other tests, its low priority makes it slow
    assert page.evaluate("window.opened"), "the page was not loaded again"
    with installation.client() as client:
        told = client.get(f"/api/runs/{run}/autopsy").json()
        checkpoints = client.get(f"/api/runs/{run}/checkpoints").json()["checkpoints"]
    step, trouble = told["step"], told["trouble"]["step"]
    line = found.locator(".line-of-events li")
    assert [line.nth(i).locator(".at").inner_text() for i in (1, 2)] == [f"step {trouble}", f"step {step}, forward pass"]
    assert told["first_nonfinite"]["operation"] in line.nth(2).inner_text()
    assert "float32" in found.locator("section", has_text="The same step in float64").inner_text()
    drawn(page, "autopsy_modules")
    limit = trace(page, "autopsy_modules", "3.4e38, float32's limit")
    assert limit["x"][0] == pytest.approx(3.4e38, rel=0.01)
    assert len(trace(page, "autopsy_modules", "float32")["x"]) == len(told["modules"])
    drawn(page, "autopsy_counterfactuals")
    start = min(one["from_step"] for one in told["counterfactuals"])
    for one in told["counterfactuals"]:
        if one["lives"] is not None:
            row = found.locator(
                "[data-counterfactual]", has_text=f"{'lives to' if one['lives'] else 'dies at'} step {one['step']}"
            )
            assert row.count() >= 1, one
    recorded = trace(page, "autopsy_counterfactuals", "the run")
    assert recorded["x"][-1] == step, "the run's own curve, from which the others part"
    assert start < trouble
    marks = [option.inner_text().partition(", ")[2] for option in page.locator("[data-from-step] option").all()[1:]]
    assert marks == ["before the trouble" if c["step"] < trouble else "inside the trouble" for c in checkpoints[::-1]]
    assert "measured" in page.locator("[data-verdict]").inner_text()


def test_the_button_repeats_another_step_and_the_page_follows(
    page: Any, installation: Installation, died: dict[str, Any]
) -> None:
    page.goto(f"{installation.url}/runs/{died['id']}")
    found = autopsy(page, "done")
    found.get_by_text("Repeat another step").click()
    form = found.locator("[data-autopsy-form]")
    form.locator("input").fill(str(died["step"] + 50))
    form.get_by_role("button").click()
    page.get_by_text(f"step is {died['step'] + 50}").wait_for()
    page.forgiven.append("422")
    form.locator("input").fill("7")
    form.get_by_role("button").click()
    page.get_by_text("Step 7 was trained again with instruments").wait_for()
    assert "every number of this step is finite" in autopsy(page, "done").inner_text()


def test_an_autopsy_without_a_result_says_why_and_can_be_tried_again(
    page: Any, installation: Installation, died: dict[str, Any]
) -> None:
    database = Database(Settings(data_dir=installation.data_dir).database_url)
    with database.write() as session:
        run = session.get_one(Run, died["id"])
        run.config = run.config | {"task": {"name": "gone"}}
    database.close()
    with installation.client() as client:
        client.post(f"/api/runs/{died['id']}/autopsy", json={}).raise_for_status()
    page.goto(f"{installation.url}/runs/{died['id']}")
    found = autopsy(page, "done")
    eventually(page, lambda: "No result." in found.inner_text(), "the reason why there are no findings")
    assert "'gone' is not installed here" in found.inner_text()
    assert "The verdict rests on the recorded numbers alone." in found.inner_text()
    assert page.locator('[data-chart="autopsy_modules"]').is_hidden()
    assert "inferred" in page.locator("[data-verdict]").inner_text()
    page.get_by_text("The numbers behind this verdict").click()
    assert "The autopsy has no result" in page.locator("#why").inner_text()
    page.get_by_role("button", name="Try again").click()
    autopsy(page, "done")
