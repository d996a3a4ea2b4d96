"""How a layer's eigenvalues follow from what is recorded of it: a form, as plain data, and the one derivation from it.

Every layer announces a form with its weights. It is stored with the layer's series, and trainer and server derive from it alone:
nothing else about the layer, and no configuration, is asked. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from stablessm_core.maps import Formulas, formulas

RULES = {"discrete": "none", "continuous": "zoh"}  # from the map's lambda to the recurrence's lambda_bar, by the map's time


@dataclass(frozen=True)
class Form:
    """lambda_bar = f(w) in discrete time (rule "none"), exp(scale dt f(w)) in continuous time ("zoh", zero-order hold).

    map, time, a, b: f, as in `maps`. dt: the step size, one number for all eigenvalues, or "dt", the kind of the layer's recorded
    series that holds it; None in discrete time. length: steps of the sequences that the layer runs over, where that is known;
    it is stored with the series that need it. Raises ValueError for what this version cannot derive from.
    """

    map: str
    time: str
    rule: str
    scale: float = 1.0
    a: float = 1.0
    b: float = 0.5
    dt: str | float | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        formulas(self.map, self.time, np, a=self.a, b=self.b)
        if self.rule != RULES[self.time]:
            raise ValueError(f"rule is {self.rule!r}; allowed in {self.time} time is {RULES[self.time]!r}")
        if (self.dt is None) != (self.time == "discrete") or (self.time == "discrete" and self.scale != 1):
            raise ValueError(
                f"dt is {self.dt!r} and scale {self.scale} in {self.time} time; discrete time has no dt and scale 1, "
                "continuous time needs a dt"
            )
        if self.length is not None and self.length < 1:
            raise ValueError(f"length is {self.length}; at least 1 is needed")

    @classmethod
    def of_map(cls, name: str, time: str, *, a: float = 1.0, b: float = 0.5) -> Form:
        """The form of a map with recorded step sizes in continuous time."""
        return cls(name, time, RULES.get(time, ""), a=a, b=b, dt="dt" if time == "continuous" else None)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Form:
        """Inverse of `data`. Raises ValueError for a form that this version does not know, from a newer one say."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(data.keys() - known):
            raise ValueError(f"form has {', '.join(unknown)}; allowed are {', '.join(sorted(known))}")
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"form is {dict(data)!r}: {error}") from None

    @property
    def data(self) -> dict[str, Any]:
        """The form as plain data, for JSON; without a length where there is none, as earlier versions know it."""
        return {name: value for name, value in asdict(self).items() if name != "length" or value is not None}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Kinds of the layer's recorded series that the derived ones are computed from."""
        return ("weight", self.dt) if isinstance(self.dt, str) else ("weight",)

    def derive(self, kind: str, recorded: Mapping[str, np.ndarray]) -> np.ndarray:
        """The derived series `kind`, one of DERIVED, from the layer's recorded `inputs`: arrays of one shape, which it keeps."""
        with np.errstate(all="ignore"):  # a diverging run has infinities here; they are what is to be seen
            return np.asarray(self.derivation(kind, np)(recorded))

    def derivation(self, kind: str, xp: Any) -> Callable[[Mapping[str, Any]], Any]:
        """The same as a function of the recorded arrays, for `numpy` or `torch`."""
        map_, derive = formulas(self.map, self.time, xp, a=self.a, b=self.b), DERIVED[kind]

        def derived(recorded: Mapping[str, Any]) -> Any:
            dt = recorded[self.dt] if isinstance(self.dt, str) else self.dt
            return derive(map_, recorded["weight"], dt if dt is None or self.scale == 1 else self.scale * dt)

        return derived


class _Rounded:
    """numpy with functions rounded correctly in float32, as torch's are next to 1; numpy's own are off by the last bit there."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if name not in ("exp", "expm1", "log1p", "tanh"):
            return function
        return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def _float32(x: Any, xp: Any) -> Any:
    return x if not hasattr(x, "dtype") or x.dtype == xp.float32 else xp.asarray(x, dtype=xp.float32)


def _at_one(map_: Formulas, weight: Any, dt: Any) -> tuple[Any, Any]:
    """The eigenvalue in float32, as the layer computes it, and where it is exactly 1 or -1 there."""
    xp = map_.xp
    run = type(map_)(_Rounded() if xp is np else xp, map_.a, map_.b).lambda_bar(_float32(weight, xp), _float32(dt, xp))
    return run, xp.abs(run) == 1


def _eigenvalue(map_: Formulas, weight: Any, dt: Any) -> Any:
    run, at_one = _at_one(map_, weight, dt)
    return map_.xp.where(at_one, run, map_.lambda_bar(weight, dt))


def _boundary_distance(map_: Formulas, weight: Any, dt: Any) -> Any:
    """1 - |lambda_bar| without cancellation, but 0 where the recurrence that runs, in float32, has reached the boundary."""
    _, at_one = _at_one(map_, weight, dt)
    distance = map_.boundary_distance(weight, dt)
    return map_.xp.where(at_one, map_.xp.zeros_like(distance), distance)


# in the order of their columns in the coarser levels of a layer's blocks
DERIVED: dict[str, Callable[[Formulas, Any, Any], Any]] = {"eigenvalue": _eigenvalue, "boundary_distance": _boundary_distance}
