"""How a layer's eigenvalues follow from what is recorded of it: a form, as plain data, and the one derivation from it.

Every layer announces a form with its weights. It is stored with the layer's series, and trainer and server derive from it alone:
nothing else about the layer, and no configuration, is asked. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from stablessm_core.maps import Formulas, formulas
from stablessm_core.maps.elementary import saturated, saturated_exp

RULES = {"discrete": ("none",), "continuous": ("zoh", "bilinear")}  # from lambda to lambda_bar, by the time of the map
NO_MAP = {
    "fixed": "the recorded numbers are -ln|lambda_bar| themselves and are not trained",
    "gate": "the layer reports -ln|lambda_bar| of every step; the weight is the norm of what decides it",
    "none": "a weight that is watched without an eigenvalue of its own",
}
PHASES = ("angle", "imaginary", "half_plane")
GATES = ("gate_min", "gate_mean", "gate_max")
SHARED = ("dt", *GATES)  # kinds of series of which several neighbouring eigenvalues may share a number


@dataclass(frozen=True)
class Form:
    """lambda_bar = f(w) in discrete time (rule "none"), exp(scale s f(w)) in continuous time ("zoh", zero-order hold), where s is
    the step size, or the gate of a layer whose eigenvalues vary with its input. Rule "bilinear": (1 + z/2) / (1 - z/2) of
    z = dt lambda.

    map, time, a, b: f, as in `maps`; or one of NO_MAP, whose time is "discrete". dt: the step size, one number for all
    eigenvalues, or "dt", the kind of the layer's recorded series that holds it; None in discrete time and with a gate. length:
    steps of the sequences that the layer runs over, where that is known; it is stored with the series that need it. phase, of
    complex eigenvalues, what the second weight v is: "angle", arg lambda_bar = e^v; "imaginary", Im lambda = v; "half_plane", the
    same where no single lambda_bar belongs to an eigenvalue. gate: s is recorded as its smallest, mean and largest value in a
    step; what is derived holds for the mean, for exp(mean ln|lambda_bar|) is what the product over time decays with. bounded:
    False where an eigenvalue beyond the boundary is legal. Raises ValueError for what this version cannot derive from.
    """

    map: str
    time: str
    rule: str
    scale: float = 1.0
    a: float = 1.0
    b: float = 0.5
    dt: str | float | None = None
    length: int | None = None
    phase: str | None = None
    gate: bool = False
    bounded: bool = True

    def __post_init__(self) -> None:
        if self.map not in NO_MAP:
            formulas(self.map, self.time, np, a=self.a, b=self.b)
        elif self.time != "discrete" or (self.map == "gate") != self.gate or self.phase not in (None, "half_plane"):
            raise ValueError(f"map {self.map!r} needs discrete time, and a gate exactly for 'gate'")
        if self.rule not in RULES[self.time] or (self.rule == "bilinear" and self.gate):
            allowed = " or ".join(map(repr, RULES[self.time]))
            raise ValueError(f"rule is {self.rule!r}; allowed in {self.time} time is {allowed}, with a gate no bilinear one")
        if self.map not in NO_MAP and (self.dt is None) != (self.time == "discrete" or self.gate):
            raise ValueError(
                f"dt is {self.dt!r} in {self.time} time{' with a gate' * self.gate}; continuous time without a gate needs a dt, "
                "nothing else has one"
            )
        if self.time == "discrete" and (self.scale != 1 or (self.gate and self.map != "gate")):
            raise ValueError(f"scale is {self.scale} and gate {self.gate} in discrete time, which has scale 1 and no gate")
        if self.phase is not None and self.phase not in PHASES:
            raise ValueError(f"phase is {self.phase!r}; allowed are {', '.join(PHASES)}")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length is {self.length}; at least 1 is needed")

    @classmethod
    def of_map(cls, name: str, time: str, *, a: float = 1.0, b: float = 0.5) -> Form:
        """The form of a map with recorded step sizes in continuous time."""
        return cls(name, time, RULES.get(time, ("",))[0], a=a, b=b, dt="dt" if time == "continuous" else None)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Form:
        """Inverse of `data`. Raises ValueError for a form that this version does not know, from a newer one say."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(data.keys() - known):
            raise ValueError(f"form has {', '.join(unknown)}; allowed are {', '.join(sorted(known))}")
        try:
            return cls(**data)
        except (TypeError, KeyError) as error:
            raise ValueError(f"form is {dict(data)!r}: {error}") from None

    @property
    def data(self) -> dict[str, Any]:
        """The form as plain data, for JSON; without what earlier versions do not know, where it says nothing."""
        left_out = {"length": None, "phase": None, "gate": False, "bounded": True}
        return {name: value for name, value in asdict(self).items() if name not in left_out or value != left_out[name]}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Kinds of the layer's recorded series that the derived ones are computed from."""
        weight: tuple[str, ...] = () if self.map in ("gate", "none") else ("weight",)
        step = (self.dt,) if isinstance(self.dt, str) else ()
        return (*weight, *step, *(GATES if self.gate else ()), *(("phase_weight",) if self.phase else ()))

    @property
    def recorded(self) -> tuple[str, ...]:
        """Kinds of the layer's recorded series beside ratios and gradients, in the order of their columns."""
        return self.inputs if "weight" in self.inputs else ("weight", *self.inputs)

    @property
    def derived(self) -> tuple[str, ...]:
        """Kinds of series that follow step by step, in the order of their columns."""
        if self.map == "none":
            return ()
        more: tuple[str, ...] = ("boundary_distance_closest",) if self.gate else ()
        if self.phase in ("imaginary", "half_plane") and self.map not in NO_MAP:
            more += ("rate",)
        if self.phase in ("angle", "imaginary"):
            more += ("phase",)
        return ("eigenvalue", "boundary_distance", *more)

    @property
    def complex(self) -> bool:
        """Whether an eigenvalue has an angle beside its absolute value."""
        return self.phase in ("angle", "imaginary")

    def derive(self, kind: str, recorded: Mapping[str, np.ndarray]) -> np.ndarray:
        """The derived series `kind`, one of `derived`, from the layer's recorded `inputs`: arrays of one shape (see `spread`),
        which it keeps."""
        with np.errstate(all="ignore"):  # a diverging run has infinities here; they are what is to be seen
            return np.asarray(self.derivation(kind, np)(recorded))

    def derive_all(self, kinds: Sequence[str], recorded: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`derive` of several kinds; what the eigenvalue and its distance to the boundary have in common is computed once."""
        if not {"eigenvalue", "boundary_distance"} <= {*kinds}:
            return {kind: self.derive(kind, recorded) for kind in kinds}
        with np.errstate(all="ignore"):
            both = self._eigenvalue_and_distance(recorded)
        return {kind: both[kind] if kind in both else self.derive(kind, recorded) for kind in kinds}

    def _eigenvalue_and_distance(self, recorded: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not self._by_map:
            distance = np.asarray(_general_distance(self, recorded, np))
            return {"eigenvalue": 1 - distance, "boundary_distance": distance}
        map_, weight, dt = formulas(self.map, self.time, np, a=self.a, b=self.b), recorded["weight"], self.step_size(recorded)
        run, at_one = _at_one(map_, weight, dt)
        eigenvalue, distance = map_.lambda_bar(weight, dt), map_.boundary_distance(weight, dt)
        if at_one.any():
            eigenvalue, distance = np.where(at_one, run, eigenvalue), np.where(at_one, np.zeros_like(distance), distance)
        return {"eigenvalue": np.asarray(eigenvalue), "boundary_distance": np.asarray(distance)}

    @property
    def _by_map(self) -> bool:
        # the map's formulas say it all
        return self.map not in NO_MAP and not self.gate and self.phase is None and self.rule != "bilinear"

    def derivation(self, kind: str, xp: Any) -> Callable[[Mapping[str, Any]], Any]:
        """The same as a function of the recorded arrays, for `numpy` or `torch`."""
        if self._by_map:
            map_, derive = formulas(self.map, self.time, xp, a=self.a, b=self.b), DERIVED[kind]
            return lambda recorded: derive(map_, recorded["weight"], self.step_size(recorded))
        return lambda recorded: _GENERAL[kind](self, recorded, xp)

    def decay(self, recorded: Mapping[str, Any], xp: Any, gate: str = "gate_mean") -> Any:
        """-ln|lambda_bar| of each eigenvalue, for `numpy` or `torch`; negative outside the boundary.

        gate: which of GATES a layer with a gate is asked with.
        """
        if self.map == "gate":
            return recorded[gate]
        if self.map == "fixed":
            return recorded["weight"]
        map_ = formulas(self.map, self.time, xp, a=self.a, b=self.b)
        if self.time == "discrete":
            return -xp.log1p(-map_.boundary_distance(recorded["weight"], None))
        rate = -map_.f(recorded["weight"])
        step = self.step_size(recorded, gate)
        if self.rule == "zoh":
            return step * rate
        return -xp.log1p(-_bilinear_distance(step * rate, step * recorded["phase_weight"] if self.phase else 0 * rate, xp))

    def step_size(self, recorded: Mapping[str, Any], gate: str = "gate_mean") -> Any:
        """scale s: what a continuous eigenvalue is multiplied by; None in discrete time."""
        dt = recorded[gate] if self.gate else recorded[self.dt] if isinstance(self.dt, str) else self.dt
        return dt if dt is None or self.scale == 1 else self.scale * dt


def spread(recorded: Mapping[str, np.ndarray], width: int, axis: int = -1) -> dict[str, np.ndarray]:
    """What is recorded, each repeated along `axis` so that it has `width` numbers there: a step size or gate may belong to
    several eigenvalues, which then lie next to each other."""
    whole = {}
    for kind, values in recorded.items():
        have = values.shape[axis]
        whole[kind] = values if have == width else np.repeat(values, width // have, axis=axis)
    return whole


def shared_columns(eigenvalues: Sequence[int], of: int, width: int) -> list[int]:
    """Of each eigenvalue, one of `of`, the column where a series of `width` numbers a step holds what it shares with others."""
    return [eigenvalue * width // of for eigenvalue in eigenvalues]


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


def _bilinear_distance(x: Any, y: Any, xp: Any) -> Any:
    """1 - |lambda_bar| of lambda_bar = (1 + z/2) / (1 - z/2), z = -x + iy, without cancellation: 1 - |lambda_bar|^2 is
    2x / |1 - z/2|^2."""
    below = (1 + x / 2) ** 2 + y * y / 4
    squared = ((1 - x / 2) ** 2 + y * y / 4) / below
    return 2 * x / below / (1 + xp.sqrt(squared))


def _general_distance(form: Form, recorded: Mapping[str, Any], xp: Any, gate: str = "gate_mean") -> Any:
    if form.rule == "bilinear":
        step = form.step_size(recorded)
        rate = -formulas(form.map, form.time, xp, a=form.a, b=form.b).f(recorded["weight"])
        y = step * recorded["phase_weight"] if form.phase else xp.zeros_like(rate)
        return _bilinear_distance(step * rate, y, xp)
    if form.time == "discrete" and form.map not in NO_MAP:
        map_ = formulas(form.map, form.time, xp, a=form.a, b=form.b)
        return _boundary_distance(map_, recorded["weight"], None)
    return -xp.expm1(saturated(-form.decay(recorded, xp, gate), xp))


def _general_eigenvalue(form: Form, recorded: Mapping[str, Any], xp: Any) -> Any:
    return 1 - _general_distance(form, recorded, xp)


def _general_phase(form: Form, recorded: Mapping[str, Any], xp: Any) -> Any:
    """arg lambda_bar in (-pi, pi]."""
    if form.phase == "angle":
        angle = saturated_exp(recorded["phase_weight"], xp)
        return xp.arctan2(xp.sin(angle), xp.cos(angle))
    step = form.step_size(recorded)
    y = step * recorded["phase_weight"]
    if form.rule == "zoh":
        return xp.arctan2(xp.sin(y), xp.cos(y))
    x = step * _rate(form, recorded, xp)
    return xp.arctan2(y, 1 - (x * x + y * y) / 4)


def _rate(form: Form, recorded: Mapping[str, Any], xp: Any) -> Any:
    return -formulas(form.map, form.time, xp, a=form.a, b=form.b).f(recorded["weight"])


_GENERAL: dict[str, Callable[[Form, Mapping[str, Any], Any], Any]] = {
    "eigenvalue": _general_eigenvalue,
    "boundary_distance": _general_distance,
    "boundary_distance_closest": lambda form, recorded, xp: _general_distance(form, recorded, xp, "gate_min"),
    "phase": _general_phase,
    "rate": _rate,
}
