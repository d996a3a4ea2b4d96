"""Free metrics on their way from `run.log` to messages. Numbers on a device are copied there and read on another thread.

One value that cannot be recorded becomes one sentence for its name. It never removes the values beside it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import groupby
from typing import Any

import numpy as np

from stablessm_core.report.messages import MetricsMessage
from stablessm_core.telemetry.free_json import shown
from stablessm_core.telemetry.limits import MAX_STEP
from stablessm_core.telemetry.metrics import MAX_METRICS, MAX_STEPS, MAX_VALUES, name_error

Logged = tuple[int, dict[str, Any]]

# a record holds the numbers as text; the server takes at most 1 MiB of it
RECORD_BYTES, VALUE_BYTES = 1 << 19, 26
MAX_DEPTH = 16  # of nested dictionaries
MAX_TOLD = 20  # names of one run that sentences name
LARGEST = float(np.finfo(np.float32).max)
ROUNDED_TO_ZERO = 2.0**-150  # the largest number that float32 rounds to 0
EXACT_INTEGERS = 1 << 24  # float32 holds each integer up to here


def as_step(step: Any) -> int | None:
    """The step as a whole number below 2^53; None if it is none. Takes the whole numbers of NumPy and torch, and 3.0."""
    try:
        whole = int(step)
        return whole if whole == step and 0 <= whole <= MAX_STEP else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


class MetricReader:
    """Reads the numbers that a program logs. complain: receives a sentence, once for each name and kind of trouble."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._told: set[tuple[str, str]] = set()

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers among the values by name, as float or OnDevice. The values of a dictionary a are named a/..."""
        found: dict[str, Any] = {}
        self._read(values, "", MAX_DEPTH, found)
        return found

    def _read(self, values: Mapping[Any, Any], prefix: str, depth: int, found: dict[str, Any]) -> None:
        if depth == 0:
            self.tell(prefix[:80], "depth", f"is nested deeper than {MAX_DEPTH} dictionaries; the rest is not recorded")
            return
        for key in values:
            name = prefix
            try:
                name = f"{prefix}{key}"
                value = values[key]
                if isinstance(value, Mapping):
                    self._read(value, f"{name}/", depth - 1, found)
                elif wrong := name_error(name):
                    self.tell(repr(name[:80]), "name", f"is no name of a metric; allowed: {wrong}")
                elif (number := self._number(name, value)) is not None:
                    if name in found:
                        self.tell(name, "twice", "is in one call twice; the last value counts")
                    found[name] = number
            except Exception as error:  # noqa: BLE001 - an object of the program raises while it is read
                self.tell(name, "raises", f"cannot be read ({type(error).__name__}: {str(error)[:200]}); it is not recorded")

    def _number(self, name: str, value: Any) -> float | OnDevice | None:
        if type(value) is float:
            return self.checked(name, value)
        if hasattr(type(value), "why_not_recorded"):  # an object of W&B, which has told the user already (wandb_missing.py)
            return None
        if callable(getattr(value, "numel", None)):
            if value.numel() != 1 or value.is_complex() or getattr(value, "is_meta", False):
                return self._refuse(name, value)
            tensor = value.detach()
            return self.checked(name, tensor.item()) if tensor.device.type == "cpu" else OnDevice(self, name, tensor.clone())
        if isinstance(value, np.timedelta64):  # NumPy calls it an integer, of a unit that nobody would know
            return self._refuse(name, value)
        if isinstance(value, numbers.Real | Decimal):
            return self.checked(name, value)
        if type(value).__module__.startswith("numpy.ma") and value.size == 1 and np.all(value.mask):
            self.tell(name, "masked", "is masked, so it is missing; nothing is recorded for it")
            return None
        if callable(item := getattr(value, "item", None)):
            one = item() if getattr(value, "size", None) == 1 else None
            return self.checked(name, one) if isinstance(one, numbers.Real | Decimal) else self._refuse(name, value)
        if not isinstance(value, str | bytes) and hasattr(type(value), "__float__") and not isinstance(value, complex):
            return self.checked(name, float(value))
        return self._refuse(name, value)

    def _refuse(self, name: str, value: Any) -> float | None:
        given = f" ({shown(value)})" if isinstance(value, str) else ""
        self.tell(name, "kind", f"is a {type(value).__name__}{given}; only single numbers are recorded")
        return None

    def checked(self, name: str, value: Any) -> float | None:
        """The float64 nearest to the value; None if there is none. What float32, in which numbers are stored, changes much is
        told."""
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        if math.isinf(number) and number != value:
            given = shown(value) if isinstance(value, int) else str(value)[:40]
            self.tell(name, "huge", f"is {given}; allowed: numbers up to 1.8e308, and infinities; it is not recorded")
            return None
        if LARGEST < abs(number) < math.inf:
            self.tell(name, "large", f"is {number:.6g}; float32 ends at 3.40282e38, so that number is stored with its sign")
        elif abs(number) <= ROUNDED_TO_ZERO and value != 0:
            self.tell(name, "small", f"is {str(value)[:40]}; float32 has no number other than 0 so near to 0, so 0 is stored")
        elif isinstance(value, numbers.Integral) and abs(number) > EXACT_INTEGERS and int(np.float32(number)) != int(value):
            self.tell(name, "whole", f"is {value}; numbers are stored as float32, which holds {int(np.float32(number))}")
        return number

    def tell(self, name: str, kind: str, sentence: str) -> None:
        """Say the sentence about the name, unless this kind of sentence was said about it."""
        if (name, kind) in self._told or len(self._told) > MAX_TOLD:
            return
        self._told.add((name, kind))
        more = len(self._told) > MAX_TOLD
        self._complain("log: more names have values that are not recorded as given" if more else f"log: {name} {sentence}")


class OnDevice:
    """A copy of a number on a device, which another thread reads, so that the program does not wait."""

    def __init__(self, reader: MetricReader, name: str, tensor: Any) -> None:
        self._reader, self._name, self._tensor = reader, name, tensor

    def read(self) -> float | None:
        """The number; waits for the device. None, after a sentence, if it cannot be read."""
        try:
            return self._reader.checked(self._name, self._tensor.item())
        except Exception as error:  # noqa: BLE001 - one number of a broken device must not remove the others
            self._reader.tell(self._name, "raises", f"cannot be read ({type(error).__name__}); it is not recorded")
            return None


def value_of(number: float | OnDevice) -> float | None:
    """The number, wherever it is."""
    return number.read() if isinstance(number, OnDevice) else number


def messages_of(logged: list[Logged]) -> Iterator[MetricsMessage]:
    """The messages of what was logged, in order. What was logged under the same names shares a message."""
    for keys, together in groupby(logged, key=lambda one: tuple(one[1])):
        rows = [(step, {name: value_of(v) for name, v in values.items()}) for step, values in together]
        for names in (keys[i : i + MAX_METRICS] for i in range(0, len(keys), MAX_METRICS)):
            at_once = max(1, min(MAX_STEPS, MAX_VALUES // len(names), RECORD_BYTES // (VALUE_BYTES * len(names))))
            for i in range(0, len(rows), at_once):
                part = rows[i : i + at_once]
                yield MetricsMessage([step for step, _ in part], {name: [values[name] for _, values in part] for name in names})
