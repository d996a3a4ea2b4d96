"""Read the series of a run as numpy arrays, Arrow tables or files, and its charts as plotly Figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import quote

import numpy as np

from stablessm_core.client.connection import Connection, join_numbers, without_none
from stablessm_core.telemetry import typed_arrays

ALL_POINTS = 10_000_000


@dataclass(frozen=True)
class Series:
    """A series as numpy arrays: either raw values, or buckets of several steps.

    value: the raw value at each `step`. min, max, last, nonfinite: one value per bucket; `step` is the first step of a bucket.

    step is int64, (n,). The other arrays are float32, (n,) if the series has width 1 and otherwise (n, width).
    """

    name: str
    unit: str
    step: np.ndarray
    value: np.ndarray | None = None
    min: np.ndarray | None = None
    max: np.ndarray | None = None
    last: np.ndarray | None = None
    nonfinite: np.ndarray | None = None


class SeriesMethods(Connection):
    """Methods of `Client` for series and charts."""

    def catalogue(self, run_id: int) -> list[dict[str, Any]]:
        """Every series of the run: name, width, unit, meaning, first and last step, number of points."""
        found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/series")["series"]
        return found

    def free_metrics(self, run_id: int) -> dict[str, Any]:
        """The newest value of each free metric of the run, by name; None for a metric without a value."""
        found = self.get(f"/api/runs/{run_id}/metrics")["metrics"]
        return {one["name"]: None if one["last"] is None else float(one["last"]) for one in found}

    def memory(self, run_id: int, step: int | None = None) -> dict[str, Any]:
        """The memory function of the run's network at an evaluation (None: the newest): the size of its answer to an input t
        steps ago, by lag, with the fitted decay and the kernel of the task. Without a measurement, `reason` says why."""
        answer: dict[str, Any] = self.get(f"/api/runs/{run_id}/memory", **({} if step is None else {"step": step}))
        return answer

    def series(
        self, run_id: int, name: str, *, from_step: int | None = None, to_step: int | None = None,
        max_points: int = ALL_POINTS, eigenvalues: Sequence[int] | None = None,
    ) -> Series:  # fmt: skip
        """One series as numpy arrays: raw values, or buckets if the series has more than `max_points` points."""
        answer = self.get(_path(run_id, name), format="typed", **_range_params(from_step, to_step, max_points, eigenvalues))
        parts = {key: typed_arrays.decode(value) for key, value in answer.items() if isinstance(value, dict)}
        step = parts.pop("step").astype(np.int64)
        if answer["width"] == 1:
            parts = {key: values.reshape(-1) for key, values in parts.items()}
        return Series(answer["name"], answer["unit"], step, **parts)

    def steps(
        self, run_id: int, step: int, to_step: int | None = None, *, layer: int = 0,
        eigenvalues: Sequence[int] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The relative steps of some eigenvalues, and the factors of these steps.

        The names are relative_step, slope, weight_step, gradient, lr, ... Each name maps to a list with
        one number per eigenvalue and step. By default, the eigenvalues that moved most are included.
        """
        params = {"step": step, "to_step": to_step, "layer": layer, "eigenvalues": join_numbers(eigenvalues)}
        found: dict[str, Any] = self.get(f"/api/runs/{run_id}/steps", **params)
        return found

    def arrow(
        self, run_id: int, name: str, *, from_step: int | None = None, to_step: int | None = None,
        max_points: int = ALL_POINTS, eigenvalues: Sequence[int] | None = None,
    ) -> Any:  # fmt: skip
        """One series as a pyarrow.Table. A series with more than one value per step has a column of fixed-size lists."""
        params = without_none(format="arrow", **_range_params(from_step, to_step, max_points, eigenvalues))
        content = self.request("GET", _path(run_id, name), params=params).content
        return import_module("pyarrow.ipc").open_stream(content).read_all()

    def download(self, run_id: int, name: str, format: str) -> bytes:
        """All points of one series as a file: csv, arrow or json."""
        return self.request("GET", _path(run_id, name), params={"format": format, "download": True}).content

    def overview(
        self, run_id: int, *, part: str = "scalars", layer: int = 0, points: int = 1000, from_step: int | None = None,
        to_step: int | None = None, eigenvalues: Sequence[int] | None = None, top: int = 8,
    ) -> dict[str, Any]:  # fmt: skip
        """All data that the run's page shows for a range of steps. `series` contains numpy arrays by series name.

        part: "scalars", or "layer" for the series of one layer. docs/api.md lists the arrays.
        """
        params = without_none(
            part=part,
            layer=layer,
            points=points,
            from_step=from_step,
            to_step=to_step,
            eigenvalues=join_numbers(eigenvalues),
            top=top,
        )
        body = self.request("GET", f"/api/runs/{run_id}/overview", params=params).content
        start = 4 + int.from_bytes(body[:4], "little")
        head: dict[str, Any] = json.loads(body[4:start])
        for series in head["series"].values():
            arrays = {name: np.frombuffer(body, f"<{d}", n, start + at) for name, (d, at, n) in series.pop("arrays").items()}
            rows = len(arrays["step"])
            shapes: dict[str, tuple[int, ...]] = {"lines": (-1, rows), "heat": (-1, rows)} if rows else {}
            shapes["value"] = (rows, series["width"]) if series["width"] > 1 else (rows,)
            series |= {name: values.reshape(shapes.get(name, values.shape)) for name, values in arrays.items()}
        return head

    def figures(self) -> dict[str, Any]:
        """Every chart of the web pages, without data: the title, meaning, series and Plotly figure of the chart."""
        found: dict[str, Any] = self.get("/api/figures")["figures"]
        return found

    def figure(
        self,
        run_id: int,
        chart: str,
        *,
        layer: int = 0,
        max_points: int = 1000,
        eigenvalues: Sequence[int] | None = None,
        metric: str | None = None,
    ) -> Any:
        """One chart of the run's page, as a plotly Figure. metric: the scalar that the chart "metric" shows."""
        params = {"layer": layer, "max_points": max_points, "eigenvalues": join_numbers(eigenvalues), "metric": metric}
        drawn = self.get(f"/api/runs/{run_id}/figures/{chart}", **params)
        return import_module("plotly.graph_objects").Figure(typed_arrays.decode_all(drawn), skip_invalid=True)


def _path(run_id: int, name: str) -> str:
    return f"/api/runs/{run_id}/series/{quote(name)}"


def _range_params(
    from_step: int | None, to_step: int | None, max_points: int, eigenvalues: Sequence[int] | None
) -> dict[str, Any]:
    return {"from_step": from_step, "to_step": to_step, "max_points": max_points, "eigenvalues": join_numbers(eigenvalues)}
