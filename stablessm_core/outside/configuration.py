"""The configuration of a run as JSON that every database of the server can store.

Numbers stay numbers, whichever library made them. An entry that cannot be stored as it is becomes one sentence; it never removes
another entry.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from stablessm_core.telemetry.free_json import MAX_DEPTH, MAX_INTEGER, MAX_JSON_BYTES, MAX_KEY, UNSTORABLE
from stablessm_core.telemetry.nonfinite import spelling

MAX_CONFIG_BYTES = MAX_JSON_BYTES
MAX_VALUES = 20_000  # of one entry; more do not fit into MAX_CONFIG_BYTES with their names
MAX_ELEMENTS = 2_000  # of an array; a larger one is described by its shape
MAX_TEXT = 500  # characters that describe an object
MAX_SENTENCES, MAX_SENTENCES_OF_ENTRY = 10, 2


def storable_config(config: Any, *, strict: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The configuration as plain JSON, and one sentence for each entry that is left out or stored differently.

    config: None, a dictionary, or an object with attributes such as that of argparse. NaN and infinities become their spellings.
    The result has at most MAX_CONFIG_BYTES as JSON: the largest entries are left out first. strict: raise ValueError instead, if
    an entry is too large, too deep, or no value that a database stores. Raises TypeError for anything else than a configuration.
    """
    told = _Told(strict)
    plain: dict[str, Any] = {}
    for key, value in _read_entries(entries_of(config), "config", told):
        about = _Told(strict)
        try:
            plain[key] = _Entry(about).plain(value, f"config.{key}", 1)
            told.sentences += about.sentences[:MAX_SENTENCES_OF_ENTRY]
        except NotStorable:
            raise
        except _TooManyValues:
            told.refuse(f"config.{key} has more than {MAX_VALUES:,} values", "it is left out")
        except Exception as error:  # noqa: BLE001 - an object of the program raises while it is read
            told.add(f"config.{key} cannot be read ({type(error).__name__}: {str(error)[:200]}); it is left out")
    _leave_out_largest(plain, told)
    found = told.sentences
    if (more := len(found) - MAX_SENTENCES) > 0:
        found[MAX_SENTENCES:] = [f"{more} more values of config are left out or stored differently"]
    return plain, found


class NotStorable(ValueError):
    """A configuration that the server would refuse."""


class _Told:
    """The sentences about a configuration."""

    def __init__(self, strict: bool) -> None:
        self.sentences: list[str] = []
        self._strict = strict

    def add(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def refuse(self, why: str, result: str) -> None:
        """The server would refuse this. why: what was given and what is allowed. result: what is done, unless this raises."""
        if self._strict:
            raise NotStorable(f"config cannot be stored: {why}")
        self.add(f"{why}; {result}")


def size_of(plain: Any) -> int:
    """The bytes of a value as JSON."""
    return len(json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode())


def entries_of(config: Any) -> Any:
    """The entries of a configuration by name: a mapping, or an object with keys and items. Raises TypeError if it has none."""
    if config is None:
        return {}
    if (fields := _fields_of(config)) is not None:
        return fields
    if not hasattr(config, "__dict__") or isinstance(config, type):
        raise TypeError(f"config is a {type(config).__name__}; a dictionary, or an object with attributes, is needed")
    return vars(config)


def _fields_of(value: Any) -> Any:
    """What can be read by name: a mapping, or the fields of a dataclass and its kin; None for other objects."""
    if isinstance(value, type):
        return None
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    for method in ("model_dump", "flag_values_dict", "to_dict"):  # pydantic, absl, transformers
        if (
            not hasattr(value, "dtype")
            and callable(read := getattr(value, method, None))
            and isinstance(found := read(), Mapping)
        ):
            return found
    return None


def _read_entries(fields: Any, place: str, told: _Told) -> Iterable[tuple[str, Any]]:
    """The entries with storable names, each name once. An entry that raises is one sentence."""
    seen: set[str] = set()
    for given in list(fields.keys()):
        key = given.name if isinstance(given, Enum) and not isinstance(given, str) else str(given)
        if isinstance(given, Enum) and isinstance(given, str):
            key = given.value
        if len(key) > MAX_KEY or UNSTORABLE.search(key):
            why = f"{place} has the name {ascii(key)[:60]}; allowed: at most {MAX_KEY} characters without NUL"
            told.refuse(why, "it is left out")
            continue
        if key in seen:
            told.add(f"{place} has two entries with the name {key!r}; the last one is stored")
        seen.add(key)
        try:
            value = fields[given]
        except Exception as error:  # noqa: BLE001 - such as a missing value of OmegaConf
            told.add(f"{place}.{key} cannot be read ({type(error).__name__}: {str(error)[:200]}); it is left out")
        else:
            yield key, value


def _leave_out_largest(plain: dict[str, Any], told: _Told) -> None:
    sizes = {key: size_of({key: value}) - 1 for key, value in plain.items()}  # with the comma or brace
    total = sum(sizes.values()) + 1
    for key in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if total <= MAX_CONFIG_BYTES:
            return
        why = f"config has {total:,} bytes as JSON, of them config.{key} {sizes[key]:,}; allowed: {MAX_CONFIG_BYTES:,}"
        told.refuse(why, f"config.{key} is left out")
        total -= sizes[key]
        del plain[key]


class _TooManyValues(Exception):
    pass


class _Entry:
    """Reads the values of one entry. told: receives sentences."""

    def __init__(self, told: _Told) -> None:
        self._told = told
        self._left = MAX_VALUES
        self._inside: set[int] = set()  # containers around the value, so that one that contains itself ends

    def plain(self, value: Any, place: str, depth: int) -> Any:
        """The value as JSON. depth: of the value, 1 for an entry of the configuration."""
        self._left -= 1
        if self._left < 0:
            raise _TooManyValues
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum):
            simple = isinstance(value, str | int | float) or isinstance(value.value, str)
            return self.plain(value.value if simple else value.name, place, depth)
        if isinstance(value, str):
            return self._text(str(value), place)
        if isinstance(value, int):
            return self._integer(int(value), place)
        if isinstance(value, float):
            return spelling(value) or float(value)
        if isinstance(value, Decimal | Fraction):
            return self._exact(value, place)
        if hasattr(value, "shape") and not isinstance(value, type | np.dtype):
            return self._array(value, place, depth)
        return self._container(value, place, depth)

    def _text(self, text: str, place: str) -> str:
        if not UNSTORABLE.search(text):
            return text
        self._told.refuse(
            f"{place} contains NUL or half of a surrogate pair, which databases cannot store", "\\ufffd stands there"
        )
        return UNSTORABLE.sub("\ufffd", text)

    def _integer(self, value: int, place: str) -> int | str:
        if abs(value) < MAX_INTEGER:
            return value
        self._told.refuse(
            f"{place} is an integer of {value.bit_length():,} bits; allowed: at most 63 bits", "it is stored as text"
        )
        try:
            return str(value)
        except ValueError:  # Python writes no more than some thousand decimal digits
            return hex(value)

    def _exact(self, value: Decimal | Fraction, place: str) -> Any:
        """A number if a double has this value in its shortest spelling, or is the nearest to a fraction; otherwise text."""
        if isinstance(value, Decimal) and not value.is_finite():
            return spelling(math.nan if value.is_nan() else float(value))
        if isinstance(value, Fraction) and value.denominator == 1:
            return self._integer(value.numerator, place)
        try:
            number = float(value)
            if isinstance(value, Fraction) or Decimal(repr(number)) == value:
                return number
        except OverflowError:
            pass
        return str(value)

    def _array(self, value: Any, place: str, depth: int) -> Any:
        """The elements of an array or tensor of any library, as a number or as nested lists."""
        if isinstance(value, np.longdouble) and not isinstance(value, float):
            number = float(value)
            return (spelling(number) or number) if number == value or np.isnan(value) else str(value)
        tensor = value.detach() if callable(getattr(value, "detach", None)) else value
        tensor = tensor if hasattr(tensor, "tolist") or not callable(getattr(tensor, "numpy", None)) else tensor.numpy()
        elements = None
        if math.prod(_shape(value)) <= MAX_ELEMENTS:
            with suppress(Exception):  # a tensor without data, such as one on the meta device
                elements = tensor.tolist()
        if elements is None and not np.ma.is_masked(value):
            described = f"{type(value).__name__} of shape {_shape(value)}"
            self._told.add(f"{place} is a {described}; allowed: at most {MAX_ELEMENTS:,} elements; only its shape is stored")
            return described
        return str(elements) if isinstance(elements, type(value)) else self.plain(elements, place, depth)

    def _container(self, value: Any, place: str, depth: int) -> Any:
        fields = _fields_of(value)
        if fields is None and getattr(type(value), "__repr__", None) is object.__repr__ and not callable(value):
            fields = getattr(value, "__dict__", None) or None  # an object that only its attributes describe
        items = sorted(value, key=_order) if isinstance(value, Set) else value
        if fields is None and (isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(items, Sequence | list)):
            return self._text(described_as(value), place)
        if depth >= MAX_DEPTH - 1 or id(value) in self._inside:
            why = "contains itself" if id(value) in self._inside else f"is nested deeper than {MAX_DEPTH - 2} levels"
            self._told.refuse(f"{place[:200]} {why}", "its type is stored")
            return type(value).__name__
        self._inside.add(id(value))
        try:
            if fields is not None:
                found = _read_entries(fields, place, self._told)
                return {key: self.plain(item, f"{place}.{key}", depth + 1) for key, item in found}
            if len(items) > self._left:
                raise _TooManyValues
            return [self.plain(item, f"{place}.{i}", depth + 1) for i, item in enumerate(items)]
        finally:
            self._inside.discard(id(value))


def _shape(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, "shape", ()))


def _order(value: Any) -> tuple[str, Any]:
    """Sorts a set in the same order in every process: by the kind of its members, then by value."""
    number = isinstance(value, int | float) and value == value
    return ("", value) if number else (type(value).__name__, str(value))


def described_as(value: Any) -> str:
    """A readable text for an object, without addresses of memory, which differ in every process."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}".removeprefix("builtins.")
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.hex()
    if isinstance(value, date | time):
        return value.isoformat()
    text = str(value)
    if isinstance(value, timedelta | complex) or " at 0x" not in text:
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
