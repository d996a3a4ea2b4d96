"""A form: plain data that describes how a layer's eigenvalues are computed from the layer's recorded values.

Every layer provides a form along with its weights, and the form is stored with the layer's series. The trainer and the server
compute the eigenvalues from the form and the recorded values, without the layer or the configuration. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from stablessm_core.map import Formulas, saturated, saturated_exp
from stablessm_core.maps import formulas

# the rules that turn lambda into lambda_bar, keyed by the map's time
RULES = {"discrete": ("none",), "continuous": ("zoh", "bilinear")}
NO_MAP = {
    "fixed": "the recorded numbers are -ln|lambda_bar| themselves and are not trained",
    "gate": "the layer reports -ln|lambda_bar| of every step; the weight is the norm of the parameters that determine it",
    "none": "a watched weight without an eigenvalue of its own",
}
PHASES = ("angle", "radians", "imaginary", "half_plane")
GATES = ("gate_min", "gate_mean", "gate_max")
SHARED = ("dt", *GATES)  # kinds of series in which several neighbouring eigenvalues may share a value


@dataclass(frozen=True)
class Form:
    """How lambda_bar follows from the recorded weight w, by `rule`. Raises ValueError if this version cannot use the form.

    "none" (discrete time): lambda_bar = f(w). "zoh" (zero-order hold): lambda_bar = exp(scale s f(w)), where s is the step size,
    or the gate of a layer whose eigenvalues vary with its input. "bilinear": (1 + z/2) / (1 - z/2) with z = dt lambda.

    map, time, a, b: the map f, as in `maps`, or one of the names in NO_MAP, whose time is "discrete".
    dt: a number if all eigenvalues have the same fixed step size, or "dt" if the layer's series of the kind "dt" contains the
    step sizes. dt is None in discrete time and for a layer with a gate.
    length: the length of the sequences that the layer runs over, if known; it is stored with the series that need it.
    phase: the meaning of a complex eigenvalue's second weight v. "angle": arg lambda_bar = e^v. "radians": arg lambda_bar = v.
    "imaginary": Im lambda = v. "half_plane": also Im lambda = v, but an eigenvalue has no single lambda_bar.
    gate: True if s is recorded as its smallest, mean and largest value in a step. Derived series use the mean, because the
    product over time decays with exp(mean ln|lambda_bar|). With the phase "half_plane", s is the constant step size of each
    channel, and the largest one decides whether a state overflows (`channels`).
    bounded: False if an eigenvalue may be beyond the boundary.
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
            raise ValueError(f"phase is {self.phase!r}; allowed: {', '.join(PHASES)}")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length is {self.length}; at least 1 is needed")

    @classmethod
    def of_map(cls, name: str, time: str, *, a: float = 1.0, b: float = 0.5) -> Form:
        """The form of a map with recorded step sizes in continuous time."""
        return cls(name, time, RULES.get(time, ("",))[0], a=a, b=b, dt="dt" if time == "continuous" else None)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Form:
        """The inverse of `Form.data`. Raises ValueError if this version does not support the form, such as a newer form."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(data.keys() - known):
            raise ValueError(f"form has {', '.join(unknown)}; allowed: {', '.join(sorted(known))}")
        try:
            return cls(**data)
        except (TypeError, KeyError) as error:
            raise ValueError(f"form is {dict(data)!r}: {error}") from None

    @property
    def data(self) -> dict[str, Any]:
        """The form as plain data, for JSON. Fields unknown to earlier versions are left out if they have their defaults."""
        left_out = {"length": None, "phase": None, "gate": False, "bounded": True}
        return {name: value for name, value in asdict(self).items() if name not in left_out or value != left_out[name]}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Kinds of the layer's recorded series from which the derived series are computed."""
        weight: tuple[str, ...] = () if self.map in ("gate", "none") else ("weight",)
        step = (self.dt,) if isinstance(self.dt, str) else ()
        return (*weight, *step, *(GATES if self.gate else ()), *(("phase_weight",) if self.phase else ()))

    @property
    def recorded(self) -> tuple[str, ...]:
        """Kinds of the layer's recorded series except ratios and gradients, in the order of their columns."""
        return self.inputs if "weight" in self.inputs else ("weight", *self.inputs)

    @property
    def derived(self) -> tuple[str, ...]:
        """Kinds of series derived step by step, in the order of their columns."""
        if self.map == "none":
            return ()
        more: tuple[str, ...] = ("boundary_distance_closest",) if self.gate else ()
        if self.phase in ("imaginary", "half_plane") and self.map not in NO_MAP:
            more += ("rate",)
        if self.complex:
            more += ("phase",)
        return ("eigenvalue", "boundary_distance", *more)

    @property
    def channels(self) -> bool:
        """True if the gate is the step size of each channel, constant over batch and time, as in DSS. The extremes of the gate
        are then the eigenvalues of two channels."""
        return self.gate and self.phase == "half_plane" and self.map not in NO_MAP

    @property
    def complex(self) -> bool:
        """True if the eigenvalues have an angle as well as an absolute value."""
        return self.phase in ("angle", "radians", "imaginary")

    def derive(self, kind: str, recorded: Mapping[str, np.ndarray]) -> np.ndarray:
        """The derived series `kind`, one of `derived`, from the layer's recorded `inputs`. All arrays and the result
        have the same shape (see `spread`)."""
        with np.errstate(all="ignore"):  # a diverging run has infinities, which belong to the result
            return np.asarray(self.derivation(kind, np)(recorded))

    def derive_all(self, kinds: Sequence[str], recorded: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`derive` for several kinds. The eigenvalue and its distance to the boundary are computed together."""
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
        # True if the formulas of the map are enough to compute lambda_bar
        return self.map not in NO_MAP and not self.gate and self.phase is None and self.rule != "bilinear"

    def derivation(self, kind: str, xp: Any) -> Callable[[Mapping[str, Any]], Any]:
        """`derive` as a function of the recorded arrays, for `numpy` or `torch`."""
        if self._by_map:
            map_, derive = formulas(self.map, self.time, xp, a=self.a, b=self.b), DERIVED[kind]
            return lambda recorded: derive(map_, recorded["weight"], self.step_size(recorded))
        return lambda recorded: _GENERAL[kind](self, recorded, xp)

    def decay(self, recorded: Mapping[str, Any], xp: Any, gate: str = "gate_mean") -> Any:
        """-ln|lambda_bar| of each eigenvalue, for `numpy` or `torch`; negative for an unstable eigenvalue.

        gate: for a layer with a gate, the entry of GATES to use.
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
        """The product of scale and s, by which a continuous eigenvalue is multiplied; None in discrete time."""
        dt = recorded[gate] if self.gate else recorded[self.dt] if isinstance(self.dt, str) else self.dt
        return dt if dt is None or self.scale == 1 else self.scale * dt


def spread(recorded: Mapping[str, np.ndarray], width: int, axis: int = -1) -> dict[str, np.ndarray]:
    """The recorded arrays, with each value repeated so that `axis` has `width` values, because several neighbouring eigenvalues
    may share a step size or gate."""
    whole = {}
    for kind, values in recorded.items():
        have = values.shape[axis]
        whole[kind] = values if have == width else np.repeat(values, width // have, axis=axis)
    return whole


def shared_columns(eigenvalues: Sequence[int], of: int, width: int) -> list[int]:
    """The column of each given eigenvalue in a series with `width` columns, which `of` eigenvalues share."""
    return [eigenvalue * width // of for eigenvalue in eigenvalues]


class _Rounded:
    """numpy with functions that round correctly in float32. Near 1, torch's functions round correctly, while numpy's functions
    differ in the last bit."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if name not in ("exp", "expm1", "log1p", "tanh"):
            return function
        return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def _float32(x: Any, xp: Any) -> Any:
    return x if not hasattr(x, "dtype") or x.dtype == xp.float32 else xp.asarray(x, dtype=xp.float32)


def _at_one(map_: Formulas, weight: Any, dt: Any) -> tuple[Any, Any]:
    """The eigenvalue in float32, as the layer computes it, and a mask that is true where the eigenvalue is exactly 1 or -1."""
    xp = map_.xp
    run = type(map_)(_Rounded() if xp is np else xp, map_.a, map_.b).lambda_bar(_float32(weight, xp), _float32(dt, xp))
    return run, xp.abs(run) == 1


def _eigenvalue(map_: Formulas, weight: Any, dt: Any) -> Any:
    run, at_one = _at_one(map_, weight, dt)
    return map_.xp.where(at_one, run, map_.lambda_bar(weight, dt))


def _boundary_distance(map_: Formulas, weight: Any, dt: Any) -> Any:
    """1 - |lambda_bar| without cancellation, but exactly 0 if the layer's float32 eigenvalue is on the boundary."""
    _, at_one = _at_one(map_, weight, dt)
    distance = map_.boundary_distance(weight, dt)
    return map_.xp.where(at_one, map_.xp.zeros_like(distance), distance)


# the kinds of derived series, in the order of their columns in a layer's level blocks
DERIVED: dict[str, Callable[[Formulas, Any, Any], Any]] = {"eigenvalue": _eigenvalue, "boundary_distance": _boundary_distance}


def _bilinear_distance(x: Any, y: Any, xp: Any) -> Any:
    """1 - |lambda_bar| without cancellation, where lambda_bar = (1 + z/2) / (1 - z/2) and z = -x + iy. The computation uses
    1 - |lambda_bar|^2 = 2x / |1 - z/2|^2."""
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


def _closest(form: Form, recorded: Mapping[str, Any], xp: Any) -> Any:
    """The smallest distance over the gate's range. The distance is monotone in the gate: it is smallest at the smallest gate if
    the eigenvalue is inside the boundary, and at the largest gate if it is outside."""
    return xp.fmin(*(_general_distance(form, recorded, xp, gate) for gate in ("gate_min", "gate_max")))


def _general_eigenvalue(form: Form, recorded: Mapping[str, Any], xp: Any) -> Any:
    return 1 - _general_distance(form, recorded, xp)


def _general_phase(form: Form, recorded: Mapping[str, Any], xp: Any) -> Any:
    """arg lambda_bar in (-pi, pi]. A negative f(w), as `direct` and `tanh` allow, turns the eigenvalue by half a circle."""
    if form.phase in ("angle", "radians"):
        angle = recorded["phase_weight"] if form.phase == "radians" else saturated_exp(recorded["phase_weight"], xp)
        sine, cosine = xp.sin(angle), xp.cos(angle)
        if form.time == "discrete" and form.map not in NO_MAP:
            negative = _rate(form, recorded, xp) > 0
            sine, cosine = xp.where(negative, -sine, sine), xp.where(negative, -cosine, cosine)
        return xp.arctan2(sine, cosine)
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
    "boundary_distance_closest": _closest,
    "phase": _general_phase,
    "rate": _rate,
}
