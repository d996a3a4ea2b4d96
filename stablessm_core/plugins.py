"""Tasks, layers and maps from other packages, found by their entry points. This module imports only the standard library."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import TypeVar

GROUPS = ("stablessm.tasks", "stablessm.layers", "stablessm.maps")
NAME_PATTERN = r"[a-z][a-z0-9_]{0,59}"

T = TypeVar("T")


def find_plug_ins(
    group: str, built_in: Mapping[str, T], check: Callable[[str, object], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """All objects of a group by name, built-in objects first; and the plug-ins that cannot be used, each with the reason.

    group: one of GROUPS. check: receives the name of an entry point and the loaded object, and returns the object. `check`
    raises ValueError, with the reason, if the object is not a valid plug-in.

    A plug-in that fails in any way is skipped with a warning in the log, so that it cannot keep the program from starting.
    """
    kind = group.removeprefix("stablessm.").removesuffix("s")
    found, refused = dict(built_in), {}
    for entry in _entry_points():
        if entry.group != group:
            continue
        try:
            found[entry.name] = _load(entry, kind, found, check)
        except Exception as error:  # noqa: BLE001 - another package's code may raise anything
            refused[entry.name] = f"{type(error).__name__}: {error}"
            _warn(f"{kind} {entry.name!r} of an installed package cannot be used: {refused[entry.name]}")
    return found, refused


def _load(entry: EntryPoint, kind: str, found: Mapping[str, T], check: Callable[[str, object], T]) -> T:
    """The object of the entry point. Raises ValueError for an invalid or taken name, and whatever the import raises."""
    if not re.fullmatch(NAME_PATTERN, entry.name):
        raise ValueError(f"the entry point is named {entry.name!r}; names have the form {NAME_PATTERN}")
    if entry.name in found:
        raise ValueError(f"the name is taken by {found[entry.name].__module__}")
    had_torch = "torch" in sys.modules
    plug_in = check(entry.name, entry.load())
    if not had_torch and "torch" in sys.modules:
        _warn(f"{kind} {entry.name!r} imports torch: {entry.value} makes every server process import it")
    return plug_in


@cache
def _entry_points() -> list[EntryPoint]:
    """The entry points of all GROUPS, found faster than by `entry_points(group=...)`, which parses every package's files."""
    found: list[EntryPoint] = []
    for package in distributions():
        if any(f"[{group}]" in (package.read_text("entry_points.txt") or "") for group in GROUPS):
            found += [entry for entry in package.entry_points if entry.group in GROUPS and entry not in found]
    return found


def _warn(message: str) -> None:
    import logging  # warnings are rare, and importing logging takes longer than loading this file

    logging.getLogger(__name__).warning(message)
