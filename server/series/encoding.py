"""Encodes arrays for responses: typed arrays, JSON, CSV and Arrow. Non-finite values are kept.

A float32 is written with the fewest digits from which the same float32 can be read back.
"""

from __future__ import annotations

import io
import json
from importlib import import_module
from typing import Any

import numpy as np
from starlette.responses import Response

from stablessm_core.telemetry import typed_arrays
from stablessm_core.telemetry.nonfinite import INFINITY, MINUS_INFINITY, NAN


def typed_json_bytes(values: np.ndarray) -> bytes:
    """JSON text of a typed array. The base64 text, often megabytes long, is inserted without escaping each character."""
    array = typed_arrays.encode(values)
    data = array.pop("bdata").encode()
    return dumps(array)[:-1] + b',"bdata":"' + data + b'"}'


def dumps(value: Any) -> bytes:
    """Compact JSON. Raises ValueError for a bare NaN or infinity, which no browser can parse."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def json_response(body: bytes) -> Response:
    """A response with this JSON body; FastAPI does not validate the body again."""
    return Response(body, media_type="application/json")


def array_json_bytes(values: np.ndarray) -> bytes:
    """JSON text of a 1-D array, or of a 2-D array as a list of rows."""
    if values.size == 0:
        return b"[" + b",".join([b"[]"] * len(values)) + b"]"
    rows = csv_rows([values])[:-1]
    for name, word in (("nan", NAN), ("-inf", MINUS_INFINITY), ("inf", INFINITY)):
        rows = rows.replace(name.encode(), b'"%s"' % word.encode())
    if values.ndim == 1:
        return b"[" + rows.replace(b"\n", b",") + b"]"
    return b"[[" + rows.replace(b"\n", b"],[") + b"]]"


def csv_rows(parts: list[np.ndarray]) -> bytes:
    """CSV lines with the columns of all parts side by side; non-finite values as nan, inf and -inf, which numpy parses."""
    pa, csv = import_module("pyarrow"), import_module("pyarrow.csv")
    columns = [part[:, None] if part.ndim == 1 else part for part in parts]
    arrays = [pa.array(np.ascontiguousarray(part[:, i])) for part in columns for i in range(part.shape[1])]
    sink = io.BytesIO()
    options = csv.WriteOptions(include_header=False, batch_size=65_536)
    csv.write_csv(pa.table(arrays, names=[str(i) for i in range(len(arrays))]), sink, options)
    return sink.getvalue()


def arrow_stream(columns: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """Arrow IPC stream of the columns; a 2-D array becomes a fixed-size list column, which reads back as 2-D."""
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
