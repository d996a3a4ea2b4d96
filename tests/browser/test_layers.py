"""The run page shows every layer as what it is: a run of five kinds of layers, looked at record by record in a real Chromium."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.browser.test_dashboard import becomes, context, eventually, installation, page, submit, trace
from tests.installation import Installation

__all__ = ["context", "installation", "page"]
pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

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
RATIOS = {"grad_over_weight", "grad_over_weight_heatmap", "relative_step"}
GATED = {"gates", "boundary_distance_closest"}


@pytest.fixture(scope="module")
def run(installation: Installation) -> int:
    run = submit(installation, CONFIG)
    with installation.client() as client:
        assert installation.wait_for_end(client, run)["status"] == "finished"
    return run


def choose(page: Any, record: str) -> set[str]:
    """Shows the record; gives the charts that it has, drawn."""
    page.locator("[name=layer]").select_option(record)
    becomes(page, f"!document.querySelector('[data-of-record=\"{record}\"]').hidden")
    drawn = (
        "[...document.querySelectorAll('figure:not([hidden]) [data-chart]:not([data-slopes] *)')].every((e) => e.dataset.drawn)"
    )
    becomes(page, drawn)
    return set(page.evaluate(SHOWN))


def test_each_record_has_its_own_charts_and_words(page: Any, installation: Installation, run: int) -> None:
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
    assert "layer=0.dt_bias" in page.url
    assert "eigenvalue" not in choose(page, "0.dt_bias")

    s4d = choose(page, "1")
    assert {"unit_disc", "half_plane"} <= s4d
    assert not GATED & s4d

    retnet = choose(page, "2")
    assert not (RATIOS | {"gradient"}) & retnet
    assert "fixed: nothing trains them" in page.locator(".notes").inner_text()
    assert page.locator("[data-slopes]").is_hidden(), "there is no map, so there are no slopes"
    lines = page.evaluate("document.querySelector('[data-lines]').textContent")
    assert all(f"λ {i}" in lines for i in range(4)), "lines are of the eigenvalues where nothing has a ratio"

    gla = choose(page, "3")
    assert gla >= RATIOS | GATED
    assert "norm of the row" in page.locator(".notes").inner_text()

    dss = choose(page, "4")
    assert "half_plane" in dss
    assert "unit_disc" not in dss
    page.locator("[data-chart=eigenvalue]").scroll_into_view_if_needed()  # what is out of sight is drawn anew when it is seen
    becomes(
        page,
        "document.querySelector('[data-chart=eigenvalue]').data.some((t) => t.name.endsWith('no boundary here') && t.y[1] === 1)",
    )
    assert page.get_by_text("either side of the dashed line is legal").first.is_visible()


def test_eigenvalues_are_on_the_disc_where_their_numbers_say(page: Any, installation: Installation, run: int) -> None:
    with installation.client() as client:
        size, angle = (
            np.array(client.get(f"/api/runs/{run}/series/ssm/1/{kind}").json()["value"], float)
            for kind in ("eigenvalue", "phase")
        )
    page.goto(f"{installation.url}/runs/{run}?layer=1&eigenvalues=5")
    becomes(page, "document.querySelector('[data-chart=unit_disc]').dataset.drawn")
    eventually(page, lambda: page.evaluate("document.querySelector('[data-lines]').textContent.includes('λ 5')"), "a line of 5")
    for name, row in (("at first", 0), ("now", -1)):
        shown = trace(page, "unit_disc", name)
        np.testing.assert_allclose(shown["x"], size[row] * np.cos(angle[row]), atol=1e-6)
        np.testing.assert_allclose(shown["y"], np.abs(size[row] * np.sin(angle[row])), atol=1e-6)
    box = page.evaluate(
        """() => { const {xaxis, yaxis} = document.querySelector('[data-chart=unit_disc]')._fullLayout;
             return [xaxis._length / (xaxis.range[1] - xaxis.range[0]), yaxis._length / (yaxis.range[1] - yaxis.range[0])]; }"""
    )
    assert box[0] == pytest.approx(box[1], rel=0.01), "a circle is round"
    before = page.evaluate("document.querySelector('[data-chart=unit_disc]')._fullLayout.xaxis.range")
    page.goto(f"{installation.url}/runs/{run}?layer=1&from=20&to=40")
    becomes(page, "document.querySelector('[data-chart=unit_disc]').dataset.drawn")
    after = page.evaluate("document.querySelector('[data-chart=unit_disc]')._fullLayout.xaxis.range")
    assert after == pytest.approx(before, abs=0.5), "a range of steps is no range of this chart"


def test_the_line_of_an_eigenvalue_is_that_of_the_gate_it_shares(page: Any, installation: Installation, run: int) -> None:
    with installation.client() as client:
        gates = client.get(f"/api/runs/{run}/series/ssm/0/gate_mean?eigenvalues=17").json()["value"]
        assert gates == [row[4] for row in client.get(f"/api/runs/{run}/series/ssm/0/gate_mean").json()["value"]]
    page.goto(f"{installation.url}/runs/{run}?eigenvalues=17&top=0")
    becomes(page, "document.querySelector('[data-chart=gates]').dataset.drawn")
    eventually(page, lambda: "λ 17" in page.locator("[data-lines]").inner_text(), "a line of 17")
    name = page.evaluate(
        "document.querySelector('[data-chart=gates]').data.find((t) => t.name.startsWith('λ 17') && !t.name.includes(','))?.name"
    )
    np.testing.assert_allclose(trace(page, "gates", name)["y"], gates, rtol=1e-6)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_page(page: Any, installation: Installation, run: int, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/runs/{run}?layer=1")
    becomes(page, "document.querySelector('[data-chart=unit_disc]').dataset.drawn")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
