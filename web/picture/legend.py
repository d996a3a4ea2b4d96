"""The legend of a picture: every name is complete, in as many rows as the names need."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from web.picture.sizes import Size

Entry = tuple[str, Any]  # name, and the drawn line, area or mark
HANDLE, GAP, BETWEEN = 3.4, 0.6, 1.4  # lengths of the sample, to its name, and to the next column, in font sizes


def add_legend(figure: Figure, entries: list[Entry], size: Size) -> Any:
    """Put the legend above the axes, in as many columns as fit. A name that is wider than the picture is broken into lines."""
    font = size.font - 0.5
    em = font / 72
    room = size.width - 0.1
    names = [_broken(figure, name, font, room - (HANDLE + GAP + 1) * em) for name, _ in entries]
    widths = [max(_width(figure, line, font) for line in name.split("\n")) + (HANDLE + GAP + BETWEEN) * em for name in names]
    columns = next((n for n in range(len(names), 1, -1) if _needed(widths, n) <= room), 1)
    return figure.legend(
        [handle for _, handle in entries], names, loc="outside upper left", ncols=columns, fontsize=font, frameon=False,
        handlelength=HANDLE, handletextpad=GAP, columnspacing=BETWEEN, labelspacing=0.35, borderpad=0.1, borderaxespad=0.2,
    )  # fmt: skip


def legend_height(figure: Figure, legend: Any) -> float:
    """Height of the legend in inches."""
    return float(legend.get_window_extent(figure.canvas.get_renderer()).height) / figure.dpi  # type: ignore[attr-defined]


def _needed(widths: list[float], columns: int) -> float:
    """Width of the legend with so many columns, which are filled one after another."""
    full, rest = divmod(len(widths), columns)
    at, needed = 0, 0.0
    for column in range(columns):
        rows = full + (column < rest)
        needed += max(widths[at : at + rows], default=0.0)
        at += rows
    return needed


def _broken(figure: Figure, name: str, font: float, room: float) -> str:
    lines = []
    while _width(figure, name, font) > room and len(name) > 1:
        fits = next(n for n in range(len(name) - 1, 0, -1) if n == 1 or _width(figure, name[:n], font) <= room)
        space = name.rfind(" ", 1, fits + 1)
        at = space if space > fits // 2 else fits
        lines.append(name[:at])
        name = name[at:].lstrip()
    return "\n".join([*lines, name])


def _width(figure: Figure, text: str, font: float) -> float:
    """Width of a line in inches."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    width, _, _ = renderer.get_text_width_height_descent(text, FontProperties(size=font), ismath=False)
    return float(width) / figure.dpi
