"""A chart as an answer: its Plotly figure as JSON, or as an HTML file that needs nothing else; at a size in pixels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import Query, Response
from pydantic import BaseModel, Field

from server.errors import NotFound
from server.series.encoding import dumps
from stablessm_core.nonfinite import json_safe
from web.figures import CHARTS
from web.standalone import html_file, sized

WIDTH, HEIGHT = 900, 420
Pixels = Annotated[int | None, Query(ge=100, le=4000)]
Format = Annotated[Literal["json", "html"], Query(description="html: a file that needs nothing else.")]
Scale = Annotated[Literal["log", "linear"] | None, Query(description="Of the vertical axis; the chart's own without.")]


class Paper(BaseModel):
    """How large a figure is wanted, and as what."""

    width: Annotated[int, Field(ge=100, le=4000)] | None = None
    height: Annotated[int, Field(ge=100, le=4000)] | None = None
    format: Literal["json", "html"] = Field("json", description="html: a file that needs nothing else.")


def known_chart(chart: str, allowed: Iterable[str], of: str) -> str:
    """Raises NotFound for a chart that is none of these."""
    allowed = list(allowed)
    if chart not in allowed:
        raise NotFound(f"there is no chart {chart[:80]!r} of {of}", field="chart", allowed=", ".join(allowed))
    return chart


def figure_answer(
    drawn: dict[str, Any], chart: str, *, of: str, name: str, format: str, width: int | None, height: int | None
) -> Response:
    """`of` says in the title of the file what is drawn, `name` is what the file is called."""
    if width or height or format == "html":
        drawn = sized(drawn, width or WIDTH, height or HEIGHT)
    text = dumps(json_safe(drawn))
    if format == "json":
        return Response(text, media_type="application/json")
    headers = {"Content-Disposition": f'attachment; filename="{name}-{chart}.html"'}
    return Response(html_file(text.decode(), f"{of}: {CHARTS[chart].title}"), media_type="text/html", headers=headers)
