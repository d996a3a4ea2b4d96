"""A run that was found in the files of another tool: what is known of it, and its scalars."""

from __future__ import annotations

import json
import sys
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
Points = tuple[np.ndarray, np.ndarray]  # steps int64 (n,), ascending, and values float64 (n,)
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
EXACT_IN_FLOAT32, EXACT_IN_FLOAT64 = 1 << 24, 1 << 53  # every whole number up to here is a float32, or a float64


class Unreadable(ValueError):
    """A file of which nothing can be read. The message names the file and the reason."""


def as_float(value: float) -> float:
    """The number as a float; an integer beyond all floats becomes the largest float, because it is not infinite."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def parse_integer(digits: str) -> int | float:
    """The whole number with these digits. -0 is the float -0.0, and a number of more digits than a float has is the largest."""
    if len(digits) > 400:
        return -sys.float_info.max if digits.startswith("-") else sys.float_info.max
    return -0.0 if digits == "-0" else int(digits)


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, which refuses integers of thousands of digits, for JSON with any number. Raises ValueError."""
    return json.loads(text, parse_int=parse_integer)


@dataclass
class FoundRun:
    """tool: that wrote it. identity: what distinguishes the run from all others; it stays the same when the run grows.
    former_identities: by which earlier versions of this program named the run, if the run still can be told from others.
    former_names: under which earlier versions stored series, by the names of these series now. started_at, ended_at: epoch
    seconds. status: a final status. running: True if the source says that its program still runs. group: what the loss belongs
    to, such as "eval"; "" for the training. result: final numbers by name. left_out: how many things of each kind have no place
    here. changed: how many values of each kind are stored as another number. remarks: sentences for the user."""

    tool: str
    identity: str
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    status: str = "finished"
    reason: str = ""
    running: bool = False
    group: str = ""
    former_identities: list[str] = field(default_factory=list)
    former_names: dict[str, str] = field(default_factory=dict)
    result: dict[str, float] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    _points: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)
    _taken_back: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)

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
        """Add the numbers in a value that was read from JSON. Numbers inside objects get names such as a/b, as in a live run.
        What is no number is counted."""
        if isinstance(value, str) and value in NONFINITE:
            value = float(value)
        if isinstance(value, int | float):
            self.add(name, step, as_float(value))
        elif isinstance(value, dict) and "_type" not in value:
            for key, inner in value.items():
                self.former_names[f"{name}/{key}"] = f"{self.former_names.get(name, name)}.{key}"
                self.add_json(f"{name}/{key}", step, inner)
        elif value is not None:
            kind = value.get("_type") if isinstance(value, dict) else "list" if isinstance(value, list) else "text"
            self.left_out[f"values of the kind {str(kind)[:40]}"] += 1

    def saw(self, at: float | None) -> None:
        """Extend the time of the run to this moment, in epoch seconds."""
        if at is not None and 0 < at < 1e11:
            self.started_at = at if self.started_at is None else min(self.started_at, at)
            self.ended_at = at if self.ended_at is None else max(self.ended_at, at)

    def drop_from(self, step: int) -> None:
        """Take back the points at this step and later ones: the program went back."""
        for name, (steps, values) in self._points.items():
            kept = [(s, v) for s, v in zip(steps, values, strict=True) if s < step]
            dropped = [(s, v) for s, v in zip(steps, values, strict=True) if s >= step]
            old_steps, old_values = self._taken_back.setdefault(name, (array("q"), array("d")))
            old_steps.extend(s for s, _ in dropped)
            old_values.extend(v for _, v in dropped)
            self.left_out["values that the program took back before it repeated their steps"] += len(dropped)
            steps[:], values[:] = array("q", [s for s, _ in kept]), array("d", [v for _, v in kept])

    @property
    def names(self) -> list[str]:
        """The names of the series, in the order of their first points."""
        return list(self._points)

    def series(self) -> dict[str, Points]:
        """Steps, int64 and ascending, and values, float64, of each series. The last value of each step counts."""
        found = {}
        for name in self._points:
            at, numbers = self._in_order(name)
            last = np.append(at[1:] != at[:-1], True) if len(at) else np.zeros(0, bool)
            found[name] = at[last], numbers[last]
        return found

    def values_at(self, name: str, step: int) -> list[float]:
        """All values that the source has for this step, also those that do not count."""
        found: list[float] = []
        for points in (self._points.get(name), self._taken_back.get(name)):
            if points is not None:
                at = np.flatnonzero(np.array(points[0], np.int64) == step)
                found += [points[1][i] for i in at]
        return found

    def count_losses(self) -> None:
        """Count the values that another one at their step replaces, and those that 32 bits cannot hold. Call it once."""
        with np.errstate(over="ignore", under="ignore"):
            for name in self._points:
                self._count_repeated(*self._in_order(name))
        for _, values in self.series().values():
            self._count_rounded(values)
        self.left_out, self.changed = +self.left_out, +self.changed

    def _in_order(self, name: str) -> Points:
        steps, values = self._points[name]
        at, numbers = np.array(steps, np.int64), np.array(values, np.float64)
        order = np.argsort(at, kind="stable")
        return at[order], numbers[order]

    def _count_repeated(self, at: np.ndarray, numbers: np.ndarray) -> None:
        replaced = np.flatnonzero(at[1:] == at[:-1])
        counting = numbers[np.searchsorted(at, at[replaced], "right") - 1]
        same = (numbers[replaced] == counting) | (np.isnan(numbers[replaced]) & np.isnan(counting))
        self.left_out["earlier values at a step that has a later, different value"] += int((~same).sum())
        self.left_out["repeated values at one step"] += int(same.sum())

    def _count_rounded(self, values: np.ndarray) -> None:
        size = np.abs(values)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            stored = values.astype(np.float32).astype(np.float64)
        above = np.isfinite(values) & (size > LARGEST_FLOAT32)
        whole = np.isfinite(values) & (size > EXACT_IN_FLOAT32) & (size <= EXACT_IN_FLOAT64) & (values == np.floor(values))
        self.changed["values beyond the range of 32 bits, which become the largest number"] += int(above.sum())
        self.changed["values below the range of 32 bits, which become 0"] += int(((stored == 0) & (values != 0)).sum())
        self.changed["whole numbers above 2^24, which are rounded to 32 bits"] += int((whole & (stored != values)).sum())

    def rename(self, old: str, new: str) -> None:
        """Give a series another name."""
        for points in (self._points, self._taken_back):
            renamed = {new if name == old else name: found for name, found in points.items()}
            points.clear()
            points.update(renamed)

    def continue_with(self, other: FoundRun) -> None:
        """Add what another file holds of the same run. The later end counts."""
        for name, (steps, values) in other._points.items():
            for step, value in zip(steps, values, strict=True):
                self.add(name, step, value)
        self.config |= other.config
        self.result |= other.result
        self.former_names |= other.former_names
        self.left_out += other.left_out
        self.remarks += other.remarks
        self.saw(other.started_at)
        self.saw(other.ended_at)
        self.status, self.reason, self.running = other.status, other.reason, other.running
