"""Saves charts of the web pages as files for papers. The server draws them, so a file has the same bytes from page and client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablessm_core.client.connection import Connection, join_numbers, without_none

FORMATS = ("pdf", "svg", "png", "html")
TIMEOUT_SECONDS = 120  # the first picture of a server takes seconds, because it loads matplotlib


class FigureFileMethods(Connection):
    """Methods of `Client` that save charts as files.

    Each takes `format` (pdf, svg, png or html) and the size: `size` is "column" (85 mm wide) or "page" (175 mm), otherwise
    `width` and `height` are in pixels. `scale` is the number of image pixels of a png per pixel. A picture becomes taller than
    requested if its legend needs the room.
    """

    def figure_file(
        self, run_id: int, chart: str, format: str = "pdf", *, size: str | None = None, width: int | None = None,
        height: int | None = None, scale: float | None = None, layer: int = 0, eigenvalues: Sequence[int] | None = None,
        from_step: int | None = None, to_step: int | None = None, y: str | None = None,
    ) -> bytes:  # fmt: skip
        """One chart of a run as a file. y: the scale of the y axis, "log" or "linear"; by default, the chart's own scale."""
        params = without_none(layer=layer, eigenvalues=join_numbers(eigenvalues), from_step=from_step, to_step=to_step, y=y)
        paper = {"size": size, "width": width, "height": height, "scale": scale}
        return self._figure_file(f"/api/runs/{run_id}/figures/{chart}", format, paper, params)

    def compare_figure_file(
        self, chart: str, format: str = "pdf", *, runs: Sequence[int] | None = None, sweep: int | None = None,
        q: str | None = None, size: str | None = None, width: int | None = None, height: int | None = None,
        scale: float | None = None, **view: Any,
    ) -> bytes:  # fmt: skip
        """One chart that compares several runs, as a file. chart: compare_loss, compare_max_ratio or compare_ranges.

        view: the query parameters of the comparison page: group_by, show ("runs" or "groups"), x ("step", "tokens", "seconds"),
        y ("log", "linear"), on, off, from and to.
        """
        params = without_none(runs=join_numbers(runs), sweep=sweep, q=q) | view
        paper = {"size": size, "width": width, "height": height, "scale": scale}
        return self._figure_file(f"/api/compare/figures/{chart}", format, paper, params)

    def sweep_figure_file(
        self, sweep_id: int, chart: str = "sweep_final_loss", format: str = "pdf", *, size: str | None = None,
        width: int | None = None, height: int | None = None, scale: float | None = None, rows: str | None = None,
        columns: str | None = None,
    ) -> bytes:  # fmt: skip
        """The chart of a sweep as a file. rows, columns: as in `sweep_grid`."""
        paper = {"size": size, "width": width, "height": height, "scale": scale}
        params = without_none(rows=rows, columns=columns)
        return self._figure_file(f"/api/sweeps/{sweep_id}/figures/{chart}", format, paper, params)

    def theory_figure_file(
        self, chart: str, format: str = "pdf", *, size: str | None = None, width: int | None = None, height: int | None = None,
        scale: float | None = None, **view: Any,
    ) -> bytes:  # fmt: skip
        """One chart of the theory page as a file. view: time, a, b, run, layer, step, as in `theory`."""
        paper = {"size": size, "width": width, "height": height, "scale": scale}
        return self._figure_file(f"/api/theory/figures/{chart}", format, paper, without_none(**view))

    def paper_figure_file(
        self, report: str, number: int, format: str = "pdf", *, size: str | None = None, width: int | None = None,
        height: int | None = None, scale: float | None = None,
    ) -> bytes:  # fmt: skip
        """One figure of a report about the paper as a file. number: its place in the report, from 0."""
        paper = {"size": size, "width": width, "height": height, "scale": scale}
        return self._figure_file(f"/api/paper/reports/{report}/figures/{number}", format, paper, {})

    def _figure_file(self, path: str, format: str, paper: Mapping[str, Any], params: Mapping[str, Any]) -> bytes:
        if format not in FORMATS:
            raise ValueError(f"format is {format!r}; allowed: {', '.join(FORMATS)}")
        asked = {**params, **without_none(**paper), "format": format}
        return self.request("GET", path, params=asked, timeout=TIMEOUT_SECONDS).content
