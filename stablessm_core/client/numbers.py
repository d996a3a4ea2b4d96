"""The numbers of a run: as numpy, as Arrow, as files, and as the pages' own charts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from stablessm_core import typed_arrays
from stablessm_core.client.connection import Connection, given

ALL_POINTS = 10_000_000


@dataclass(frozen=True)
class Series:
    """A series as numpy arrays: raw `value`, or buckets `min`, `max`, `last`, `nonfinite`, each of which begins at its `step`.

    step is int64 (n,); the others are float32 (n,) for width 1, else (n, width).
    """

    name: str
    unit: str
    step: np.ndarray
    value: np.ndarray | None = None
    min: np.ndarray | None = None
    max: np.ndarray | None = None
    last: np.ndarray | None = None
    nonfinite: np.ndarray | None = None


def catalogue(self: Connection, run_id: int) -> list[dict[str, Any]]:
    """Every series of the run: name, width, unit, meaning, first and last step, points."""
    found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/series")["series"]
    return found


def series(
    self: Connection, run_id: int, name: str, *, from_step: int | None = None, to_step: int | None = None,
    max_points: int = ALL_POINTS, eigenvalues: Sequence[int] | None = None,
) -> Series:  # fmt: skip
    """One series as numpy, raw unless it has more than `max_points`."""
    answer = self.get(_path(run_id, name), format="typed", **_stretch(from_step, to_step, max_points, eigenvalues))
    parts = {key: typed_arrays.decode(value) for key, value in answer.items() if isinstance(value, dict)}
    step = parts.pop("step").astype(np.int64)
    if answer["width"] == 1:
        parts = {key: values.reshape(-1) for key, values in parts.items()}
    return Series(answer["name"], answer["unit"], step, **parts)


def steps(
    self: Connection, run_id: int, step: int, to_step: int | None = None, *, layer: int = 0,
    eigenvalues: Sequence[int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What the steps of some eigenvalues consisted of, those that moved most where none are chosen: lists of a number per
    eigenvalue and step, by name (relative_step, slope, weight_step, gradient, lr, normalisation, ...)."""
    params = {"step": step, "to_step": to_step, "layer": layer, "eigenvalues": _joined(eigenvalues)}
    found: dict[str, Any] = self.get(f"/api/runs/{run_id}/steps", **params)
    return found


def arrow(
    self: Connection, run_id: int, name: str, *, from_step: int | None = None, to_step: int | None = None,
    max_points: int = ALL_POINTS, eigenvalues: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    """One series as a pyarrow.Table; a vector per step is a fixed-size list."""
    params = given(format="arrow", **_stretch(from_step, to_step, max_points, eigenvalues))
    content = self.request("GET", _path(run_id, name), params=params).content
    return import_module("pyarrow.ipc").open_stream(content).read_all()


def download(self: Connection, run_id: int, name: str, format: str) -> bytes:
    """One series, all its points, as a file: csv, arrow or json."""
    return self.request("GET", _path(run_id, name), params={"format": format, "download": True}).content


def overview(
    self: Connection, run_id: int, *, part: str = "scalars", layer: int = 0, points: int = 1000, from_step: int | None = None,
    to_step: int | None = None, eigenvalues: Sequence[int] | None = None, top: int = 8,
) -> dict[str, Any]:  # fmt: skip
    """What the run's page shows of a stretch, in one request: its head, and in `series` by name the numpy arrays of each.

    part: "scalars", or "layer" for the series of one layer. Which arrays there are says docs/api.md.
    """
    params = given(
        part=part, layer=layer, points=points, from_step=from_step, to_step=to_step, eigenvalues=_joined(eigenvalues), top=top
    )
    body = self.request("GET", f"/api/runs/{run_id}/overview", params=params).content
    start = 4 + int.from_bytes(body[:4], "little")
    head: dict[str, Any] = json.loads(body[4:start])
    for one in head["series"].values():
        arrays = {name: np.frombuffer(body, f"<{d}", n, start + at) for name, (d, at, n) in one.pop("arrays").items()}
        rows = len(arrays["step"])
        shapes: dict[str, tuple[int, ...]] = {"lines": (-1, rows), "heat": (-1, rows)} if rows else {}
        shapes["value"] = (rows, one["width"]) if one["width"] > 1 else (rows,)
        one |= {name: values.reshape(shapes.get(name, values.shape)) for name, values in arrays.items()}
    return head


def figures(self: Connection) -> dict[str, Any]:
    """Every chart of the pages, without data: title, meaning, series, Plotly figure."""
    found: dict[str, Any] = self.get("/api/figures")["figures"]
    return found


def figure(
    self: Connection,
    run_id: int,
    chart: str,
    *,
    layer: int = 0,
    max_points: int = 1000,
    eigenvalues: Sequence[int] | None = None,
) -> Any:
    """The page's own chart of this run, as a plotly Figure."""
    params = {"layer": layer, "max_points": max_points, "eigenvalues": _joined(eigenvalues)}
    drawn = self.get(f"/api/runs/{run_id}/figures/{chart}", **params)
    return import_module("plotly.graph_objects").Figure(typed_arrays.decode_all(drawn), skip_invalid=True)


def _path(run_id: int, name: str) -> str:
    return f"/api/runs/{run_id}/series/{name}"


def _stretch(from_step: int | None, to_step: int | None, max_points: int, eigenvalues: Sequence[int] | None) -> dict[str, Any]:
    return {"from_step": from_step, "to_step": to_step, "max_points": max_points, "eigenvalues": _joined(eigenvalues)}


def _joined(eigenvalues: Sequence[int] | None) -> str | None:
    return ",".join(map(str, eigenvalues)) if eigenvalues is not None else None
