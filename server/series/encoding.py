"""How numbers leave the server: typed arrays, JSON text, CSV and Arrow, non-finite values as what they are.

A typed array is plotly's own form, `{"dtype": "f4", "bdata": base64 of little-endian numbers, "shape": "rows, cols"}`, which
the browser hands to the chart as it is. In JSON text a number that JSON lacks is the string "NaN", "Infinity" or "-Infinity".
float32 is written with the fewest digits that give the same float32 back.
"""

from __future__ import annotations

import base64
import io
import json
import math
from importlib import import_module
from typing import Any

import numpy as np
from starlette.responses import Response

TYPES = {
    "float32": ("f4", "<f4"),
    "float64": ("f8", "<f8"),
    "int64": ("f8", "<f8"),
    "int32": ("i4", "<i4"),
    "uint8": ("u1", "u1"),
}


def typed(values: np.ndarray) -> dict[str, str]:
    """Typed array of a 1-D or 2-D array; int64 (steps) travels as float64, exact below 2**53."""
    dtype, layout = TYPES[values.dtype.name]
    data = np.ascontiguousarray(values, dtype=layout)
    answer = {"dtype": dtype, "bdata": base64.b64encode(data.tobytes()).decode("ascii")}
    if data.ndim == 2:
        answer["shape"] = f"{data.shape[0]}, {data.shape[1]}"
    return answer


def typed_json(values: np.ndarray) -> bytes:
    """JSON text of `typed`; base64 needs no look at each of its characters, of which there may be millions."""
    array = typed(values)
    data = array.pop("bdata").encode()
    return dumps(array)[:-1] + b',"bdata":"' + data + b'"}'


def untyped(data: dict[str, str]) -> np.ndarray:
    """Inverse of typed."""
    values = np.frombuffer(base64.b64decode(data["bdata"]), "<" + data["dtype"])
    return values.reshape([int(n) for n in data["shape"].split(",")]) if "shape" in data else values


def plain(value: Any) -> Any:
    """The value with non-finite floats as strings, at any depth, so that JSON can hold it."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def dumps(value: Any) -> bytes:
    """Compact JSON; raises ValueError on a bare NaN or infinity instead of writing what no browser reads."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def json_response(body: bytes) -> Response:
    """An answer that needs no check against the model which describes it: it has just been made."""
    return Response(body, media_type="application/json")


def json_array(values: np.ndarray) -> bytes:
    """JSON text of a 1-D array or of a list of rows."""
    if values.size == 0:
        return b"[" + b",".join([b"[]"] * len(values)) + b"]"
    rows = csv_rows([values])[:-1]
    for name, word in ((b"nan", b'"NaN"'), (b"-inf", b'"-Infinity"'), (b"inf", b'"Infinity"')):
        rows = rows.replace(name, word)
    if values.ndim == 1:
        return b"[" + rows.replace(b"\n", b",") + b"]"
    return b"[[" + rows.replace(b"\n", b"],[") + b"]]"


def csv_rows(parts: list[np.ndarray]) -> bytes:
    """Lines of comma-separated numbers, the columns of all parts side by side; nan, inf, -inf as numpy reads them."""
    pa, csv = import_module("pyarrow"), import_module("pyarrow.csv")
    columns = [part[:, None] if part.ndim == 1 else part for part in parts]
    arrays = [pa.array(np.ascontiguousarray(part[:, i])) for part in columns for i in range(part.shape[1])]
    sink = io.BytesIO()
    options = csv.WriteOptions(include_header=False, batch_size=65_536)
    csv.write_csv(pa.table(arrays, names=[str(i) for i in range(len(arrays))]), sink, options)
    return sink.getvalue()


def arrow_stream(columns: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """Arrow IPC stream; a 2-D array becomes a fixed-size list column, so it reads back as it was."""
    pa = import_module("pyarrow")

    def column(values: np.ndarray) -> Any:
        if values.ndim == 1:
            return pa.array(values)
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])

    table = pa.table({name: column(values) for name, values in columns.items()}).replace_schema_metadata(metadata)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
