"""Every chart of every page is available with its numbers, at any size, as JSON and as a file. Errors name what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from server.cli.figures import figure
from server.database.connection import Database
from server.http.figure_files import AT_ONCE, _places
from stablessm_core.telemetry.typed_arrays import decode
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claim
from web.charts import CHARTS
from web.compared import _outline

pytestmark = pytest.mark.slow

PAGES = {"run": "/api/runs/1", "layer": "/api/runs/1", "theory": "/api/theory", "compare": "/api/compare"}
FILES = [name for name, chart in CHARTS.items() if chart.scope in PAGES]  # the charts of an autopsy exist only on its page


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        grid = {"model.reparameterization.name": ["best", "exp"], "optimizer.lr": [0.001, 0.01]}
        client.post("/api/sweeps", json={"base": BODY | {"train": {"steps": 100}}, "grid": grid})
        for seed in range(3):  # the fourth run has not begun
            Recording(sqlite, claim(sqlite), width=4, seed=seed, weird=seed == 1).write(30 + seed)
        yield client


def ask(client: httpx.Client, chart: str, **params: Any) -> httpx.Response:
    base = "/api/sweeps/1" if chart.startswith("sweep") else PAGES[CHARTS[chart].scope]
    if base == "/api/compare" and "runs" not in params:
        params["sweep"] = 1
    return client.get(f"{base}/figures/{chart}", params=params)


def test_every_chart_is_available_as_json_and_as_a_file_at_a_requested_size(client: httpx.Client) -> None:
    for chart in FILES:
        answer = ask(client, chart, width=640, height=360)
        assert answer.status_code == 200, (chart, answer.text[:300])
        figure = answer.json()
        assert figure["data"], chart
        assert (figure["layout"]["width"], figure["layout"]["height"]) == (640, 360)
        file = ask(client, chart, width=640, height=360, format="html")
        assert file.headers["Content-Disposition"].endswith(f'{chart}.html"')
        written = file.text.partition('id="figure">')[2].partition("</script>")[0]
        assert json.loads(written.replace("<\\/", "</")) == figure, "the file must contain the same figure as the JSON"


def test_every_chart_is_available_as_a_picture_with_the_ending_of_its_format(client: httpx.Client) -> None:
    for chart in FILES:
        file = ask(client, chart, size="column", format="pdf")
        assert file.status_code == 200, (chart, file.text[:300])
        assert file.headers["Content-Type"] == "application/pdf"
        assert file.headers["Content-Disposition"].endswith(f'{chart}.pdf"')
        assert file.content.startswith(b"%PDF-")
    svg, png = (ask(client, "loss", width=640, height=360, format=format) for format in ("svg", "png"))
    assert svg.headers["Content-Type"] == "image/svg+xml"
    assert b"<svg" in svg.content
    assert png.headers["Content-Type"] == "image/png"
    assert [int.from_bytes(png.content[at : at + 4], "big") for at in (16, 20)] == [1280, 720]


@pytest.mark.parametrize(
    ("asked", "field", "allowed"),
    [
        ({"format": "jpg"}, "format", "json, html, pdf, svg, png"),
        ({"size": "poster"}, "size", "column, page"),
        ({"size": "column", "width": 640}, "width", "width or size"),
        ({"format": "png", "width": 4000, "height": 4000, "scale": 8}, "scale", "at most 1.22 at this size (24 million)"),
    ],
)
def test_an_unknown_format_and_an_impossible_size_are_refused(
    client: httpx.Client, asked: dict[str, Any], field: str, allowed: str
) -> None:
    for chart in ("loss", "compare_loss", "sweep_final_loss", "theory_map"):
        error = error_of(ask(client, chart, **asked), 422)
        assert (error["field"], error["allowed"]) == (field, allowed), (chart, error)


def test_more_pictures_at_once_than_the_server_draws_are_refused_and_it_draws_again_later(client: httpx.Client) -> None:
    for _ in range(AT_ONCE):
        assert _places.acquire(blocking=False)
    try:
        refused = ask(client, "loss", format="svg")
        assert "try again" in error_of(refused, 503)["message"]
        assert refused.headers["Retry-After"] == "2"
        assert ask(client, "loss", format="html").status_code == 200
    finally:
        for _ in range(AT_ONCE):
            _places.release()
    assert ask(client, "loss", format="svg").status_code == 200


@pytest.mark.parametrize("chart", ["compare_loss", "sweep_final_loss", "theory_map", "loss"])
def test_a_chart_of_another_page_is_refused_with_the_allowed_charts(client: httpx.Client, chart: str) -> None:
    for path in (
        "/api/compare/figures/{}?sweep=1",
        "/api/sweeps/1/figures/{}",
        "/api/theory/figures/{}",
        "/api/runs/1/figures/{}",
    ):
        answer = client.get(path.format(chart))
        if answer.status_code != 200:
            error = error_of(answer, 404)
            assert error["field"] == "chart"
            assert chart not in error["allowed"].split(", ")
    assert error_of(client.get("/api/compare/figures/compare_loss?sweep=1&width=20"), 422)["field"] == "width"


def test_comparison_lines_keep_every_number_and_mark_where_a_run_is_lost(client: httpx.Client) -> None:
    *lines, lost = ask(client, "compare_loss", runs="1,2", y="linear").json()["data"]
    for run, line in zip((1, 2), lines, strict=True):
        text = client.get(f"/api/runs/{run}/series/train/loss").json()["value"]
        truth = np.array([float(v) for v in text])
        drawn = decode(line["y"]).reshape(-1, 2)
        for end in drawn.T:
            np.testing.assert_allclose(end, np.where(np.isfinite(truth), truth, np.nan), rtol=1e-6)
        crosses = [words for words in lost["text"] if words.startswith(line["name"])]
        assert len(crosses) == (not np.isfinite(truth).all())
    assert len(ask(client, "compare_loss", runs="1,2", off="2").json()["data"]) == 2
    for line in ask(client, "compare_loss", runs="1,2", y="log").json()["data"][:2]:
        assert np.nanmin(decode(line["y"])) > 0


def test_figure_options_select_the_axes_groups_and_lines(client: httpx.Client) -> None:
    steps, tokens = (ask(client, "compare_loss", runs="1,2", x=x).json() for x in ("step", "tokens"))
    assert ask(client, "compare_loss", runs="1,2", **{"from": 5, "to": 10}).json()["layout"]["xaxis"]["range"] == [5, 10]
    (end, *_) = client.get("/api/compare?runs=1,2").json()["ends"]
    assert set(decode(tokens["data"][0]["x"]) / decode(steps["data"][0]["x"])) == {end["tokens_per_step"]}
    bands = ask(client, "compare_loss", show="groups").json()["data"]
    assert [trace["name"] for trace in bands if "name" in trace] == ["best (2)", "exp (1)", "not finite"], (
        "runs without records must not count, and only requested runs have lines"
    )
    assert ask(client, "compare_loss", show="groups", on="1").json()["data"][4]["name"].endswith("0.001")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["7,x", "loss"], "sweep:3"),
        (["theory", "theory_map", "--y", "log"], "--layer"),
        (["1", "loss", "--show", "groups"], "--y"),
        (["1", "loss", "-o", "loss.jpg"], "allowed: .pdf, .svg, .png, .html"),
        (["1", "loss", "-o", "loss.csv"], "`stablessm export` writes the numbers"),
        (["1", "loss", "-o", "loss"], "has no ending that states the format"),
        (["1", "loss", "-o", "loss.pdf", "--format", "svg"], "differ"),
    ],
)
def test_the_figure_command_names_the_allowed_subjects_options_and_endings(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(figure, arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_band_ends_where_one_of_its_edges_is_nan() -> None:
    nan = float("nan")
    x, y = _outline(np.arange(5.0), np.array([1.0, 1, 1, 1, 1]), np.array([2.0, 3, nan, nan, 4]))
    np.testing.assert_array_equal(x, [0, 1, 1, 0, nan, 4, 4, nan])
    np.testing.assert_array_equal(y, [2, 3, 1, 1, nan, 4, 1, nan])
