"""The values that a run's page shows, for runs of any length, as a binary response with the scalars, a layer, or both."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from server.http.api.deps import DatabaseDep
from server.http.api.records import Record, find_record, rows_of
from server.http.api.series import Eigenvalues, Step, check_stretch, find_layout, parse_eigenvalues
from server.http.schemas.runs import RunId
from server.series.encoding import dumps
from server.series.layout import SeriesColumns
from server.series.overview import MAX_LINES, Overview, OverviewOptions, read_overview
from stablessm_core.telemetry.series import LAYER_GROUPS, MEANINGS, layer_series

router = APIRouter(prefix="/api/runs", tags=["series"])

MEDIA = "application/vnd.stablessm.overview"
HEAT = "grad_over_weight"
EXAMPLE = """uint32 length of the head | head, JSON | arrays, each at a multiple of 8 bytes after the head
{"run_id": 1, "seq": 18, "part": "scalars", "layer": null, "record": null, "lines": [],
 "series": {"train/loss": {"width": 1, "last_step": 412, "arrays": {"step": ["f8", 0, 412], "value": ["f4", 3296, 412]}}}}
"""
DTYPES = {"float32": "f4", "float64": "f8", "int64": "f8", "int32": "i4", "int8": "i1", "uint8": "u1"}


@router.get(
    "/{run_id}/overview",
    response_class=Response,
    responses={200: {"content": {MEDIA: {"schema": {"type": "string", "format": "binary"}, "example": EXAMPLE}}}},
)
def overview(
    run_id: RunId,
    database: DatabaseDep,
    request: Request,
    part: Annotated[
        Literal["scalars", "layer", "all"], Query(description="The run's scalars, the series of one layer, or both.")
    ] = "scalars",
    layer: Record = "0",
    points: Annotated[int, Query(ge=10, le=4000, description="Maximum number of buckets.")] = 1000,
    from_step: Step = None,
    to_step: Step = None,
    eigenvalues: Eigenvalues = None,
    top: Annotated[
        int,
        Query(
            ge=0, le=MAX_LINES, description="Number of eigenvalues to draw as lines: those with the largest gradient over weight."
        ),
    ] = 8,
    reasons: Annotated[
        bool,
        Query(
            description="Add lines for the first eigenvalue outside the boundary, the nearest to it, and the one that moved most."
        ),
    ] = False,
    heat: Annotated[str, Query(max_length=200, description="Kinds of series to show as heat maps; empty for none.")] = HEAT,
    rows: Annotated[
        Literal["index", "end", "start"],
        Query(description="Order of a heat map's rows: by number, or by decay time at the end or the start."),
    ] = "index",
    each: Annotated[
        bool, Query(description="Return buckets of every eigenvalue, not a summary. Wide layers have fewer buckets.")
    ] = False,
) -> Response:
    """Everything that a page shows for a range of steps: the scalars (raw or in buckets), the bands, medians, lines and heat
    map of a layer, and the non-finite values. The response is binary: a JSON head, then the arrays. The head describes each
    array as [dtype, offset, length]."""
    check_stretch(from_step, to_step)
    with database.read() as session:
        layout = find_layout(session, run_id)
        of_layer = part != "scalars"
        record = find_record(session, layout, layer) if of_layer else None
        wanted = [row for row in layout.series.values() if part != "layer" and _is_on_every_page(row)]
        wanted += rows_of(layout, layer) if of_layer else []
        weight = layout.series.get(layer_series(layer, "weight")) if of_layer else None
        width = weight.width if weight else max((row.width for row in wanted), default=1)
        chosen = parse_eigenvalues(eigenvalues, width) if eigenvalues else []
        options = OverviewOptions(
            points=points, from_step=from_step, to_step=to_step, lines=chosen, top=top, by=layer_series(layer, HEAT),
            reasons=reasons, heat=[layer_series(layer, kind) for kind in heat.split(",")],
            order=None if rows == "index" else rows, each=each,
        )  # fmt: skip
        found, lines = read_overview(session, layout, wanted, options)
    source = {"layer": record.layer if record else None, "record": record.id if record else None}
    head = {"run_id": run_id, "seq": layout.seq, "part": part, **source, "lines": lines}
    body = pack(head, found)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(body, media_type=MEDIA, headers={"Vary": "Accept-Encoding"})
    headers = {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
    return Response(gzip.compress(body, 1), media_type=MEDIA, headers=headers)


def _is_on_every_page(row: SeriesColumns) -> bool:
    """True for a scalar that a chart of every run's page may show. The page reads each free metric when its chart is in view."""
    return row.name in MEANINGS if row.scattered else not row.group.startswith(LAYER_GROUPS)


def pack(head: dict[str, Any], found: Iterable[Overview]) -> bytes:
    """The response body: length of the head, head, arrays. `web/static/run/overview.js` and the client decode it."""
    buffers: list[bytes] = []
    at = 0
    known: dict[bytes, list[Any]] = {}  # array of steps -> its entry in the head; series with the same steps share one array
    series: dict[str, Any] = {}
    for one in found:
        refs: dict[str, list[Any]] = {}
        for name, values in one.arrays.items():
            dtype = DTYPES[values.dtype.name]
            data = np.ascontiguousarray(values, "<" + dtype if dtype[1] != "1" else None).tobytes()
            key = data if name == "step" else b""
            if not key or key not in known:
                ref = [dtype, at, values.size]
                buffers.append(data + bytes(-len(data) % 8))
                at += len(buffers[-1])
                known[key] = ref
            refs[name] = known[key]
        series[one.name] = {"width": one.width, **one.facts, "arrays": refs}
    text = dumps(head | {"series": series})
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(buffers)
