"""The recorded values of a run: its catalogue, and one series at any resolution in four formats."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.errors import Invalid, NotFound
from server.http.api.deps import DatabaseDep
from server.http.api.records import columns_chosen, eigenvalues_of
from server.http.api.runs import run_not_found
from server.http.schemas.runs import MAX_ID, RunId
from server.http.schemas.series import EXAMPLE_SERIES, EXAMPLE_TYPED, Catalogue, SeriesAnswer
from server.series import files, reading
from server.series.catalogue import catalogue_snapshot
from server.series.encoding import array_json_bytes, arrow_stream, csv_rows, dumps, json_response, typed_json_bytes
from server.series.layout import Layout, SeriesColumns
from server.series.records import records_of
from stablessm_core.spec.suggestions import did_you_mean, listed

router = APIRouter(prefix="/api/runs", tags=["series"])

MAX_NUMBERS = 1 << 25  # maximum number of values (points * width) in one response
MAX_CHOSEN = 4096
MEDIA = {"arrow": "application/vnd.apache.arrow.stream", "csv": "text/csv; charset=utf-8"}
Step = Annotated[int | None, Query(ge=0, le=MAX_ID)]
MAX_POINTS = Query(ge=1, le=10_000_000, description="A series with more points is returned in buckets.")
MaxPoints = Annotated[int, MAX_POINTS]
SELECTION = (
    "Only these eigenvalues, for example 0,3,5-9. If several of them share a number, such as a gate, it is repeated for each."
)
Eigenvalues = Annotated[str | None, Query(max_length=20_000, description=SELECTION)]


@router.get("/{run_id}/series", response_model=Catalogue)
def catalogue(run_id: RunId, database: DatabaseDep) -> Response:
    """The catalogue of a run: every recorded series with its width, unit and steps, and the records of its layers, to which most
    series belong."""
    with database.read_autocommit() as session:
        return json_response(to_json(catalogue_json(session, run_id)))


def catalogue_json(session: Session, run_id: int) -> dict[str, Any]:
    """The Catalogue of a run. Raises NotFound."""
    try:
        seq, layers, known = catalogue_snapshot(session, run_id)
    except LookupError:
        raise run_not_found(session, run_id) from None
    records = records_of(((s.name, s.group, s.width, s.form) for s in known), layers)
    return {
        "run_id": run_id,
        "seq": seq,
        "records": [vars(record) for record in records],
        "series": [{k: v for k, v in vars(info).items() if k != "group"} for info in known],
    }


@router.get(
    "/{run_id}/series/{name:path}",
    response_model=SeriesAnswer,
    responses={
        200: {
            "content": {
                "application/json": {
                    "examples": {
                        "json": {"value": EXAMPLE_SERIES},
                        "typed": {"value": EXAMPLE_SERIES | {"step": EXAMPLE_TYPED, "value": EXAMPLE_TYPED}},
                    }
                },
                MEDIA["arrow"]: {"schema": {"type": "string", "format": "binary"}},
                "text/csv": {"example": "step,value\n1,0.91\n2,0.84\n3,nan\n"},
            }
        }
    },
)
def read(
    run_id: RunId,
    name: str,
    database: DatabaseDep,
    from_step: Step = None,
    to_step: Step = None,
    max_points: Annotated[int | None, MAX_POINTS] = None,
    eigenvalues: Eigenvalues = None,
    format: Annotated[Literal["json", "arrow", "csv", "typed"], Query()] = "json",
    download: Annotated[bool, Query(description="Send a file with every point, unless `max_points` is given.")] = False,
) -> Response:
    """One series: raw points, or buckets with minimum, maximum, last value and number of non-finite values if there are more than
    `max_points` points (2,000 by default). `download=true` sends a file with every point."""
    check_stretch(from_step, to_step)
    if download and max_points is None:
        return _every_point(database, run_id, name, from_step, to_step, eigenvalues, format)
    with database.read() as session:
        layout = find_layout(session, run_id)
        data = read_one(session, layout, name, from_step, to_step, max_points or reading.MAX_POINTS, eigenvalues)
    answer = _formatted(layout, name, data, format)
    if download:
        what = f"{name}-buckets" if data.value is None else name
        answer.headers["Content-Disposition"] = _attachment(run_id, what, format)
    return answer


def check_stretch(from_step: int | None, to_step: int | None) -> None:
    """Raises Invalid if the first step is after the last."""
    if from_step is not None and to_step is not None and from_step > to_step:
        raise Invalid(f"from_step {from_step} is after to_step {to_step}", field="from_step", allowed=f"<= {to_step}")


def _formatted(layout: Layout, name: str, data: reading.SeriesData, format: str) -> Response:
    width = data.value.shape[1] if data.value is not None else int(_of(data.last).shape[1])
    last = data.last_step if data.last_step is not None else data.step
    head = {"name": name, "width": width, "unit": data.unit, "seq": layout.seq, "last_step": int(last[-1]) if len(last) else None}
    if data.eigenvalues is not None:
        head["eigenvalues"] = data.eigenvalues.tolist()
    parts = columns_of(data)
    if format == "typed":
        return json_response(_joined(head, {key: typed_json_bytes(values) for key, values in parts.items()}))
    parts = {key: values[:, 0] if values.ndim == 2 and width == 1 else values for key, values in parts.items()}
    if format == "arrow":
        metadata = {key: str(value) for key, value in head.items()}
        return Response(arrow_stream(parts, metadata), media_type=MEDIA["arrow"])
    if format == "csv":
        titles = [t for key, values in parts.items() for t in files.titles(key, values, data.eigenvalues)]
        return Response(",".join(titles).encode() + b"\n" + csv_rows(list(parts.values())), media_type=MEDIA["csv"])
    return json_response(_joined(head, {key: array_json_bytes(values) for key, values in parts.items()}))


def _every_point(
    database: Database, run_id: int, name: str, from_step: int | None, to_step: int | None, eigenvalues: str | None, format: str
) -> Response:
    # read and send in pieces, because a long series of many eigenvalues exceeds the limit of one response
    with database.read() as session:
        layout = find_layout(session, run_id)
        row = find_series(layout, name)
        chosen = parse_eigenvalues(eigenvalues, eigenvalues_of(layout, row) or row.width) if eigenvalues is not None else None
        columns = None if chosen is None else columns_chosen(layout, row, chosen)
        stretch = files.Stretch(session, layout, row, columns, from_step, to_step, named=chosen)
    if format == "typed":
        raise Invalid("format is 'typed', which is not a file format", field="format", allowed="csv, arrow or json")
    write = {"csv": files.csv_file, "arrow": files.arrow_file, "json": files.json_file}[format]
    headers = {"Content-Disposition": _attachment(run_id, name, format)}
    return StreamingResponse(write(database, stretch), media_type=MEDIA.get(format, "application/json"), headers=headers)


def _attachment(run_id: int, name: str, format: str) -> str:
    return f'attachment; filename="run-{run_id}-{re.sub(r"[^A-Za-z0-9._-]", "-", name)}.{format}"'


def _joined(head: dict[str, Any], arrays: dict[str, bytes]) -> bytes:
    """One JSON object with the head and the encoded arrays."""
    return dumps(head)[:-1] + b"".join(b',"' + key.encode() + b'":' + text for key, text in arrays.items()) + b"}"


def find_layout(session: Session, run_id: int) -> Layout:
    """The layout of a run's series. Raises NotFound."""
    try:
        return Layout(session, run_id)
    except LookupError:
        raise run_not_found(session, run_id) from None


def read_one(
    session: Session,
    layout: Layout,
    name: str,
    from_step: int | None = None,
    to_step: int | None = None,
    max_points: int = reading.MAX_POINTS,
    eigenvalues: str | None = None,
) -> reading.SeriesData:
    """The result of `reading.read_series`. Invalid arguments raise NotFound or Invalid, which name the field."""
    row = find_series(layout, name)
    chosen = parse_eigenvalues(eigenvalues, eigenvalues_of(layout, row) or row.width) if eigenvalues is not None else None
    numbers = min(max_points, max(layout.step, 1)) * (len(chosen) if chosen is not None else row.width)
    if numbers > MAX_NUMBERS:
        raise Invalid(
            f"the answer would hold {numbers:,} numbers", field="max_points", allowed=f"points * width <= {MAX_NUMBERS:,}"
        )
    columns = None if chosen is None else columns_chosen(layout, row, chosen)
    data = reading.read_series(
        session, layout.run_id, name, from_step=from_step, to_step=to_step, max_points=max_points, eigenvalues=columns,
        layout=layout,
    )  # fmt: skip
    return data if chosen == columns else replace(data, eigenvalues=np.asarray(chosen))


def find_series(layout: Layout, name: str) -> SeriesColumns:
    """The series with this name. Raises NotFound."""
    if name not in layout.series:
        known = listed(layout.series, 20) or "nothing is recorded yet"
        guess = did_you_mean(name, layout.series)
        raise NotFound(f"run {layout.run_id} has no series {name[:120]!r}{guess}", field="name", allowed=known)
    return layout.series[name]


def parse_eigenvalues(text: str, width: int) -> list[int]:
    """The numbers of the selected eigenvalues: [0, 3, 5, 6] for "0,3,5-6". Each must be below `width`. Raises Invalid."""
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (_is_number(first) and (_is_number(last) if dash else True)):
            raise Invalid(f"eigenvalues has {part[:40]!r}", field="eigenvalues", allowed="numbers and ranges such as 0,3,5-9")
        low, high = int(first), int(last or first)
        if low > high or high >= width:
            raise Invalid(f"eigenvalues has {part[:40]!r}", field="eigenvalues", allowed=f"0 to {width - 1}, ranges ascending")
        chosen.extend(range(low, high + 1))
        if len(chosen) > MAX_CHOSEN:
            raise Invalid("eigenvalues selects too many", field="eigenvalues", allowed=f"at most {MAX_CHOSEN}")
    return chosen


def columns_of(data: reading.SeriesData) -> dict[str, np.ndarray]:
    """The arrays of a series: step and value, or step, min, max, last and nonfinite. All arrays except
    step have shape (n, width). The counts in nonfinite are int32; value, min, max and last are float32."""
    with np.errstate(over="ignore"):  # a derived value beyond float32 becomes infinite, as in the stored levels
        if data.value is not None:
            return {"step": data.step, "value": data.value.astype(np.float32, copy=False)}
        parts = {"min": _of(data.min), "max": _of(data.max), "last": _of(data.last)}
        parts = {key: values.astype(np.float32, copy=False) for key, values in parts.items()}
    return {"step": data.step, **parts, "nonfinite": _of(data.nonfinite).astype(np.int32)}


def _of(values: np.ndarray | None) -> np.ndarray:
    assert values is not None  # a series in buckets has all of these arrays
    return values


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
