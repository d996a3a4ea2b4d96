"""The maps lambda = f(w) from a weight to an eigenvalue: one file each, registered in the list below. Imports no torch."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.maps import best, clip, direct, exp, heavytail, relu, sigmoid, softplus, tanh
from stablessm_core.maps.record import Formulas as Formulas
from stablessm_core.maps.record import Interval as Interval
from stablessm_core.maps.record import Map as Map

MAPS: dict[str, Map] = {}  # by name, in the order in which charts and forms show them


def register(map_: Map) -> None:
    """Make a map known by its name, to layers, charts and the reader of recorded runs alike."""
    if map_.name in MAPS:
        raise ValueError(f"map {map_.name!r} is registered already; a name belongs to one map")
    MAPS[map_.name] = map_


for module in (direct, relu, clip, exp, softplus, tanh, best, heavytail, sigmoid):
    register(module.MAP)


def formulas(name: str, time: str, xp: Any, *, a: float = 1.0, b: float = 0.5) -> Formulas:
    """The map's formulas for arrays of the namespace `xp`; a and b are the constants of best, without meaning for the others.

    Raises ValueError for a map or a time that does not exist, listing the possible ones, and for a or b out of range: both in
    [1e-6, 1e6], and b large enough to keep the eigenvalues stable.
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
    """Initial eigenvalues every map can reach: long but not extreme memory.

    In continuous time the step sizes of 1e-3 to 1e-1 make this time constants of 10 to 5,000 steps.
    """
    return (0.5, 0.99) if time == "discrete" else (-0.99, -0.2)
