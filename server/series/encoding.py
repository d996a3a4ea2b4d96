"""How numbers leave the server: typed arrays, JSON text, CSV and Arrow; non-finite values as what they are.

float32 is written with the fewest digits that give the same float32 back.
"""

from __future__ import annotations

import io
import json
from importlib import import_module
from typing import Any

import numpy as np
from starlette.responses import Response

from stablessm_core import typed_arrays
from stablessm_core.nonfinite import INFINITY, MINUS_INFINITY, NAN


def typed_json(values: np.ndarray) -> bytes:
    """JSON text of a typed array; its base64 is not escaped character by character, of which there may be millions."""
    array = typed_arrays.encode(values)
    data = array.pop("bdata").encode()
    return dumps(array)[:-1] + b',"bdata":"' + data + b'"}'


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
    for name, word in (("nan", NAN), ("-inf", MINUS_INFINITY), ("inf", INFINITY)):
        rows = rows.replace(name.encode(), b'"%s"' % word.encode())
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
