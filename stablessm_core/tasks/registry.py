"""Which tasks there are: ours, and those that installed packages add through the entry-point group `stablessm.tasks`.

A task of ours is one folder here and one line in BUILT_IN. docs/extending.md shows both ways.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint, distributions
from typing import Literal, get_args, get_origin

from stablessm_core.tasks.associative_recall.section import AssociativeRecall
from stablessm_core.tasks.char_lm.section import CharLm
from stablessm_core.tasks.cifar10.section import Cifar10
from stablessm_core.tasks.copying.section import Copying
from stablessm_core.tasks.digits.section import Digits
from stablessm_core.tasks.induction_heads.section import InductionHeads
from stablessm_core.tasks.listops.section import Listops
from stablessm_core.tasks.mnist.section import Mnist
from stablessm_core.tasks.modular_counting.section import ModularCounting
from stablessm_core.tasks.multi_query_recall.section import MultiQueryRecall
from stablessm_core.tasks.pathfinder.section import Pathfinder
from stablessm_core.tasks.polynomial_memory.section import PolynomialMemory
from stablessm_core.tasks.section import TaskSection

BUILT_IN: tuple[type[TaskSection], ...] = (
    PolynomialMemory,
    Digits,
    Mnist,
    Cifar10,
    Pathfinder,
    AssociativeRecall,
    MultiQueryRecall,
    InductionHeads,
    Copying,
    Listops,
    ModularCounting,
    CharLm,
)

GROUP = "stablessm.tasks"
NAME_PATTERN = r"[a-z][a-z0-9_]{0,59}"


def _name_of(section: type[TaskSection]) -> str:
    annotation = section.model_fields["name"].annotation
    names = get_args(annotation) if get_origin(annotation) is Literal else ()
    if len(names) != 1 or not isinstance(names[0], str) or not re.fullmatch(NAME_PATTERN, names[0]):
        raise ValueError(f'{section.__name__}.name must be Literal["..."] with one name of the form {NAME_PATTERN}')
    return names[0]


def _from_plug_in(entry: EntryPoint, known: dict[str, type[TaskSection]]) -> type[TaskSection]:
    """The section that an entry point names. Raises whatever its import raises, ValueError if it does not fit."""
    had_torch = "torch" in sys.modules
    section = entry.load()
    if not (isinstance(section, type) and issubclass(section, TaskSection)):
        raise ValueError(f"{entry.value} is no subclass of {TaskSection.__module__}.TaskSection")
    if _name_of(section) != entry.name:
        raise ValueError(f"the entry point is named {entry.name!r}, its section {_name_of(section)!r}")
    if entry.name in known:
        raise ValueError(f"the name is taken by {known[entry.name].__module__}")
    if not re.fullmatch(r"[\w.]+:\w+", getattr(section, "trained_by", "")):
        raise ValueError(f'{entry.value} must set trained_by = "module:name"')
    if not had_torch and "torch" in sys.modules:
        _warn(f"task {entry.name!r} imports torch with its section: {entry.value} does so in every server process")
    return section


def _entry_points() -> list[EntryPoint]:
    # what `entry_points(group=GROUP)` gives, without taking apart the files of packages that have nothing for us
    found = []
    for package in distributions():
        if GROUP in (package.read_text("entry_points.txt") or ""):
            found += [entry for entry in package.entry_points if entry.group == GROUP and entry not in found]
    return found


def _find() -> tuple[dict[str, type[TaskSection]], dict[str, str]]:
    found, refused = {_name_of(section): section for section in BUILT_IN}, {}
    for entry in _entry_points():
        try:
            found[entry.name] = _from_plug_in(entry, found)
        except Exception as error:  # noqa: BLE001 - another package's code; ours must start without it
            refused[entry.name] = f"{type(error).__name__}: {error}"
            _warn(f"task {entry.name!r} of an installed package cannot be used: {refused[entry.name]}")
    return found, refused


def _warn(message: str) -> None:
    import logging  # costs more than the rest of this file, and is hardly ever needed

    logging.getLogger(__name__).warning(message)


TASKS, REFUSED = _find()  # sections by name; plug-ins that cannot be used, with the reason
