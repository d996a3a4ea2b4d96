"""Arrays inside JSON, in Plotly's format: `{"dtype": "f4", "bdata": base64 of little-endian numbers, "shape": "rows, cols"}`.

The browser passes these arrays to its charts unchanged; where a script needs the numbers, `static/lib/typed.js` decodes them.
One-dimensional arrays have no shape.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

DTYPES = {"float32": "f4", "float64": "f8", "int64": "f8", "int32": "i4", "uint8": "u1"}


def encode(values: np.ndarray) -> dict[str, str]:
    """The typed form of a 1-D or 2-D array. int64 (steps) is sent as float64, which is exact below 2**53."""
    if values.dtype.name not in DTYPES:
        raise ValueError(f"dtype is {values.dtype.name}; allowed: {', '.join(DTYPES)}")
    dtype = DTYPES[values.dtype.name]
    data = np.ascontiguousarray(values, dtype="<" + dtype)
    answer = {"dtype": dtype, "bdata": base64.b64encode(data.tobytes()).decode("ascii")}
    if data.ndim > 1:
        answer["shape"] = ", ".join(map(str, data.shape))
    return answer


def decode(typed: Mapping[str, str]) -> np.ndarray:
    """Inverse of `encode`."""
    values = np.frombuffer(base64.b64decode(typed["bdata"]), "<" + typed["dtype"])
    return values.reshape([int(n) for n in typed["shape"].split(",")]) if "shape" in typed else values


def decode_all(value: Any) -> Any:
    """The JSON value with every typed array in it decoded, at any depth."""
    if isinstance(value, dict):
        return decode(value) if {"dtype", "bdata"} <= value.keys() else {key: decode_all(item) for key, item in value.items()}
    return [decode_all(item) for item in value] if isinstance(value, list) else value
