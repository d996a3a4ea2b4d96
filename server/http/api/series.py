"""The numbers of a run: its catalogue, and one series at any zoom in four formats."""

from __future__ import annotations

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
from server.http.api.runs import absent
from server.http.schemas.runs import MAX_ID, RunId
from server.http.schemas.series import EXAMPLE_SERIES, EXAMPLE_TYPED, Catalogue, SeriesAnswer
from server.series import files, reading
from server.series.encoding import arrow_stream, csv_rows, dumps, json_array, json_response, typed_json
from server.series.layout import Place
from server.series.records import records_of

router = APIRouter(prefix="/api/runs", tags=["series"])

MAX_NUMBERS = 1 << 25  # one answer: points * width
MAX_CHOSEN = 4096
MEDIA = {"arrow": "application/vnd.apache.arrow.stream", "csv": "text/csv; charset=utf-8"}
Step = Annotated[int | None, Query(ge=0, le=MAX_ID)]
MAX_POINTS = Query(ge=1, le=10_000_000, description="More points than this become buckets.")
MaxPoints = Annotated[int, MAX_POINTS]
SELECTION = "Only these, for example 0,3,5-9. Of a series with a number for several eigenvalues, such as a gate, the one of each."
Eigenvalues = Annotated[str | None, Query(max_length=20_000, description=SELECTION)]


@router.get("/{run_id}/series", response_model=Catalogue)
def catalogue(run_id: RunId, database: DatabaseDep) -> Response:
    """What the run records: every series with width, unit, extent; and its layers' records, to which most of them belong."""
    with database.glance() as session:
        return json_response(to_json(run_catalogue(session, run_id)))


def run_catalogue(session: Session, run_id: int) -> dict[str, Any]:
    """Catalogue. Raises NotFound."""
    try:
        seq, model, known = reading.catalogue_at(session, run_id)
    except LookupError:
        raise absent(session, run_id) from None
    records = records_of(((s.name, s.group, s.width, s.form) for s in known), model)
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
    download: Annotated[bool, Query(description="As a file; every point unless `max_points` is given.")] = False,
) -> Response:
    """One series: raw points, or, beyond `max_points` (2,000 where nothing is said), buckets with min, max, last value and count
    of non-finite values. `download=true` gives every point as a file, however many there are."""
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
    """Raises Invalid where the first step comes after the last."""
    if from_step is not None and to_step is not None and from_step > to_step:
        raise Invalid(f"from_step {from_step} is after to_step {to_step}", field="from_step", allowed=f"<= {to_step}")


def _formatted(layout: reading.Layout, name: str, data: reading.SeriesData, format: str) -> Response:
    width = data.value.shape[1] if data.value is not None else int(_of(data.last).shape[1])
    last = data.last_step if data.last_step is not None else data.step
    head = {"name": name, "width": width, "unit": data.unit, "seq": layout.seq, "last_step": int(last[-1]) if len(last) else None}
    if data.eigenvalues is not None:
        head["eigenvalues"] = data.eigenvalues.tolist()
    parts = columns_of(data)
    if format == "typed":
        return json_response(_joined(head, {key: typed_json(values) for key, values in parts.items()}))
    parts = {key: values[:, 0] if values.ndim == 2 and width == 1 else values for key, values in parts.items()}
    if format == "arrow":
        metadata = {key: str(value) for key, value in head.items()}
        return Response(arrow_stream(parts, metadata), media_type=MEDIA["arrow"])
    if format == "csv":
        titles = [t for key, values in parts.items() for t in files.titles(key, values, data.eigenvalues)]
        return Response(",".join(titles).encode() + b"\n" + csv_rows(list(parts.values())), media_type=MEDIA["csv"])
    return json_response(_joined(head, {key: json_array(values) for key, values in parts.items()}))


def _every_point(
    database: Database, run_id: int, name: str, from_step: int | None, to_step: int | None, eigenvalues: str | None, format: str
) -> Response:
    # read and sent piece by piece: a long series of many eigenvalues is larger than any one answer may be
    with database.read() as session:
        layout = find_layout(session, run_id)
        row = find_series(layout, name)
        chosen = parse_eigenvalues(eigenvalues, eigenvalues_of(layout, row) or row.width) if eigenvalues is not None else None
        columns = None if chosen is None else columns_chosen(layout, row, chosen)
        stretch = files.Stretch(session, layout, row, columns, from_step, to_step, named=chosen)
    if format == "typed":
        raise Invalid("format is 'typed', which is no file", field="format", allowed="csv, arrow or json")
    write = {"csv": files.csv_file, "arrow": files.arrow_file, "json": files.json_file}[format]
    headers = {"Content-Disposition": _attachment(run_id, name, format)}
    return StreamingResponse(write(database, stretch), media_type=MEDIA.get(format, "application/json"), headers=headers)


def _attachment(run_id: int, name: str, format: str) -> str:
    return f'attachment; filename="run-{run_id}-{name.replace("/", "-")}.{format}"'


def _joined(head: dict[str, Any], arrays: dict[str, bytes]) -> bytes:
    # one JSON object
    return dumps(head)[:-1] + b"".join(b',"' + key.encode() + b'":' + text for key, text in arrays.items()) + b"}"


def find_layout(session: Session, run_id: int) -> reading.Layout:
    """Raises NotFound."""
    try:
        return reading.Layout(session, run_id)
    except LookupError:
        raise absent(session, run_id) from None


def read_one(
    session: Session,
    layout: reading.Layout,
    name: str,
    from_step: int | None = None,
    to_step: int | None = None,
    max_points: int = reading.MAX_POINTS,
    eigenvalues: str | None = None,
) -> reading.SeriesData:
    """`reading.read_series` with refusals that name the field."""
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


def find_series(layout: reading.Layout, name: str) -> Place:
    """The series' row. Raises NotFound."""
    if name not in layout.series:
        known = ", ".join(list(layout.series)[:20]) or "nothing is recorded yet"
        raise NotFound(f"run {layout.run_id} has no series {name[:120]!r}", field="name", allowed=known)
    return layout.series[name]


def parse_eigenvalues(text: str, width: int) -> list[int]:
    """[0, 3, 5, 6] of "0,3,5-6", each below `width`. Raises Invalid."""
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
            raise Invalid("eigenvalues names too many", field="eigenvalues", allowed=f"at most {MAX_CHOSEN}")
    return chosen


def columns_of(data: reading.SeriesData) -> dict[str, np.ndarray]:
    """step and value, or step, min, max, last, nonfinite; all but step are (n, width) float32."""
    if data.value is not None:
        return {"step": data.step, "value": data.value.astype(np.float32, copy=False)}
    parts = {"min": _of(data.min), "max": _of(data.max), "last": _of(data.last)}
    parts = {key: values.astype(np.float32, copy=False) for key, values in parts.items()}
    return {"step": data.step, **parts, "nonfinite": _of(data.nonfinite).astype(np.int32)}


def _of(values: np.ndarray | None) -> np.ndarray:
    assert values is not None  # an envelope has all of them
    return values


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
