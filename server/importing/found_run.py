"""A run that was found in the files of another tool: what is known of it, and its scalars."""

from __future__ import annotations

import uuid
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stablessm_core.telemetry.limits import MAX_STEP
from stablessm_core.telemetry.metrics import MAX_METRICS, name_error
from stablessm_core.telemetry.nonfinite import NONFINITE

NAMESPACE = uuid.UUID("7a0f2b3c-5a43-5d0e-9c5a-2b1f6f5b9e01")  # of the ids of imported runs
Advance = Callable[[int], None]  # receives the number of bytes that were read


class Unreadable(ValueError):
    """A file of which nothing can be read. The message names the file and the reason."""


def as_float(value: float) -> float:
    """The number as a float; an integer beyond all floats becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


@dataclass
class FoundRun:
    """tool: that wrote it. identity: what distinguishes the run from all others; it stays the same when the run grows.
    status: a final status. left_out: how many things of each kind have no place here. remarks: sentences for the user."""

    tool: str
    identity: str
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    started_at: float | None = None  # epoch seconds
    status: str = "finished"
    reason: str = ""
    left_out: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    _points: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)

    def id(self, project: str) -> str:
        """The UUID under which a server knows the run in this project."""
        return str(uuid.uuid5(NAMESPACE, "\0".join((self.tool, self.identity, project))))

    def add(self, name: str, step: int, value: float) -> None:
        """Add a point. Of several values at one step, the last one counts."""
        if not 0 <= step <= MAX_STEP:
            self.left_out["points with a step below 0 or above 2^53 - 1"] += 1
            return
        found = self._points.get(name)
        if found is None:
            if error := name_error(name):
                self.left_out[f"points of {name[:60]!r} ({error} are allowed)"] += 1
                return
            if len(self._points) >= MAX_METRICS:
                self.left_out[f"points of further series than the first {MAX_METRICS:,}"] += 1
                return
            found = self._points[name] = array("q"), array("d")
        found[0].append(step)
        found[1].append(value)

    def add_json(self, name: str, step: int, value: Any) -> None:
        """Add the numbers in a value that was read from JSON, also those inside an object. What is no number is counted."""
        if isinstance(value, str) and value in NONFINITE:
            value = float(value)
        if isinstance(value, int | float):
            self.add(name, step, as_float(value))
        elif isinstance(value, dict) and "_type" not in value:
            for key, inner in value.items():
                self.add_json(f"{name}.{key}", step, inner)
        elif value is not None:
            kind = value.get("_type") if isinstance(value, dict) else "list" if isinstance(value, list) else "text"
            self.left_out[f"values of the kind {str(kind)[:40]}"] += 1

    def drop_from(self, step: int) -> None:
        """Forget the points at this step and later ones: the program went back."""
        for steps, values in self._points.values():
            kept = [(s, v) for s, v in zip(steps, values, strict=True) if s < step]
            steps[:], values[:] = array("q", [s for s, _ in kept]), array("d", [v for _, v in kept])

    @property
    def names(self) -> list[str]:
        """The names of the series, in the order of their first points."""
        return list(self._points)

    def series(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Steps, int64 and ascending, and values, float64, of each series."""
        found = {}
        for name, (steps, values) in self._points.items():
            at, numbers = np.array(steps, np.int64), np.array(values, np.float64)
            order = np.argsort(at, kind="stable")
            at, numbers = at[order], numbers[order]
            last = np.append(at[1:] != at[:-1], True) if len(at) else np.zeros(0, bool)
            found[name] = at[last], numbers[last]
        return found

    def rename(self, old: str, new: str) -> None:
        """Give a series another name."""
        self._points = {new if name == old else name: points for name, points in self._points.items()}

    def continue_with(self, other: FoundRun) -> None:
        """Add what another file holds of the same run. The later end counts."""
        for name, (steps, values) in other._points.items():
            for step, value in zip(steps, values, strict=True):
                self.add(name, step, value)
        self.config |= other.config
        self.left_out += other.left_out
        self.remarks += other.remarks
        self.status, self.reason = other.status, other.reason
