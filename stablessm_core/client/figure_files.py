"""Saves charts of the web pages as files for papers. The server returns HTML, and an installed Chromium renders SVG or PNG."""

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

from stablessm_core.client.connection import Connection, join_numbers, without_none

FORMATS = ("svg", "png", "html")
TIMEOUT_MS = 120_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
IMAGE = """async ([format, width, height, scale]) => {
  const figure = JSON.parse(document.getElementById("figure").textContent);
  return Plotly.toImage(figure, { format, width, height, scale });
}"""


class BrowserMissing(RuntimeError):
    """Drawing an SVG or PNG file needs a browser, but no browser is installed."""


class FigureFileMethods(Connection):
    """Methods of `Client` that save charts as files."""

    def figure_file(
        self, run_id: int, chart: str, format: str = "html", *, width: int = 900, height: int = 420, scale: float = 1.0,
        layer: int = 0, eigenvalues: Sequence[int] | None = None, from_step: int | None = None, to_step: int | None = None,
        y: str | None = None,
    ) -> bytes:  # fmt: skip
        """One chart of a run as an svg, png or html file of `width` x `height` pixels.

        scale: multiplies the resolution of a png. y: the scale of the y axis, "log" or "linear"; by default, the chart's own
        scale. Raises BrowserMissing for svg and png if Chromium or Playwright is not installed.
        """
        params = without_none(layer=layer, eigenvalues=join_numbers(eigenvalues), from_step=from_step, to_step=to_step, y=y)
        return self._figure_file(f"/api/runs/{run_id}/figures/{chart}", format, width, height, scale, params)

    def compare_figure_file(
        self, chart: str, format: str = "html", *, runs: Sequence[int] | None = None, sweep: int | None = None,
        q: str | None = None, width: int = 900, height: int = 420, scale: float = 1.0, **view: Any,
    ) -> bytes:  # fmt: skip
        """One chart that compares several runs, as a file. chart: compare_loss, compare_max_ratio or compare_ranges.

        view: the query parameters of the comparison page: group_by, show ("runs" or "groups"), x ("step", "tokens", "seconds"),
        y ("log", "linear"), on, off, from and to. Raises BrowserMissing in the same cases as figure_file.
        """
        params = without_none(runs=join_numbers(runs), sweep=sweep, q=q) | view
        return self._figure_file(f"/api/compare/figures/{chart}", format, width, height, scale, params)

    def sweep_figure_file(
        self, sweep_id: int, chart: str = "sweep_final_loss", format: str = "html", *, width: int = 900,
        height: int = 420, scale: float = 1.0, rows: str | None = None, columns: str | None = None,
    ) -> bytes:  # fmt: skip
        """The chart of a sweep as a file.

        rows, columns: as in `sweep_grid`. Raises BrowserMissing in the same cases as figure_file.
        """
        path = f"/api/sweeps/{sweep_id}/figures/{chart}"
        return self._figure_file(path, format, width, height, scale, without_none(rows=rows, columns=columns))

    def theory_figure_file(
        self, chart: str, format: str = "html", *, width: int = 900, height: int = 420, scale: float = 1.0, **view: Any
    ) -> bytes:
        """One chart of the theory page as a file.

        view: time, a, b, run, layer, step, as in `theory`. Raises BrowserMissing in the same cases as figure_file.
        """
        return self._figure_file(f"/api/theory/figures/{chart}", format, width, height, scale, without_none(**view))

    def _figure_file(
        self, path: str, format: str, width: int, height: int, scale: float, params: Mapping[str, Any]
    ) -> bytes:  # fmt: skip
        if format not in FORMATS:
            raise ValueError(f"format is {format!r}; allowed: {', '.join(FORMATS)}")
        size = {"format": "html", "width": width, "height": height}
        html = self.request("GET", path, params={**params, **size}).content
        return html if format == "html" else draw(html, format, width, height, scale)


def draw(html: bytes, format: str, width: int, height: int, scale: float) -> bytes:
    """The svg or png image of an HTML figure file. Raises BrowserMissing if Chromium or Playwright is not installed."""
    try:
        playwright = import_module("playwright.sync_api")
    except ImportError:
        raise BrowserMissing(
            f"drawing {format} needs a browser: `pip install playwright` and install Chromium or Chrome; html needs no browser"
        ) from None
    path = os.environ.get("CHROMIUM_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            raise BrowserMissing(
                f"drawing {format} needs a browser, but none could be started ({str(error).splitlines()[0]}): install Chromium "
                "or Chrome, set CHROMIUM_PATH to its path, or run `playwright install chromium`; html needs no browser"
            ) from None
        with browser:
            page = browser.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            with TemporaryDirectory() as folder:
                file = Path(folder) / "figure.html"
                file.write_bytes(html)
                page.goto(file.as_uri())
                url: str = page.evaluate(IMAGE, [format, width, height, scale])
    head, _, data = url.partition(",")
    return base64.b64decode(data) if head.endswith(";base64") else fixed_names(unquote(data)).encode()


def fixed_names(svg: str) -> str:
    """The SVG without the random part of plotly.js's element names, so that the same figure always gives the same file."""
    _, found, rest = svg.partition('id="defs-')
    return svg.replace(rest[:6], "figure") if found else svg
