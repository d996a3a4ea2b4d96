"""A figure as one HTML file that contains the figure's numbers and plotly.js."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>body {{ margin: 0; background: #fff }}</style>
<script>{plotly}</script></head>
<body><div id="chart"></div><script type="application/json" id="figure">{figure}</script>
<script>
const {{ data, layout }} = JSON.parse(document.getElementById("figure").textContent);
Plotly.newPlot("chart", data, layout, {{ displaylogo: false, showSendToCloud: false }});
</script></body></html>
"""


def sized(figure: Mapping[str, Any], width: int, height: int) -> dict[str, Any]:
    """The figure at a size in pixels, with every eigenvalue in the legend and with fixed trace ids."""
    layout = {**figure["layout"], "width": width, "height": height, "autosize": False}
    data = [dict(trace, uid=f"trace{i:04d}") for i, trace in enumerate(figure["data"])]
    for trace in data:
        if trace.get("meta", {}).get("each") == "eigenvalue":
            trace["showlegend"] = True
    return {"data": data, "layout": layout}


def html_file(figure_json: str, title: str) -> str:
    """The text of the HTML file, from the figure's JSON."""
    return PAGE.format(title=html.escape(title), plotly=_plotly(), figure=figure_json.replace("</", "<\\/"))


@cache
def _plotly() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
