"""Responses with a chart: a Plotly figure as JSON or as a self-contained HTML file, optionally with a size in pixels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import Query, Response
from pydantic import BaseModel, Field

from server.errors import NotFound
from server.series.encoding import dumps
from stablessm_core.spec.suggestions import did_you_mean
from stablessm_core.telemetry.nonfinite import json_safe
from web.charts import CHARTS
from web.standalone import html_file, sized

WIDTH, HEIGHT = 900, 420
Pixels = Annotated[int | None, Query(ge=100, le=4000)]
Format = Annotated[Literal["json", "html"], Query(description="`html`: a self-contained file.")]
Scale = Annotated[Literal["log", "linear"] | None, Query(description="Scale of the vertical axis, by default the chart's own.")]


class Paper(BaseModel):
    """Size and format of a figure."""

    width: Annotated[int, Field(ge=100, le=4000)] | None = None
    height: Annotated[int, Field(ge=100, le=4000)] | None = None
    format: Literal["json", "html"] = Field("json", description="`html`: a self-contained file.")


def check_chart(chart: str, allowed: Iterable[str], of: str) -> str:
    """Return `chart` unchanged. Raises NotFound if `allowed` does not contain the chart."""
    allowed = list(allowed)
    if chart not in allowed:
        raise NotFound(
            f"{of} has no chart {chart[:80]!r}{did_you_mean(chart, allowed)}", field="chart", allowed=", ".join(allowed)
        )
    return chart


def figure_answer(
    drawn: dict[str, Any], chart: str, *, of: str, name: str, format: str, width: int | None, height: int | None
) -> Response:
    """The response with this figure. of: subject of the chart, for the file's title. name: beginning of the file's name."""
    if width or height or format == "html":
        drawn = sized(drawn, width or WIDTH, height or HEIGHT)
    text = dumps(json_safe(drawn))
    if format == "json":
        return Response(text, media_type="application/json")
    headers = {"Content-Disposition": f'attachment; filename="{name}-{chart}.html"'}
    return Response(html_file(text.decode(), f"{of}: {CHARTS[chart].title}"), media_type="text/html", headers=headers)
