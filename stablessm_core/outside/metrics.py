"""Free metrics on their way from `run.log` to messages. Numbers on a device are copied there and read on another thread."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from stablessm_core.report.messages import MetricsMessage
from stablessm_core.telemetry.limits import MAX_STEP
from stablessm_core.telemetry.metrics import MAX_METRICS, MAX_STEPS, MAX_VALUES, name_error

Logged = tuple[int, dict[str, Any]]

# a record holds the numbers as text; the server takes at most 1 MiB of it
RECORD_BYTES, VALUE_BYTES = 1 << 19, 26


def as_step(step: Any) -> int | None:
    """The step as a whole number below 2^53; None if it is none. Takes the whole numbers of NumPy and torch, and 3.0."""
    try:
        whole = int(step)
        return whole if whole == step and 0 <= whole <= MAX_STEP else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def as_numbers(values: Mapping[str, Any], complain: Callable[[str], None], prefix: str = "") -> dict[str, Any]:
    """The numbers among the values by name, flattened; a tensor on a device stays a tensor, copied, so that nobody waits.

    complain: receives one sentence for each name whose value is no number.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= as_numbers(value, complain, f"{name}/")
            continue
        if wrong := name_error(name):
            complain(f"log: {name[:80]!r} is no name of a metric; allowed: {wrong}")
            continue
        if hasattr(type(value), "why_not_recorded"):  # an object of W&B, which has told the user already (wandb_missing.py)
            continue
        number = _number(value)
        if number is None:
            complain(f"log: {name} is a {type(value).__name__}; only single numbers are recorded")
        else:
            found[name] = number
    return found


def _number(value: Any) -> Any:
    if isinstance(value, numbers.Real):  # Python's numbers and NumPy's scalars
        return float(value)
    if not hasattr(value, "numel"):
        item = getattr(value, "item", None)
        if getattr(value, "size", None) != 1 or not callable(item):
            return None
        one = item()
        return float(one) if isinstance(one, numbers.Real) else None
    if value.numel() != 1 or value.is_complex() or value.is_meta:
        return None
    detached = value.detach()
    return float(detached) if detached.device.type == "cpu" else detached.clone()


def messages_of(logged: list[Logged]) -> Iterator[MetricsMessage]:
    """The messages of what was logged, in order. What was logged under the same names shares a message."""
    for keys, together in groupby(logged, key=lambda one: tuple(one[1])):
        rows = [(step, {name: float(v) for name, v in values.items()}) for step, values in together]
        for names in (keys[i : i + MAX_METRICS] for i in range(0, len(keys), MAX_METRICS)):
            at_once = max(1, min(MAX_STEPS, MAX_VALUES // len(names), RECORD_BYTES // (VALUE_BYTES * len(names))))
            for i in range(0, len(rows), at_once):
                part = rows[i : i + at_once]
                yield MetricsMessage([step for step, _ in part], {name: [values[name] for _, values in part] for name in names})
