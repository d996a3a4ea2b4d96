"""Pictures of figures: the format is what the ending says, fonts are embedded, the legend is complete, nothing is lost."""

from __future__ import annotations

import html
import io
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.web import drawn
from web.picture.axes import log_label
from web.picture.render import picture
from web.picture.sizes import size_of
from web.picture.traces import DASHES

COLUMN, PAGE = size_of("column", None, None, 2), size_of("page", None, None, 2)
MM = 72 / 25.4
CHARTS = (drawn.loss_of, drawn.bands, drawn.heat_map, drawn.eigenvalues, drawn.unit_disc, drawn.ranges, drawn.swept)
pytestmark = pytest.mark.slow  # matplotlib takes seconds to import and to draw


def box(pdf: bytes) -> tuple[float, float]:
    """Width and height of the page in points."""
    found = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", pdf)
    assert found
    return float(found[1]), float(found[2])


def words(svg: bytes) -> list[str]:
    """The texts of an SVG; matplotlib writes each as a comment above its outlines."""
    return [html.unescape(text.strip()) for text in re.findall(r"<!-- (.*?) -->", svg.decode())]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.__name__)
def test_every_kind_of_chart_is_a_file_of_its_format_and_the_same_bytes_again(chart: Callable[[], dict[str, Any]]) -> None:
    figure = chart()
    pdf, svg, png = (picture(figure, format, COLUMN) for format in ("pdf", "svg", "png"))
    assert pdf.startswith(b"%PDF-")
    assert svg.startswith(b"<?xml")
    assert b"<svg" in svg
    assert png.startswith(b"\x89PNG")
    assert box(pdf)[0] == pytest.approx(85 * MM, abs=0.01)
    assert struct.unpack(">I", png[16:20])[0] == int(85 / 25.4 * 192)
    assert [picture(chart(), format, COLUMN) for format in ("pdf", "svg", "png")] == [pdf, svg, png]


def test_the_fonts_of_a_pdf_are_embedded_as_truetype_and_it_has_no_date() -> None:
    pdf = picture(drawn.loss_of(3), "pdf", PAGE)
    assert pdf.count(b"/FontFile2") >= 1
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    assert box(pdf)[0] == pytest.approx(175 * MM, abs=0.01)


@pytest.mark.parametrize("size", [COLUMN, PAGE], ids=["column", "page"])
def test_the_whole_legend_of_twelve_runs_with_long_names_fits(size: Any) -> None:
    name = "reparameterization {map}, learning rate 0.003, seed {i}, a name $x_1$ that <somebody> chose & kept for years"
    figure = drawn.loss_of(12, name)
    svg = picture(figure, "svg", size)
    shown = " ".join(words(svg))
    for i in range(12):
        assert name.format(map=drawn.MAPS[i % 4], i=i) in shown
    width, height = (float(part) for part in re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())  # type: ignore[union-attr]
    assert width == pytest.approx(size.width * 72, abs=0.01)
    assert height > size.height * 72, "the picture becomes taller"
    png = pixels(picture(figure, "png", size))
    for edge in (png[0], png[-1], png[:, 0], png[:, -1]):
        assert (edge == 255).all(), "nothing is cut off at an edge"


def test_colours_and_dashes_are_those_of_the_figure() -> None:
    figure = drawn.loss_of(4)
    svg = picture(figure, "svg", PAGE).decode()
    for trace in figure["data"][:4]:
        dash = trace["line"]["dash"]
        found = re.findall(rf"<path [^>]*style=\"fill: none; ([^\"]*)stroke: {trace['line']['color']}[^\"]*\"", svg)
        assert found, trace["name"]
        assert all(("stroke-dasharray" in style) == (dash in DASHES) for style in found), (trace["name"], found)


def test_marks_of_values_that_the_axis_cannot_show_are_drawn_and_named() -> None:
    assert "not finite" in words(picture(drawn.loss_of(30), "svg", PAGE)), "even if there are too many lines for a legend"
    named = words(picture(drawn.eigenvalues(), "svg", PAGE))
    assert {"NaN / Inf", "0 or less", "critical alert", "range of all", "median", *(f"λ {i}" for i in range(8))} <= set(named)
    assert {"NaN", "+Inf", "|grad|/|w|"} <= set(words(picture(drawn.heat_map(), "svg", PAGE)))
    assert {"relu (1 run)", "direct (3 runs)"} <= set(words(picture(drawn.ranges(), "svg", PAGE)))
    assert {"not finite", "final loss", "learning rate"} <= set(words(picture(drawn.swept(), "svg", PAGE)))


def test_a_run_without_any_finite_number_is_in_the_legend_and_a_chart_without_data_is_a_file() -> None:
    figure = drawn.loss_of(1)
    lost = {**figure["data"][0], "name": "all NaN", "y": [None] * len(drawn.STEPS) * 2}
    assert "all NaN" in words(picture({**figure, "data": [lost, *figure["data"][1:]]}, "svg", PAGE))
    assert picture({**figure, "data": []}, "pdf", PAGE).startswith(b"%PDF")


def test_characters_that_the_font_lacks_are_written_as_code_points() -> None:
    figure = drawn.loss_of(2, "模 {i}\nλ\u0007")
    assert {f"(U+6A21) {i} λ " for i in range(2)} <= {f"{text} " for text in words(picture(figure, "svg", PAGE))}


def test_pictures_drawn_at_once_by_several_threads_are_those_drawn_one_by_one() -> None:
    figures = [drawn.loss_of(2, "{map} {i}"), drawn.swept()]
    alone = [picture(figure, "svg", COLUMN) for figure in figures]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda i: picture(figures[i % 2], "svg", COLUMN), range(6)))
    assert together == alone * 3


def test_tick_labels_of_logarithmic_axes_are_readable() -> None:
    assert [log_label(v, powers=False) for v in (1e-5, 2e-5, 0.001, 0.02, 1, 500, 1000, 1e6)] == [
        "10⁻⁵", "2·10⁻⁵", "0.001", "0.02", "1", "500", "1000", "10⁶",
    ]  # fmt: skip
    assert [log_label(v, powers=True) for v in (0.01, 1, 10)] == ["10⁻²", "10⁰", "10¹"]
    figure = drawn.loss_of(1)
    flat = {**figure["data"][0], "x": [1, 2, 3], "y": [0.31, 0.33, 0.36]}
    labels = words(picture({**figure, "data": [flat]}, "svg", COLUMN))
    assert sum(re.fullmatch(r"0\.3\d*", text) is not None for text in labels) >= 3, labels


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("column", 640, None, None), "width is 640, but size=column has its own width; allowed: width or size"),
        ((None, 4000, 4000, 8), "scale is 8, which gives 1024 million pixels; allowed: at most 1.22 at this size (24 million)"),
    ],
)
def test_a_size_that_contradicts_itself_or_fills_the_memory_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        size_of(*given)


def test_the_server_imports_matplotlib_only_for_a_picture() -> None:
    code = "import sys, server.http.app; print([name for name in sys.modules if name.split('.')[0] == 'matplotlib'])"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout == "[]\n"


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
