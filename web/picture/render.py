"""Draws a figure (a Plotly figure with data) as a PDF, SVG or PNG file, without a browser.

The same figure and size always give the same bytes. Fonts are embedded: DejaVu Sans, which matplotlib brings, as TrueType in a
PDF and as outlines in an SVG. The legend is above the axes; if it needs more rows than fit, the picture becomes taller.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from web.picture.axes import dress
from web.picture.legend import add_legend, legend_height
from web.picture.sizes import Size
from web.picture.traces import draw_traces

matplotlib.rcdefaults()  # a user's own matplotlibrc must not change the files
matplotlib.rcParams.update(
    {
        "pdf.fonttype": 42,
        "svg.fonttype": "path",
        "svg.hashsalt": "stablessm",
        "text.parse_math": False,  # names of runs may contain $
        "font.family": ["DejaVu Sans"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "axes.unicode_minus": True,
        "path.simplify_threshold": 0.05,
        "agg.path.chunksize": 20_000,
    }
)
METADATA: dict[str, dict[str, Any]] = {  # no dates and versions, so that equal figures give equal files
    "pdf": {"Creator": "StableSSM", "Producer": "matplotlib", "CreationDate": None},
    "svg": {"Creator": "StableSSM", "Date": None},
    "png": {"Software": None},
}
AXES_SHARE = 0.7  # of the height stays for axes, ticks and titles, whatever the legend needs
DOTS_OF_HEAT = 300  # dots per inch of the cells of a heat map inside a PDF or SVG
_one_at_a_time = threading.Lock()  # matplotlib is not thread-safe, and a picture takes some 100 MB


def picture(drawn: Mapping[str, Any], format: str, size: Size) -> bytes:
    """The file of this figure. drawn: {"data", "layout"} as `web.binding.bind` returns it. format: pdf, svg or png."""
    with _one_at_a_time:
        figure = Figure(figsize=(size.width, size.height), dpi=size.dpi if format == "png" else 72, layout="constrained")
        FigureCanvasAgg(figure)
        try:
            return _file(figure, drawn, format, size)
        finally:
            figure.clear()  # a figure refers to itself; without this its arrays stay until the next collection


def _file(figure: Figure, drawn: Mapping[str, Any], format: str, size: Size) -> bytes:
    axes = figure.add_subplot()
    axes.tick_params(which="both", labelsize=size.font - 0.5, width=0.6, length=3, color="#8a93a3")
    entries = draw_traces(figure, axes, drawn, size)
    dress(axes, drawn["layout"], size)
    if entries:
        legend = add_legend(figure, entries, size)
        figure.set_figheight(max(size.height, legend_height(figure, legend) + AXES_SHARE * size.height))
    out = io.BytesIO()
    dpi = size.dpi if format == "png" else DOTS_OF_HEAT
    figure.savefig(out, format=format, dpi=dpi, metadata=METADATA[format])
    return out.getvalue()
