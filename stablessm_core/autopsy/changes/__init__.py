"""The changes that an autopsy tries, one module each: CHANGE describes the change and makes its trial.

A new file in this folder is a new change. The findings, the API, the command line, the page and the verdict read its words from
here. This module and the modules of the folder import torch only inside functions.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from stablessm_core.autopsy.change import Change


def _of_this_folder() -> dict[str, Change]:
    """The change of every module of this folder, by name, in the order in which they are tried if nothing is known."""
    found: list[Change] = [import_module(f"{__name__}.{module.name}").CHANGE for module in iter_modules(__path__)]
    return {change.name: change for change in sorted(found, key=lambda change: (change.place(""), change.name))}


CHANGES = _of_this_folder()


def in_order(kind: str) -> list[Change]:
    """The changes in the order in which they are tried for this kind of trouble."""
    return sorted(CHANGES.values(), key=lambda change: (change.place(kind), change.name))
