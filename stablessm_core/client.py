"""A Python client of the REST API: submit runs, watch them live, read their numbers as numpy or Arrow, draw the page's charts.

from stablessm_core.client import Client
with Client() as client:                       # finds a server that `stablessm up` started here
    run = client.submit({"task": {"name": "polynomial_memory"}})
    for event in client.watch(run["id"]):
        ...
    ratios = client.series(run["id"], "ssm/0/grad_over_weight")
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import numpy as np

from stablessm_core import typed_arrays
from stablessm_core.config import RunConfig

FINAL = ("finished", "failed", "diverged", "cancelled")
ALL_POINTS = 10_000_000
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


class ApiError(Exception):
    """A refusal of the server: `field` names what is wrong, `allowed` says what would be right."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None, allowed: str | None = None) -> None:
        super().__init__(message + (f" (allowed: {allowed})" if allowed else ""))
        self.status, self.code, self.message, self.field, self.allowed = status, code, message, field, allowed


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


@dataclass(frozen=True)
class LiveEvent:
    """One event of the live stream: `kind` is points, alert, status, reset or live; `series` holds the new points by name."""

    kind: str
    id: str
    data: dict[str, Any]
    series: dict[str, Series] = field(default_factory=dict)


def find_server(data_dir: str | Path | None = None) -> tuple[str, str | None]:
    """(URL, token) from STABLESSM_URL and STABLESSM_TOKEN, else from the data directory of a `stablessm up` on this machine."""
    folder = Path(data_dir or os.environ.get("STABLESSM_DATA_DIR") or ".stablessm")
    url, token = os.environ.get("STABLESSM_URL"), os.environ.get("STABLESSM_TOKEN")
    if url is None:
        try:
            url = json.loads((folder / "up.json").read_text()).get("url")
        except (OSError, ValueError):
            url = None
    if token is None and (folder / "token").is_file():
        token = (folder / "token").read_text().strip()
    return url or "http://127.0.0.1:8000", token


class Client:
    """A connection to one server. Methods return the API's own JSON; series come as numpy arrays.

    Raises ApiError when the server refuses, httpx.TransportError when it does not answer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        found_url, found_token = find_server()
        token = token or (found_token if url in (None, found_url) else None)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = (url or found_url).rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # Runs

    def submit(
        self, config: RunConfig | Mapping[str, Any], *, key: str | None = None, queue: str | None = None,
        priority: int | None = None, gpu: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Queue a run. Repeated calls with the same `key` and configuration submit it once."""
        body = config.model_dump(mode="json") if isinstance(config, RunConfig) else dict(config)
        headers, place = {"Idempotency-Key": key} if key else {}, _given(queue=queue, priority=priority, gpu=gpu)
        return self._json("POST", "/api/runs", json=body, headers=headers, params=place)

    def run(self, run_id: int) -> dict[str, Any]:
        return self._json("GET", f"/api/runs/{run_id}")

    def runs(
        self, q: str | None = None, *, status: str | None = None, tag: str | None = None, sort: str | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """Runs that match the filter, page by page, at most `limit`."""
        cursor, left = None, limit
        while True:
            size = 100 if left is None else min(left, 100)
            page = self._json(
                "GET", "/api/runs", params=_given(q=q, status=status, tag=tag, sort=sort, cursor=cursor, limit=size)
            )
            yield from page["runs"]
            left = None if left is None else left - len(page["runs"])
            cursor = page["next_cursor"]
            if cursor is None or left == 0:
                return

    def update(self, run_id: int, **changes: Any) -> dict[str, Any]:
        """Change name, tags or notes; of a queued run also queue, priority and gpu."""
        return self._json("PATCH", f"/api/runs/{run_id}", json=changes)

    def delete(self, run_id: int) -> None:
        self._request("DELETE", f"/api/runs/{run_id}")

    def cancel(self, run_id: int) -> dict[str, Any]:
        return self._json("POST", f"/api/runs/{run_id}/cancel")

    def resume(self, run_id: int) -> dict[str, Any]:
        return self._json("POST", f"/api/runs/{run_id}/resume")

    def clone(self, run_id: int, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Submit the run's configuration again with values changed at dotted paths."""
        return self._json("POST", f"/api/runs/{run_id}/clone", json={"set": dict(settings or {})})

    def submit_sweep(self, base: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        return self._json("POST", "/api/sweeps", json={"base": dict(base), "grid": {k: list(v) for k, v in grid.items()}})

    def sweep(self, sweep_id: int) -> dict[str, Any]:
        return self._json("GET", f"/api/sweeps/{sweep_id}")

    def alerts(self, run_id: int | None = None, *, since: int = 0) -> list[dict[str, Any]]:
        """Alerts of one run (oldest first) or of all (newest first) with an id above `since`."""
        path = "/api/alerts" if run_id is None else f"/api/runs/{run_id}/alerts"
        found: list[dict[str, Any]] = self._json("GET", path, params={"since": since})["alerts"]
        return found

    def log(self, run_id: int, *, after: int = 0) -> dict[str, Any]:
        """What the run's training processes printed since the position `after` (`next` of the answer before), and tracebacks."""
        return self._json("GET", f"/api/runs/{run_id}/log", params={"after": after})

    def history(self, run_id: int, *, since: int = 0) -> dict[str, Any]:
        """Changes of the run's status after event `since`, with reasons, and its attempts."""
        return self._json("GET", f"/api/runs/{run_id}/history", params={"since": since})

    def checkpoints(self, run_id: int) -> list[dict[str, Any]]:
        """Checkpoints the run can go on from, the newest first."""
        found: list[dict[str, Any]] = self._json("GET", f"/api/runs/{run_id}/checkpoints")["checkpoints"]
        return found

    def download_checkpoint(self, run_id: int, step: int, path: Path) -> Path:
        """Write the checkpoint's file to `path`, which appears whole or not at all. Raises ValueError if it came damaged."""
        draft, digest = path.with_name(f".{path.name}.{os.getpid()}.partial"), hashlib.sha256()
        try:
            with self._http.stream("GET", f"/api/runs/{run_id}/checkpoints/{step}") as answer, draft.open("wb") as file:
                if answer.is_error:
                    answer.read()
                _raise(answer)
                for piece in answer.iter_bytes():
                    digest.update(piece)
                    file.write(piece)
            if answer.headers["ETag"].strip('"') != digest.hexdigest():
                raise ValueError(f"the checkpoint of step {step} was damaged on its way: its SHA-256 is {digest.hexdigest()}")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        return path

    def queues(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._json("GET", "/api/queues")["queues"]
        return found

    def change_queue(self, name: str, **changes: Any) -> dict[str, Any]:
        """Set `max_running` (None for no limit) and `paused`; what is not given stays."""
        return self._json("PATCH", f"/api/queues/{quote(name, safe='')}", json=changes)

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._json("GET", "/api/workers")["workers"]
        return found

    def compare(
        self, runs: Sequence[int] | None = None, *, sweep: int | None = None, q: str | None = None, group_by: str | None = None
    ) -> dict[str, Any]:
        """Differences, curves and ranges of several runs."""
        named = ",".join(map(str, runs)) if runs is not None else None
        return self._json("GET", "/api/compare", params=_given(runs=named, sweep=sweep, q=q, group_by=group_by))

    # Tokens, for administrators

    def create_token(self, name: str, scope: str, *, days: float | None = None) -> dict[str, Any]:
        """A new token of the scope read, submit or admin; its `secret` is in this answer only."""
        ends = time.time() + days * 86_400 if days is not None else None
        return self._json("POST", "/api/tokens", json={"name": name, "scope": scope, "expires_at": ends})

    def tokens(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._json("GET", "/api/tokens")["tokens"]
        return found

    def revoke_token(self, token_id: int) -> dict[str, Any]:
        return self._json("DELETE", f"/api/tokens/{token_id}")

    # Numbers

    def catalogue(self, run_id: int) -> list[dict[str, Any]]:
        """Every series of the run: name, width, unit, meaning, first and last step, points."""
        found: list[dict[str, Any]] = self._json("GET", f"/api/runs/{run_id}/series")["series"]
        return found

    def series(
        self, run_id: int, name: str, *, from_step: int | None = None, to_step: int | None = None,
        max_points: int = ALL_POINTS, eigenvalues: Sequence[int] | None = None,
    ) -> Series:  # fmt: skip
        """One series as numpy, raw unless it has more than `max_points`."""
        answer = self._json("GET", *_series_query("typed", run_id, name, from_step, to_step, max_points, eigenvalues))
        parts = {key: typed_arrays.decode(value) for key, value in answer.items() if isinstance(value, dict)}
        step = parts.pop("step").astype(np.int64)
        if answer["width"] == 1:
            parts = {key: values.reshape(-1) for key, values in parts.items()}
        return Series(answer["name"], answer["unit"], step, **parts)

    def arrow(
        self, run_id: int, name: str, *, from_step: int | None = None, to_step: int | None = None,
        max_points: int = ALL_POINTS, eigenvalues: Sequence[int] | None = None,
    ) -> Any:  # fmt: skip
        """One series as a pyarrow.Table; a vector per step is a fixed-size list."""
        path, options = _series_query("arrow", run_id, name, from_step, to_step, max_points, eigenvalues)
        return import_module("pyarrow.ipc").open_stream(self._request("GET", path, **options).content).read_all()

    def download(self, run_id: int, name: str, format: str) -> bytes:
        """One series, all its points, as a file: csv, arrow or json."""
        path, options = _series_query(format, run_id, name, None, None, ALL_POINTS, None)
        return self._request("GET", path, **options).content

    def figure(
        self, run_id: int, chart: str, *, layer: int = 0, max_points: int = 1000, eigenvalues: Sequence[int] | None = None
    ) -> Any:
        """The page's own chart of this run, as a plotly Figure."""
        chosen = ",".join(map(str, eigenvalues)) if eigenvalues is not None else None
        params = _given(layer=layer, max_points=max_points, eigenvalues=chosen)
        figure = self._json("GET", f"/api/runs/{run_id}/figures/{chart}", params=params)
        return import_module("plotly.graph_objects").Figure(typed_arrays.decode_all(figure), skip_invalid=True)

    def watch(
        self, run_id: int, *, after: str | int | None = None, series: Sequence[str] | None = None, patience: float = 60.0
    ) -> Iterator[LiveEvent]:
        """Live events until the run ends. After a broken connection it continues without a gap, trying for `patience` seconds."""
        if after is not None:
            run = self.run(run_id)
            if run["status"] in FINAL and run["seq"] <= int(str(after).partition(".")[0]):
                return
        position, failures, since = after, 0, time.monotonic()
        while True:
            try:
                for event in self._events(run_id, position, series):
                    position, failures, since = event.id or position, 0, time.monotonic()
                    yield event
                    if event.kind == "status" and event.data["status"] in FINAL:
                        return
            except httpx.TransportError:
                if time.monotonic() - since > patience:
                    raise
            time.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    def _events(self, run_id: int, position: str | int | None, series: Sequence[str] | None) -> Iterator[LiveEvent]:
        headers = {"Last-Event-ID": str(position)} if position is not None else {}
        params = _given(series=",".join(series) if series is not None else None)
        timeout = httpx.Timeout(10.0, read=40.0)  # the server pings every 15 s
        path = f"/api/runs/{run_id}/stream"
        with self._http.stream("GET", path, headers=headers, params=params, timeout=timeout) as answer:
            if answer.is_error:
                answer.read()
            _raise(answer)
            lines: dict[str, str] = {}
            for line in answer.iter_lines():
                if line:
                    name, _, value = line.partition(":")
                    lines[name] = value.removeprefix(" ")
                    continue
                if "data" in lines:
                    yield _event(lines["event"], lines.get("id", ""), json.loads(lines["data"]))
                lines = {}

    def _json(self, method: str, path: str, options: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._request(method, path, **{**(options or {}), **more}).json()
        return answer

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self._http.request(method, path, **options)
        _raise(answer)
        return answer


def _raise(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        raise ApiError(answer.status_code, "error", f"the server answered {answer.status_code}: {answer.text[:200]}") from None
    raise ApiError(answer.status_code, error["code"], error["message"], error.get("field"), error.get("allowed"))


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _series_query(
    format: str, run_id: int, name: str, from_step: int | None, to_step: int | None, max_points: int,
    eigenvalues: Sequence[int] | None,
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    chosen = ",".join(map(str, eigenvalues)) if eigenvalues is not None else None
    params = _given(format=format, from_step=from_step, to_step=to_step, max_points=max_points, eigenvalues=chosen)
    return f"/api/runs/{run_id}/series/{name}", {"params": params}


def _event(kind: str, event_id: str, data: dict[str, Any]) -> LiveEvent:
    parts = {}
    for one in data.pop("series", []) if kind == "points" else []:
        value = typed_arrays.decode(one["value"])
        value = value.reshape(-1) if one["width"] == 1 else value
        parts[one["name"]] = Series(one["name"], "", typed_arrays.decode(one["step"]).astype(np.int64), value)
    return LiveEvent(kind, event_id, data, parts)
