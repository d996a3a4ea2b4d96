"""Free metrics: scalars that a program logs under names of its own, at any steps.

The names that are logged at the same steps share a group, so that one block holds all of them. See
`stablessm_core.telemetry.scattered` for how the points of such a block are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from stablessm_core.telemetry.limits import MAX_NAME, MAX_STEP
from stablessm_core.telemetry.scattered import empty

METRIC_GROUPS = "metrics/"  # prefix of the groups of free metrics: "metrics/0", "metrics/1", ...
GROUP_COLUMNS = 64  # most metrics in a group, because whoever reads one metric decodes its whole group
MAX_METRICS = 2000  # of one run
MAX_STEPS = 2048  # points of one message
MAX_VALUES = 1 << 20  # steps times names of one message
_LARGEST = float(np.finfo(np.float32).max)


def is_metric_group(group: str) -> bool:
    """True for a group of free metrics, whose points lie at any steps."""
    return group.startswith(METRIC_GROUPS)


def check_metrics(steps: object, values: object) -> None:
    """Raises ValueError, which names the field, what was given and what is allowed, unless these are the fields of a
    MetricsMessage."""
    if not isinstance(steps, Sequence) or isinstance(steps, str | bytes) or not 1 <= len(steps) <= MAX_STEPS:
        raise _wrong("steps", steps, f"a list of 1 to {MAX_STEPS:,} steps")
    for step in steps:
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            raise _wrong("steps", step, "whole numbers from 0 to 2^53 - 1")
    if not isinstance(values, Mapping) or not 1 <= len(values) <= MAX_METRICS or len(values) * len(steps) > MAX_VALUES:
        raise _wrong("values", values, f"1 to {MAX_METRICS:,} metrics by name, and at most {MAX_VALUES:,} values")
    for name, numbers in values.items():
        if error := name_error(name):
            raise _wrong("values", name, error)
        if not isinstance(numbers, Sequence) or isinstance(numbers, str | bytes) or len(numbers) != len(steps):
            raise _wrong(f"values.{name}", numbers, f"a list with one number or null for each of the {len(steps):,} steps")
        for number in numbers:
            if number is not None and type(number) not in (int, float):
                raise _wrong(f"values.{name}", number, "numbers, NaN, infinities and null")


def name_error(name: object) -> str:
    """What is allowed as the name of a metric, if `name` is not; "" if it is."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or name != name.strip():
        return f"names of 1 to {MAX_NAME} characters without spaces at the ends"
    if not name.isprintable() or any(part in (".", "..") for part in name.split("/")):
        return "names of printable characters, without the parts . and .. between slashes"
    return "names that do not begin with ssm/, which names the series of layers" if name.startswith("ssm/") else ""


def as_float32(numbers: Sequence[float | None]) -> np.ndarray:
    """The numbers as they are stored; None becomes ABSENT. A finite number beyond float32 becomes the largest finite float32, so
    that only what was logged as infinite is infinite."""
    found: np.ndarray = empty(1, len(numbers))[0]
    for i, number in enumerate(numbers):
        if number is None:
            continue
        if isinstance(number, int) or math.isfinite(number):
            found[i] = min(max(number, -_LARGEST), _LARGEST)
        else:
            found[i] = np.float32(math.nan) if math.isnan(number) else number
    return found


def _wrong(field: str, given: object, allowed: str) -> ValueError:
    return ValueError(f"{field} is {repr(given)[:80]}; allowed: {allowed}")
