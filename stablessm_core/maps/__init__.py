"""All maps lambda = f(w): the modules of this folder, and the maps of installed packages (entry points `stablessm.maps`).

docs/extending.md shows how to add a map in either way. This module imports neither torch nor numpy.
"""

from __future__ import annotations

import math
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from stablessm_core.map import Formulas, Map
from stablessm_core.plugins import find_plug_ins

PROBED_WEIGHTS = (-1.7, -0.6, 0.3, 1.9)


def _built_in() -> dict[str, Map]:
    """The map of every module of this folder, by name."""
    maps: list[Map] = [import_module(f"{__name__}.{module.name}").MAP for module in iter_modules(__path__)]
    return {map_.name: map_ for map_ in sorted(maps, key=lambda map_: (map_.order, map_.name))}


def _checked(name: str, plug_in: object) -> Map:
    """The checked map of another package. Raises ValueError if the object is not a map or has contradictory formulas."""
    import numpy as np  # imported here, so that installations without plug-ins start without numpy

    if not isinstance(plug_in, Map):
        raise ValueError(f"it is no {Map.__module__}.Map")
    if plug_in.name != name:
        raise ValueError(f"the entry point is named {name!r}, its map {plug_in.name!r}")
    if not plug_in.forms or any(time != form.time for time, form in plug_in.forms.items()):
        raise ValueError("it has no formulas by time; give them as by_time(...)")
    w = np.array(PROBED_WEIGHTS)
    h = 1e-6
    for time, form in plug_in.forms.items():
        formulas_ = form(np, b=max(0.5, form.least_b))
        lambda_ = formulas_.f(w)
        slope = (formulas_.f(w + h) - formulas_.f(w - h)) / (2 * h)
        if not np.isfinite(lambda_).all():
            raise ValueError(f"{time} f(w) is not finite at w = {PROBED_WEIGHTS}")
        if not np.allclose(formulas_.f(formulas_.inverse(lambda_)), lambda_, rtol=1e-6, atol=1e-9):
            raise ValueError(f"{time} inverse(f(w)) gives other eigenvalues than f(w) at w = {PROBED_WEIGHTS}")
        if not np.allclose(formulas_.derivative(w), slope, rtol=1e-4, atol=1e-7):
            raise ValueError(f"{time} derivative(w) is not the slope of f(w) at w = {PROBED_WEIGHTS}")
    return plug_in


# MAPS: the maps by name, in the order in which lists and charts show them. REFUSED: the unusable plug-ins, each with the
# reason.
MAPS, REFUSED = find_plug_ins("stablessm.maps", _built_in(), _checked)


def formulas(name: str, time: str, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Formulas:
    """The formulas of a map for arrays of the namespace `xp`. a and b are the constants of `best`; other maps ignore them.

    Raises ValueError for an unknown map or time, for a or b outside [1e-6, 1e6], and for a b so small that eigenvalues become
    unstable. The message contains the allowed values.
    """
    if name not in MAPS or time not in MAPS[name].forms:
        raise ValueError(f"reparameterization is {name!r} in {time!r} time; possible are {', '.join(possible_pairs())}")
    for letter, value in (("a", a), ("b", b)):
        if not (math.isfinite(value) and 1e-6 <= value <= 1e6):
            raise ValueError(f"{letter} is {value}; allowed: 1e-6 to 1e6")
    form = MAPS[name].forms[time]
    if b < form.least_b:
        raise ValueError(f"b is {b}; {time} {name!r} needs b >= {form.least_b}, so that lambda = {form.text} >= -1")
    return form(xp, float(a), float(b))


def possible_pairs() -> list[str]:
    """Every map with each of its times, such as "tanh (discrete)"."""
    return [f"{name} ({time})" for name, map_ in MAPS.items() for time in map_.forms]


def default_eigenvalue_range(time: str) -> tuple[float, float]:
    """The default range of initial eigenvalues. Every map can reach this range, which gives long but not extreme memory.

    In continuous time, step sizes of 1e-3 to 1e-1 turn these eigenvalues into time constants of 10 to 5,000 steps.
    """
    return (0.5, 0.99) if time == "discrete" else (-0.99, -0.2)
