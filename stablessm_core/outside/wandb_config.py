"""The configuration and the summary of a run of `stablessm.init`, and what a program sets in them before `init`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from decimal import Decimal
from numbers import Real
from typing import Any

from stablessm_core.outside.configuration import entries_of
from stablessm_core.outside.metrics import value_of
from stablessm_core.outside.wandb_missing import tell

MAX_SUMMARY = 90  # numbers of a result that the server takes


class Config(MutableMapping[str, Any]):
    """A configuration, by `config["lr"]` or `config.lr`. The values are those that the program set.

    changed: receives all values after each change; a copy (`copy.copy`, `copy.deepcopy`, `pickle`) belongs to no run.
    """

    def __init__(self, values: Mapping[str, Any], changed: Callable[[dict[str, Any]], None] | None = None) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_changed", changed)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._report()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_values", "_changed"):  # they do not exist while a copy is made
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}; it has {', '.join(map(str, self._values))}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __copy__(self) -> Config:
        return Config(self._values)

    def __deepcopy__(self, memo: dict[int, Any]) -> Config:
        return Config(copy.deepcopy(self._values, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Config, (self._values,)

    def update(self, other: Any = (), /, allow_val_change: Any = None, **more: Any) -> None:  # noqa: ARG002
        """Set several values: of a dictionary, or of an object such as that of argparse. Every change is allowed."""
        self._values.update(as_entries(other), **more)
        self._report()

    def setdefaults(self, other: Any) -> None:
        """Set the values that are not set yet."""
        self.update({**as_entries(other), **self._values})

    def as_dict(self) -> dict[str, Any]:
        """A dictionary of the values."""
        return dict(self._values)

    def _report(self) -> None:
        if self._changed is not None:
            self._changed(self._values)


def as_entries(other: Any) -> dict[str, Any]:
    """The entries of a dictionary, of pairs, or of an object with attributes; None has none. Raises TypeError for others."""
    if isinstance(other, list | tuple):  # pairs, as dict.update takes
        return dict(other)
    fields, found = entries_of(other), {}
    for key in fields.keys():  # noqa: SIM118 - some configurations do not iterate over names
        try:
            found[key] = fields[key]
        except Exception as error:  # noqa: BLE001 - such as a missing value of OmegaConf
            tell(f"config.{key} cannot be read ({type(error).__name__}: {str(error)[:200]}); it is left out")
    return found


class Summary(MutableMapping[str, Any]):
    """The final numbers: those that the program sets, and the last logged value of every other name. The numbers that were set
    are the result of the run."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._set: dict[str, Any] = {}
        self._logged: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._set[name] if name in self._set else value_of(self._logged[name])

    def __setitem__(self, name: str, value: Any) -> None:
        one = value.item() if callable(getattr(value, "item", None)) and getattr(value, "ndim", 1) == 0 else value
        if not isinstance(one, Real | Decimal):
            self._say(f"summary: {name} is a {type(value).__name__}; only single numbers are stored")
        elif len(self._set) >= MAX_SUMMARY and name not in self._set:
            self._say(f"summary: only the first {MAX_SUMMARY} numbers are stored")
        self._set[name] = one

    def __delitem__(self, name: str) -> None:
        (self._set if name in self._set else self._logged).pop(name)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._logged, **self._set})

    def __len__(self) -> int:
        return len({**self._logged, **self._set})

    def numbers(self) -> dict[str, float]:
        """The numbers that were set, as the server takes them. One that float64 cannot hold is one sentence."""
        found: dict[str, float] = {}
        for name, value in self._set.items():
            try:
                if isinstance(value, Real | Decimal) and len(found) < MAX_SUMMARY:
                    found[str(name)[:100]] = float(value)
            except (OverflowError, ValueError):
                self._say(f"summary: {name} is beyond the numbers that float64 holds, 1.8e308; it is not stored")
        return found
