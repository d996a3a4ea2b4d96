"""One value that cannot be recorded takes no neighbour along, and each change of a value is one sentence."""

from __future__ import annotations

import decimal
import fractions
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import stablessm
from stablessm_core.outside.metrics import MetricReader, OnDevice, messages_of, value_of
from stablessm_core.telemetry.metrics import as_float32
from tests.core.outside.reading import read

INF = float("inf")


class Raises:
    def __float__(self) -> float:
        raise RuntimeError("no value yet")


class Eager:
    """A scalar of a library that has no `item`."""

    def __float__(self) -> float:
        return 0.5


def read_one(*given: Any) -> tuple[list[dict[str, Any]], list[str]]:
    told: list[str] = []
    reader = MetricReader(told.append)
    return [reader.read({"a": 1, "x": value, "b": 2}) for value in given], told


@pytest.mark.parametrize(("value", "sentence"), [
    (10**400, "allowed: numbers up to 1.8e308"), (-(10**400), "allowed: numbers up to 1.8e308"),
    (decimal.Decimal("1e400"), "allowed: numbers"), (fractions.Fraction(10**400), "allowed: numbers"),
    (np.longdouble("1e400"), "allowed: numbers"), ("0.5", "is a str ('0.5')"), (None, "is a NoneType"), (object(), "is a object"),
    ([1, 2], "is a list"), (np.zeros(3), "is a ndarray"), (1j, "is a complex"), (torch.zeros(2), "is a Tensor"),
    (np.timedelta64(3, "s"), "is a timedelta64"), (pd.NA, "is a NAType"), (np.ma.masked, "is masked, so it is missing"),
    (np.ma.array([1.0], mask=[True]), "is masked"), (Raises(), "RuntimeError: no value yet"),
    (torch.zeros((), device="meta"), "Tensor"),
    (decimal.Decimal("sNaN"), "cannot be read"), (float, "is a type"),
])  # fmt: skip
def test_what_is_no_number_is_one_sentence_and_its_neighbours_stay(value: Any, sentence: str) -> None:
    found, told = read_one(value, value, value)
    assert found == [{"a": 1.0, "b": 2.0}] * 3
    assert len(told) == 1
    assert told[0].startswith("log: x ")
    assert sentence in told[0]


@pytest.mark.parametrize("value", [
    1, 1.5, True, np.float16(0.5), np.int64(-3), np.array(2.0), np.array([[2.0]]), torch.tensor([1.25]), torch.tensor(True),
    decimal.Decimal("0.1"), fractions.Fraction(1, 3), math.nan, INF, -INF, np.float32(INF), decimal.Decimal("Infinity"), -0.0,
    2**24, 2**24 + 2, 2**60, 1e-45, 3.4028234663852886e38, Eager(), np.ma.array(1.0), pd.Series([3.0]), np.bool_(False),
])  # fmt: skip
def test_a_number_is_recorded_as_it_is_without_a_sentence(value: Any) -> None:
    (found,), told = read_one(value)
    expected = 0.5 if isinstance(value, Eager) else float(value.item() if hasattr(value, "item") else value)
    assert np.float64(found["x"]).tobytes() == np.float64(expected).tobytes()
    assert told == []


@pytest.mark.parametrize(("value", "stored", "sentence"), [
    (1e39, 3.4028234663852886e38, "float32 ends at 3.40282e38"), (-1e300, -3.4028234663852886e38, "float32 ends at"),
    (1e-60, 0.0, "so 0 is stored"), (decimal.Decimal("1e-400"), 0.0, "so 0 is stored"),
    (np.float64(-1e-46), -0.0, "so 0 is stored"), (2**24 + 1, 16777216.0, "which holds 16777216"),
    (np.int64(2**40 + 1), 2.0**40, "which holds 1099511627776"), (torch.tensor(2**53 + 1), 2.0**53, "9007199254740993"),
])  # fmt: skip
def test_what_float32_changes_is_told_once_and_never_becomes_infinite(value: Any, stored: float, sentence: str) -> None:
    found, told = read_one(value, value)
    assert as_float32([found[0]["x"]])[0] == np.float32(stored)
    assert len(told) == (1 if sentence else 0)
    assert sentence in "".join(told)


def test_each_name_is_told_once_and_many_names_are_counted_together() -> None:
    told: list[str] = []
    reader = MetricReader(told.append)
    for i in range(3):
        reader.read({f"n{k}": f"text {i}" for k in range(100)})
    assert len(told) == 21
    assert told[-1] == "log: more names have values that are not recorded as given"


def test_dictionaries_inside_become_paths_and_one_that_contains_itself_ends() -> None:
    values: dict[str, Any] = {"a": {"b": 1, 3: {"c": 2}}, "x": {"y": "text"}, "z": 4}
    values["me"] = values
    told: list[str] = []
    found = MetricReader(told.append).read(values)
    assert {name: found[name] for name in ("a/b", "a/3/c", "z")} == {"a/b": 1, "a/3/c": 2, "z": 4}
    assert any("nested deeper" in sentence for sentence in told)


def test_a_number_on_a_device_is_checked_when_it_is_read() -> None:
    told: list[str] = []
    reader = MetricReader(told.append)
    broken, large = (
        OnDevice(reader, "broken", torch.zeros((), device="meta")),
        OnDevice(reader, "large", torch.tensor(1e300, dtype=torch.float64)),
    )
    (message,) = messages_of([(1, {"broken": broken, "large": large, "a": 1.0})])
    assert message.values["broken"] == [None]
    assert message.values["a"] == [1.0]
    assert value_of(OnDevice(reader, "x", torch.tensor(0.5))) == 0.5
    assert "log: broken cannot be read" in told[0]
    assert "log: large is 1e+300" in told[1]


def test_the_file_of_a_run_has_the_neighbours(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stablessm.log_only(mode="offline", dir=tmp_path) as run:
        for step in range(3):
            run.log({"a": step, "huge": 10**400 + step, "text": f"step {step}", "b": -step})
    assert {name: len(points) for name, points in read(tmp_path).metrics.items()} == {"a": 3, "b": 3}
    assert capfd.readouterr().err.count("log: ") == 2
