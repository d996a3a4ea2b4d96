"""Starts the runs of the adapters, and keeps errors of an adapter out of the loop of its framework."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import stablessm
from stablessm_core.outside.arguments import check_arguments
from stablessm_core.outside.configuration import MAX_CONFIG_BYTES, size_of, storable_config
from stablessm_core.outside.eigenvalues import Declared
from stablessm_core.outside.options import RunOptions
from stablessm_core.outside.run import Run

P = ParamSpec("P")
T = TypeVar("T")

CANCELLED = "cancelled", "Cancel was pressed"
AFTER_END = "numbers were logged after the end of the run; keep_open=True keeps it open after the training"


class WatchArguments(RunOptions, total=False):
    """The arguments of `stablessm.watch` that every adapter takes."""

    every: int
    layers: Mapping[str, Declared] | None


def check(adapter: str, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError if an argument is wrong, before the training starts."""
    if unknown := sorted(arguments.keys() - WatchArguments.__annotations__.keys()):
        raise TypeError(f"{adapter} has no argument {unknown[0]!r}; allowed: {', '.join(WatchArguments.__annotations__)}")
    given: dict[str, Any] = {name: value for name, value in arguments.items() if name != "layers"}
    given["from_step"] = given.get("from_step") or 0  # the adapter knows it when the training starts
    check_arguments(**given)


def no_run() -> Run:
    """A run that does nothing: before the training starts, and on ranks other than 0."""
    return stablessm.log_only(mode="disabled")


def start(model: Any, optimizer: Any, arguments: Mapping[str, Any], facts: Mapping[str, Any]) -> Run:
    """The run of this training; a run that does nothing if it cannot be watched, after one sentence on the terminal.

    model: None reports numbers without a model. facts: what the framework knows of the training, for the run's configuration. The
    user's configuration comes first where names are equal, and stands alone if both together are too large.
    """
    given = dict(arguments)
    try:
        (known, about_known), (own, about_own) = storable_config(facts), storable_config(given.get("config"))
        for sentence in (*about_own, *about_known):
            say(sentence)
        both = {**known, **own}
        given["config"] = both if size_of(both) <= MAX_CONFIG_BYTES else own
        if model is None:
            given = {name: value for name, value in given.items() if name not in ("every", "layers")}
            return stablessm.log_only(**given)
        return stablessm.watch(model, optimizer, **given)
    except Exception as error:  # noqa: BLE001 - nothing raises inside the framework's loop
        say(f"this training is not watched ({type(error).__name__}: {error}); it goes on")
        return no_run()


def quiet(method: Callable[P, T]) -> Callable[P, T | None]:
    """Make a method report an error in one sentence instead of raising it into the framework's loop."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - nothing raises inside the framework's loop
            say(f"{method.__name__} failed ({type(error).__name__}: {error}); training goes on")
            return None

    return call


_said: set[str] = set()


def say(sentence: str) -> None:
    """Tell the user one sentence on the terminal, once."""
    if sentence not in _said:
        _said.add(sentence)
        try:
            sys.stderr.write(f"stablessm: {sentence}\n")
        except (OSError, ValueError, AttributeError):  # a closed terminal
            pass
