"""The run page in a real Chromium shows the records of a run with five kinds of layers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.browser.test_dashboard import becomes, context, eventually, installation, page, submit, trace
from tests.installation import Installation

__all__ = ["context", "installation", "page"]
pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]

CONFIG = {
    "name": "five kinds",
    "task": {"name": "polynomial_memory", "length": 24},
    "model": {
        "d_model": 8,
        "layers": [
            {"name": "mamba", "d_state": 4}, {"name": "s4d", "d_state": 8}, "retnet", "gla",
            {"name": "dss", "d_state": 8, "version": "softmax"},
        ],
    },
    "train": {"batch_size": 4, "steps": 60, "eval_every": 20},
}  # fmt: skip
SHOWN = """() => [...document.querySelectorAll('figure:not([hidden]) [data-chart]:not([data-slopes] *)')]
  .map((e) => e.dataset.chart)"""
# the chart may first be drawn without points
DISC_HAS_POINTS = "document.querySelector('[data-chart=unit_disc]').data?.find((t) => t.name === 'now')?.x?.length"
RATIOS = {"grad_over_weight", "grad_over_weight_heatmap", "relative_step"}
GATED = {"gates", "boundary_distance_closest"}


@pytest.fixture(scope="module")
def run(installation: Installation) -> int:
    run = submit(installation, CONFIG)
    with installation.client() as client:
        assert installation.wait_for_end(client, run)["status"] == "finished"
    return run


def choose(page: Any, record: str) -> set[str]:
    """Select the record, wait until its charts are drawn, and return their names."""
    page.locator("[name=layer]").select_option(record)
    becomes(page, f"!document.querySelector('[data-of-record=\"{record}\"]').hidden")
    drawn = (
        "[...document.querySelectorAll('figure:not([hidden]) [data-chart]:not([data-slopes] *)')].every((e) => e.dataset.drawn)"
    )
    becomes(page, drawn)
    return set(page.evaluate(SHOWN))


def test_each_record_has_its_own_charts_and_notes(page: Any, installation: Installation, run: int) -> None:
    page.goto(f"{installation.url}/runs/{run}")
    said = page.locator("[data-part=composition]").inner_text()
    assert said.startswith("mamba of 64 eigenvalues, s4d of 32, retnet of 4, gla of 4, dss of ")
    options = page.locator("[name=layer] option").all_inner_texts()
    assert options[:3] == ["0 · mamba", "0 · mamba: dt_bias", "1 · s4d"]

    mamba = choose(page, "0")
    assert RATIOS | GATED | {"gradient"} <= mamba
    assert not {"unit_disc", "half_plane", "true_eigenvalue", "gain"} & mamba
    assert "64 eigenvalues share 16 gates" in page.locator(".notes").inner_text()
    marked = "(t) => t.name === 'infinite: weight is 0' && t.x.length === 1 && t.x[0] === 1"
    becomes(page, f"document.querySelector('[data-chart=grad_over_weight]').data.some({marked})")

    page.keyboard.press("]")
    becomes(page, "document.querySelector('[name=layer]').value === '0.dt_bias'")
    page.wait_for_url("**layer=0.dt_bias*")
    assert "eigenvalue" not in choose(page, "0.dt_bias")

    s4d = choose(page, "1")
    assert {"unit_disc", "half_plane"} <= s4d
    assert not GATED & s4d

    retnet = choose(page, "2")
    assert not (RATIOS | {"gradient"}) & retnet
    assert "fixed and not trained" in page.locator(".notes").inner_text()
    becomes(page, "document.querySelector('[data-slopes]').hidden")  # a layer without a map has no slopes
    lines = "[...document.querySelectorAll('[data-lines] li')].map((e) => Number.parseInt(e.textContent.slice(2), 10))"
    becomes(page, f"{lines}.join() === '0,1,2,3'")  # without ratios, all eigenvalues are drawn as lines

    gla = choose(page, "3")
    assert gla >= (RATIOS - {"relative_step"}) | GATED
    assert "relative_step" not in gla  # the effect of the update on a reported decay is unknown
    assert "norm of the row" in page.locator(".notes").inner_text()

    dss = choose(page, "4")
    assert "half_plane" in dss
    assert "unit_disc" not in dss
    page.locator("[data-chart=eigenvalue]").scroll_into_view_if_needed()  # an invisible chart is redrawn when it is shown
    becomes(
        page,
        "document.querySelector('[data-chart=eigenvalue]').data.some((t) => t.name.endsWith('no boundary here') && t.y[1] === 1)",
    )
    page.get_by_text("either side of the dashed line is legal").first.wait_for()


def test_a_layer_chosen_before_the_chart_definitions_arrive_is_shown(page: Any, installation: Installation, run: int) -> None:
    waiting: list[Any] = []
    page.route("**/api/figures*", lambda route: waiting.append(route))
    page.goto(f"{installation.url}/runs/{run}", wait_until="domcontentloaded")
    eventually(page, lambda: waiting, "a request for the chart definitions")
    page.locator("[name=layer]").select_option("1")
    becomes(page, "!document.querySelector('[data-of-record=\"1\"]').hidden")
    for route in waiting:
        route.continue_()
    page.locator("[data-chart=unit_disc]").scroll_into_view_if_needed()
    becomes(page, "document.querySelector('[data-chart=unit_disc]').data?.some((t) => t.name === 'now' && t.x.length)")


def test_an_invisible_chart_that_was_drawn_empty_is_drawn_again_when_its_points_arrive(
    page: Any, installation: Installation, run: int
) -> None:
    waiting: list[Any] = []
    page.route(re.compile(r"/overview\?.*part=layer"), lambda route: waiting.append(route))
    page.set_viewport_size({"width": 1280, "height": 600})
    page.goto(f"{installation.url}/runs/{run}?layer=1", wait_until="domcontentloaded")
    becomes(page, "document.querySelector('[data-chart=unit_disc]').dataset.drawn")
    assert page.evaluate("document.querySelector('[data-chart=unit_disc]').getBoundingClientRect().top > innerHeight")
    assert not page.evaluate(DISC_HAS_POINTS)
    for route in waiting:
        route.continue_()
    becomes(page, DISC_HAS_POINTS)


def test_eigenvalues_are_drawn_at_their_recorded_positions_on_the_unit_disc(
    page: Any, installation: Installation, run: int
) -> None:
    with installation.client() as client:
        size, angle = (
            np.array(client.get(f"/api/runs/{run}/series/ssm/1/{kind}").json()["value"], float)
            for kind in ("eigenvalue", "phase")
        )
    page.goto(f"{installation.url}/runs/{run}?layer=1&eigenvalues=5")
    becomes(page, DISC_HAS_POINTS)
    eventually(page, lambda: page.evaluate("document.querySelector('[data-lines]').textContent.includes('λ 5')"), "a line of 5")
    for name, row in (("at first", 0), ("now", -1)):
        shown = trace(page, "unit_disc", name)
        np.testing.assert_allclose(shown["x"], size[row] * np.cos(angle[row]), atol=1e-6)
        np.testing.assert_allclose(shown["y"], np.abs(size[row] * np.sin(angle[row])), atol=1e-6)
    box = page.evaluate(
        """() => { const {xaxis, yaxis} = document.querySelector('[data-chart=unit_disc]')._fullLayout;
             return [xaxis._length / (xaxis.range[1] - xaxis.range[0]), yaxis._length / (yaxis.range[1] - yaxis.range[0])]; }"""
    )
    assert box[0] == pytest.approx(box[1], rel=0.01), "both axes have the same scale, so the unit circle is round"
    before = page.evaluate("document.querySelector('[data-chart=unit_disc]')._fullLayout.xaxis.range")
    page.goto(f"{installation.url}/runs/{run}?layer=1&from=20&to=40")
    becomes(page, DISC_HAS_POINTS)
    after = page.evaluate("document.querySelector('[data-chart=unit_disc]')._fullLayout.xaxis.range")
    assert after == pytest.approx(before, abs=0.5), "the range of steps does not change the axes of this chart"


def test_the_line_of_an_eigenvalue_shows_the_gate_that_it_shares(page: Any, installation: Installation, run: int) -> None:
    with installation.client() as client:
        gates = client.get(f"/api/runs/{run}/series/ssm/0/gate_mean?eigenvalues=17").json()["value"]
        assert gates == [row[4] for row in client.get(f"/api/runs/{run}/series/ssm/0/gate_mean").json()["value"]]
    page.goto(f"{installation.url}/runs/{run}?eigenvalues=17&top=0")
    becomes(page, "document.querySelector('[data-chart=gates]').dataset.drawn")
    eventually(page, lambda: "λ 17" in page.locator("[data-lines]").inner_text(), "a line of 17")
    traces = "document.querySelector('[data-chart=gates]').data"
    named = f"{traces}.find((t) => t.name.startsWith('λ 17') && !t.name.includes(','))?.name"
    becomes(page, named)
    name = page.evaluate(named)
    np.testing.assert_allclose(trace(page, "gates", name)["y"], gates, rtol=1e-6)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_run_page_fits_a_phone_in_light_and_dark(page: Any, installation: Installation, run: int, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/runs/{run}?layer=1")
    becomes(page, "document.querySelector('[data-chart=loss]').dataset.drawn")
    page.get_by_text("Charts of the layer").click()
    becomes(page, "document.querySelector('[data-chart=unit_disc]').dataset.drawn")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
