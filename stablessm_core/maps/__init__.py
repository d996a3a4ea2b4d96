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
ROUNDING = 1e-9  # a probed eigenvalue may be beyond a declared limit by this much


def _built_in() -> dict[str, Map]:
    """The map of every module of this folder, by name."""
    maps: list[Map] = [import_module(f"{__name__}.{module.name}").MAP for module in iter_modules(__path__)]
    return {map_.name: map_ for map_ in sorted(maps, key=lambda map_: (map_.order, map_.name))}


def default_eigenvalue_range(time: str) -> tuple[float, float]:
    """The default range of initial eigenvalues. Every map can reach this range, which gives long but not extreme memory.

    In continuous time, step sizes of 1e-3 to 1e-1 turn these eigenvalues into time constants of 10 to 5,000 steps.
    """
    return (0.5, 0.99) if time == "discrete" else (-0.99, -0.2)


def check_map(name: str, plug_in: object) -> Map:
    """The map of another package, if it is one and its formulas and declarations hold. Raises ValueError with the reason."""
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
        least = max(0.5, form.least_b)
        formulas_ = form(np, b=least)
        lambda_ = formulas_.f(w)
        slope = (formulas_.f(w + h) - formulas_.f(w - h)) / (2 * h)
        if not np.isfinite(lambda_).all():
            raise ValueError(f"{time} f(w) is not finite at w = {PROBED_WEIGHTS}")
        if not np.allclose(formulas_.f(formulas_.inverse(lambda_)), lambda_, rtol=1e-6, atol=1e-9):
            raise ValueError(f"{time} inverse(f(w)) gives other eigenvalues than f(w) at w = {PROBED_WEIGHTS}")
        if not np.allclose(formulas_.derivative(w), slope, rtol=1e-4, atol=1e-7):
            raise ValueError(f"{time} derivative(w) is not the slope of f(w) at w = {PROBED_WEIGHTS}")
        for constants in ((1.0, least), (1e-3, least), (1e3, least), (1.0, 4 * least)):
            _check_declarations(plug_in, form(np, *constants), np)
    return plug_in


def _check_declarations(map_: Map, formulas_: Formulas, np: Any) -> None:
    """Compares what a map declares (`guarded`, `reachable`, the distance) with f(w) at many weights. Raises ValueError."""
    time = formulas_.time
    near = np.linspace(-3, 3, 601)
    sizes = np.concatenate([np.logspace(-8, 4, 121), [1e6, 1e12, 1e30, 3.4e38]])
    with np.errstate(all="ignore"):  # beyond |w| = 1e4, formulas may overflow
        initial = formulas_.inverse(np.linspace(*default_eigenvalue_range(time), 41))
        w = np.unique(np.concatenate([near, -sizes, sizes, initial]))
        w = w[np.isfinite(w)]
        lambda_ = formulas_.f(w)
        size, edge, allowed = (np.abs(lambda_), 1.0, "|f(w)| <= 1") if time == "discrete" else (lambda_, 0.0, "f(w) <= 0")
        beyond = np.flatnonzero(size > edge + ROUNDING)
        if map_.guarded and len(beyond):
            at = beyond[np.argmin(np.abs(w[beyond]))]
            raise ValueError(
                f"it declares guarded=True, but its {time} f({w[at]:.6g}) is {lambda_[at]:.6g}, outside the stability "
                f"boundary; allowed: {allowed} at every weight, or guarded=False"
            )
        cut = np.flatnonzero((size == edge) & (np.abs(w) <= 3) & (np.abs(w) >= 0.01))
        if map_.guarded and len(cut) > 1:
            raise ValueError(
                f"it declares guarded=True, but its {time} f({w[cut[0]]:.6g}) is {lambda_[cut[0]]:.6g}, exactly on the stability "
                "boundary, as at other weights near it; allowed: no such weights, or guarded=False"
            )
        reach = formulas_.reachable
        slack = ROUNDING * np.maximum(1, np.abs(lambda_))
        missed = np.flatnonzero(np.isfinite(lambda_) & ((lambda_ > reach.high + slack) | (lambda_ < reach.low - slack)))
        if len(missed):
            raise ValueError(
                f"its {time} f({w[missed[0]]:.6g}) is {lambda_[missed[0]]:.6g}; allowed: {reach}, which it declares as reachable"
            )
        for dt in (1e-3, 0.1, 1.0) if time == "continuous" else (1.0,):
            truth = 1 - np.abs(formulas_.lambda_bar(w, np.full_like(w, dt)))
            wrong = np.abs(formulas_.boundary_distance(w, np.full_like(w, dt)) - truth) > 1e-6 * np.maximum(1, np.abs(truth))
            if len(found := np.flatnonzero(wrong)):
                raise ValueError(f"its {time} boundary_distance(w) is not 1 - |lambda_bar| at w = {w[found[0]]:.6g}")


# MAPS: the maps by name, in the order in which lists and charts show them. REFUSED: the unusable plug-ins, each with the
# reason.
MAPS, REFUSED = find_plug_ins("stablessm.maps", _built_in(), check_map)


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
