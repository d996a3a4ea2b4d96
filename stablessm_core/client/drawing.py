"""The pages' charts as files for papers: HTML from the server; SVG and PNG drawn by an installed Chromium, as a page would."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from stablessm_core.client.connection import Connection, given

FORMATS = ("svg", "png", "html")
PATIENCE_MS = 120_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
IMAGE = """async ([format, width, height, scale]) => {
  const figure = JSON.parse(document.getElementById("figure").textContent);
  return Plotly.toImage(figure, { format, width, height, scale });
}"""


class BrowserMissing(RuntimeError):
    """SVG and PNG are asked for, and there is no browser to draw them."""


def figure_file(
    self: Connection, run_id: int, chart: str, format: str = "html", *, width: int = 900, height: int = 420, scale: float = 1.0,
    layer: int = 0, eigenvalues: Sequence[int] | None = None, from_step: int | None = None, to_step: int | None = None,
    y: str | None = None,
) -> bytes:  # fmt: skip
    """One chart of a run as a file: svg, png or html, `width` x `height` pixels; a png has `scale` times as many.

    y: "log" or "linear", where it is not to be the chart's own. Raises BrowserMissing for svg and png where no Chromium or
    Playwright is installed.
    """
    chosen = None if eigenvalues is None else ",".join(map(str, eigenvalues))
    asked = given(layer=layer, eigenvalues=chosen, from_step=from_step, to_step=to_step, y=y)
    return _file(self, f"/api/runs/{run_id}/figures/{chart}", format, width, height, scale, asked)


def compare_figure_file(
    self: Connection, chart: str, format: str = "html", *, runs: Sequence[int] | None = None, sweep: int | None = None,
    q: str | None = None, width: int = 900, height: int = 420, scale: float = 1.0, **view: Any,
) -> bytes:  # fmt: skip
    """One chart of the comparison of several runs as a file: compare_loss, compare_max_ratio, compare_ranges.

    view: group_by, show ("runs" or "groups"), x ("step", "tokens", "seconds"), y ("log", "linear"), on, off, from and to, as in
    the page's address. Raises BrowserMissing as figure_file does.
    """
    numbers = None if runs is None else ",".join(map(str, runs))
    return _file(
        self, f"/api/compare/figures/{chart}", format, width, height, scale, given(runs=numbers, sweep=sweep, q=q) | view
    )


def sweep_figure_file(
    self: Connection, sweep_id: int, chart: str = "sweep_final_loss", format: str = "html", *, width: int = 900,
    height: int = 420, scale: float = 1.0, rows: str | None = None, columns: str | None = None,
) -> bytes:  # fmt: skip
    """The chart of a sweep as a file; `rows` and `columns` as of `sweep_grid`. Raises BrowserMissing as figure_file does."""
    path = f"/api/sweeps/{sweep_id}/figures/{chart}"
    return _file(self, path, format, width, height, scale, given(rows=rows, columns=columns))


def theory_figure_file(
    self: Connection, chart: str, format: str = "html", *, width: int = 900, height: int = 420, scale: float = 1.0, **asked: Any
) -> bytes:
    """One chart of the theory page as a file; `asked`: time, a, b, run, layer, step, as of `theory`. Raises BrowserMissing."""
    return _file(self, f"/api/theory/figures/{chart}", format, width, height, scale, given(**asked))


def _file(
    self: Connection, path: str, format: str, width: int, height: int, scale: float, asked: Mapping[str, Any]
) -> bytes:  # fmt: skip
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; allowed are {', '.join(FORMATS)}")
    params = {**asked, "format": "html", "width": width, "height": height}
    html = self.request("GET", path, params=params).content
    return html if format == "html" else draw(html, format, width, height, scale)


def draw(html: bytes, format: str, width: int, height: int, scale: float) -> bytes:
    """The image of such a file. Raises BrowserMissing."""
    try:
        playwright = import_module("playwright.sync_api")
    except ImportError:
        raise BrowserMissing(
            f"{format} is drawn by a browser: `pip install playwright` and an installed Chromium or Chrome are needed; "
            "html needs neither"
        ) from None
    path = os.environ.get("CHROMIUM_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            raise BrowserMissing(
                f"{format} is drawn by a browser, and none could be started ({str(error).splitlines()[0]}): install Chromium or "
                "Chrome, name it by CHROMIUM_PATH, or run `playwright install chromium`; html needs none"
            ) from None
        with browser:
            page = browser.new_page()
            page.set_default_timeout(PATIENCE_MS)
            with TemporaryDirectory() as folder:
                file = Path(folder) / "figure.html"
                file.write_bytes(html)
                page.goto(file.as_uri())
                url: str = page.evaluate(IMAGE, [format, width, height, scale])
    head, _, data = url.partition(",")
    return base64.b64decode(data) if head.endswith(";base64") else fixed_names(unquote(data)).encode()


def fixed_names(svg: str) -> str:
    """The SVG with plotly.js's random part of its element names replaced, so that the same figure is the same file."""
    _, found, rest = svg.partition('id="defs-')
    return svg.replace(rest[:6], "figure") if found else svg
