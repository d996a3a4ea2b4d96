"""A configuration keeps its numbers as numbers, and one bad entry removes no other."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import functools
import json
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.outside.arguments import check_arguments
from stablessm_core.outside.configuration import MAX_CONFIG_BYTES, size_of, storable_config
from stablessm_core.telemetry.free_json import check_json

INF = float("inf")


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Kind(str, enum.Enum):  # noqa: UP042 - as libraries for Python 3.10 write it
    FAST = "fast"


@dataclass
class Optim:
    lr: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.99)
    extra: Any = field(default_factory=lambda: np.float64(2))


class Settings:  # without a __repr__
    def __init__(self) -> None:
        self.depth, self.name = np.int16(3), "deep"


class Missing(dict[str, Any]):
    """As OmegaConf's mappings, some values raise."""

    def __getitem__(self, key: str) -> Any:
        if key == "absent":
            raise KeyError("mandatory value is missing")
        return super().__getitem__(key)


class Listed:
    """A mapping that is registered as none, as those of ml_collections."""

    def keys(self) -> list[str]:
        return ["a"]

    def __getitem__(self, key: str) -> int:
        return 1


Pair = collections.namedtuple("Pair", "x y")
CASES: list[tuple[Any, Any]] = [
    (np.int64(64), 64), (np.float32(0.1), float(np.float32(0.1))), (np.bool_(True), True), (np.array(0.001), 0.001),
    (np.array([0.9, 0.99]), [0.9, 0.99]), (np.uint8([[1], [2]]), [[1], [2]]), (np.float16(INF), "Infinity"),
    (np.longdouble(0.5), 0.5), (np.str_("x"), "x"), (np.datetime64("2026-01-02"), "2026-01-02"), (np.ma.masked, None),
    (np.ma.array([1, 2], mask=[False, True]), [1, None]),
    (torch.tensor(3), 3), (torch.tensor([0.5], requires_grad=True), [0.5]), (torch.tensor(0.25, dtype=torch.bfloat16), 0.25),
    (torch.float32, "torch.float32"), (torch.device("cuda:1"), "cuda:1"), (np.dtype("int8"), "int8"),
    (np.float32, "numpy.float32"),
    (decimal.Decimal("0.1"), 0.1), (decimal.Decimal("0.12345678901234567890123"), "0.12345678901234567890123"),
    (decimal.Decimal("NaN"), "NaN"), (decimal.Decimal("-Infinity"), "-Infinity"), (fractions.Fraction(1, 4), 0.25),
    (fractions.Fraction(6, 3), 2), (math.nan, "NaN"), (-INF, "-Infinity"), (-0.0, -0.0), (2**63 - 1, 2**63 - 1),
    (Colour.RED, "RED"), (Colour.BLUE, "blue"), (Kind.FAST, "fast"), (Path("/a/b"), "/a/b"),
    (Optim(), {"lr": 0.1, "betas": [0.9, 0.99], "extra": 2.0}), (Settings(), {"depth": 3, "name": "deep"}),
    (argparse.Namespace(x=np.int8(3)), {"x": 3}), (types.SimpleNamespace(x=(1, 2)), {"x": [1, 2]}), (Listed(), {"a": 1}),
    (Pair(1, 2), {"x": 1, "y": 2}), ({3, 1, 2}, [1, 2, 3]), (frozenset({"b", "a"}), ["a", "b"]), (range(3), [0, 1, 2]),
    (collections.deque([1]), [1]), ({1: 2, None: 3, Colour.RED: 4}, {"1": 2, "None": 3, "RED": 4}), (b"ab", "ab"),
    (b"\xff", "ff"),
    (1 + 2j, "(1+2j)"), (datetime.date(2026, 1, 2), "2026-01-02"),
    (functools.partial(len, "x"), "functools.partial(<built-in function len>, 'x')"),
    (len, "len"), (Settings, f"{__name__}.Settings"), (torch.nn.ReLU(), "ReLU()"), (None, None), (True, True),
]  # fmt: skip


@pytest.mark.parametrize(("given", "stored"), CASES, ids=[f"{type(given).__name__}-{i}" for i, (given, _) in enumerate(CASES)])
def test_a_value_is_stored_as_what_it_is(given: Any, stored: Any) -> None:
    plain, told = storable_config({"x": given, "inside": {"y": [given]}})
    assert json.dumps(plain) == json.dumps({"x": stored, "inside": {"y": [stored]}})
    assert told == []


def _itself() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["me"] = found
    return found


def _nested(times: int, inner: Any) -> Any:
    return functools.reduce(lambda found, _: [found, found], range(times), inner)


@pytest.mark.parametrize("bad", [
    10**400, 10**6000, 2**63, -(2**64), np.uint64(2**63), "a\0b", "\ud800", _itself(), _nested(40, 1), Missing(absent=1),
    {"k" * 300: 1}, {"a\0": 1}, "y" * 70_000, list(range(100_000)), np.zeros(100_000), torch.empty(3, device="meta"),
    json.loads('{"a":' * 40 + "1" + "}" * 40), range(10**12), (i for i in range(3)), property(), {1: "a", "1": "b"},
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_one_bad_entry_removes_no_other_and_is_at_most_two_sentences(bad: Any) -> None:
    plain, told = storable_config({"lr": 0.1, "bad": bad, "depth": np.int64(4)})
    assert (plain["lr"], plain["depth"]) == (0.1, 4)
    check_json(plain, "config")
    assert all("config.bad" in sentence for sentence in told)
    assert 0 <= len(told) <= 2


def test_an_integer_above_63_bits_is_stored_exactly_as_text() -> None:
    plain, told = storable_config({"seed": 2**70, "huge": 10**6000})
    assert (int(plain["seed"]), int(plain["huge"], 0)) == (2**70, 10**6000)
    assert told[0] == "config.seed is an integer of 71 bits; allowed: at most 63 bits; it is stored as text"


def test_the_largest_entries_are_left_out_until_the_others_fit() -> None:
    plain, told = storable_config({"a": "x" * 40_000, "b": "é" * 15_000, "c": "z" * 50_000, "d": 1})
    assert set(plain) == {"b", "d"} or set(plain) == {"a", "d"}
    assert size_of(plain) <= MAX_CONFIG_BYTES
    assert "config.c" in told[0]
    exact = {"x": "y" * (MAX_CONFIG_BYTES - len('{"x":""}'))}
    assert storable_config(exact) == (exact, [])


class Fields:
    """An object whose values are attributes."""

    def __init__(self) -> None:
        self.lr, self.bad = 0.1, 2**80


@pytest.mark.parametrize("config", [
    {"lr": 0.1, "bad": 2**80}, argparse.Namespace(lr=0.1, bad=2**80), Fields(), Missing(lr=0.1, bad=2**80, absent=1),
])  # fmt: skip
def test_watch_refuses_what_init_stores_otherwise(config: Any) -> None:
    with pytest.raises(ValueError, match=r"^config cannot be stored: config.bad is an integer of 81 bits"):
        check_arguments(config=config)
    assert check_arguments(config=config, strict_config=False).config == {"lr": 0.1, "bad": str(2**80)}


def test_a_generator_of_the_program_is_not_consumed() -> None:
    numbers: Iterator[int] = iter(range(3))
    storable_config({"numbers": numbers})
    assert list(numbers) == [0, 1, 2]
