"""Responses with a chart: a Plotly figure as JSON, a self-contained HTML file, or a picture, in a size of the reader's choice.

The page, the client and the command line all ask for these responses, so their files have the same bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Response
from pydantic import BaseModel, Field

from server.errors import Invalid, NotFound, Unavailable
from server.series.encoding import dumps
from stablessm_core.spec.suggestions import did_you_mean
from stablessm_core.telemetry.nonfinite import json_safe
from web.charts import CHARTS
from web.picture.sizes import FORMATS, PIXELS_PER_INCH, Size, size_of
from web.standalone import html_file, sized

FileFormat = Literal["json", "html", "pdf", "svg", "png"]
FORMAT_MEANING = "`html`: a self-contained file with the numbers; `pdf`, `svg`, `png`: a picture."
SIZE_MEANING = "Size for a paper: `column` is 85 mm wide, `page` 175 mm; without it, `width` and `height` in pixels."
SCALE_MEANING = "Image pixels of a PNG per pixel; by default 2, or 600 dots per inch with `size`."
Pixels = Annotated[int | None, Query(ge=100, le=4000)]
Scale = Annotated[Literal["log", "linear"] | None, Query(description="Scale of the vertical axis, by default the chart's own.")]
AT_ONCE = 8  # pictures that are drawn or wait; each of them occupies one of the threads that answer requests
_places = threading.BoundedSemaphore(AT_ONCE)


class Paper(BaseModel):
    """Size and format of a figure."""

    width: Annotated[int, Field(ge=100, le=4000)] | None = None
    height: Annotated[int, Field(ge=100, le=4000)] | None = None
    size: Literal["column", "page"] | None = Field(None, description=SIZE_MEANING)
    scale: float | None = Field(None, ge=0.5, le=8, description=SCALE_MEANING)
    format: FileFormat = Field("json", description=FORMAT_MEANING)


def requested_paper(
    width: Pixels = None,
    height: Pixels = None,
    size: Annotated[Literal["column", "page"] | None, Query(description=SIZE_MEANING)] = None,
    scale: Annotated[float | None, Query(ge=0.5, le=8, description=SCALE_MEANING)] = None,
    format: Annotated[FileFormat, Query(description=FORMAT_MEANING)] = "json",
) -> Paper:
    """The parameters of `Paper`, for endpoints that also have other parameters."""
    return Paper(width=width, height=height, size=size, scale=scale, format=format)


PaperDep = Annotated[Paper, Depends(requested_paper)]


def check_chart(chart: str, allowed: Iterable[str], of: str) -> str:
    """Return `chart` unchanged. Raises NotFound if `allowed` does not contain the chart."""
    allowed = list(allowed)
    if chart not in allowed:
        raise NotFound(
            f"{of} has no chart {chart[:80]!r}{did_you_mean(chart, allowed)}", field="chart", allowed=", ".join(allowed)
        )
    return chart


def figure_answer(drawn: dict[str, Any], chart: str, *, of: str, name: str, paper: Paper) -> Response:
    """The response with this figure. of: subject of the chart, for the file's title. name: beginning of the file's name.

    Raises Invalid for a size that is too large, Unavailable if too many pictures are requested at once."""
    size, format = _size(paper), paper.format
    if format != "json" or paper.width or paper.height or paper.size:
        drawn = sized(drawn, round(size.width * PIXELS_PER_INCH), round(size.height * PIXELS_PER_INCH))
    headers = {"Content-Disposition": f'attachment; filename="{name}-{chart}.{format}"'}
    if format in FORMATS:
        return Response(_picture(drawn, format, size), media_type=FORMATS[format], headers=headers)
    text = dumps(json_safe(drawn))
    if format == "json":
        return Response(text, media_type="application/json")
    return Response(html_file(text.decode(), f"{of}: {CHARTS[chart].title}"), media_type="text/html", headers=headers)


def _size(paper: Paper) -> Size:
    try:
        return size_of(paper.size, paper.width, paper.height, paper.scale, png=paper.format == "png")
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed: ")
        raise Invalid(given, field=given.partition(" ")[0], allowed=allowed) from None


def _picture(drawn: dict[str, Any], format: str, size: Size) -> bytes:
    if not _places.acquire(blocking=False):
        raise Unavailable(f"the server draws {AT_ONCE} pictures already; try again", headers={"Retry-After": "2"})
    try:
        from web.picture.render import picture  # here, because matplotlib takes a second and most servers draw no picture

        return picture(drawn, format, size)
    finally:
        _places.release()
