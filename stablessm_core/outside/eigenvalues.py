"""Plain data that says which parameter of a foreign module holds eigenvalues, and how the eigenvalues follow from it.

Step sizes are computed by the same torch functions as in the module, but on the flush thread, from recorded parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stablessm_core.telemetry.assumptions import AT_GATE_ZERO, UNCONFIRMED
from stablessm_core.telemetry.forms import Form

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AT_GATE_ZERO", "UNCONFIRMED", "Declared", "Eigenvalues", "StepSize", "declare", "parse_step"]

# torch splits larger tensors among its threads, which changes the last bit at the splits
ONE_PIECE = 32_767
_CALL = re.compile(r"(softplus|exp|sigmoid)\(([\w.]+)\)")


@dataclass(frozen=True)
class StepSize:
    """The step sizes, or gates at a zero input, that a module computes from the parameter `weight`.

    kind: "softplus", "exp", "sigmoid" or a key of KINDS. scale multiplies the result. low, high: the range to which the result
    is clamped.
    """

    weight: Tensor
    kind: str
    scale: float = 1.0
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"step size kind is {self.kind!r}; allowed: {', '.join(KINDS)}")

    def compute(self, recorded: Tensor) -> Tensor:
        """The step sizes (rows, n) of the recorded parameter (rows, n), float32, with the bits of a computation row by row."""
        import torch

        at_once = max(1, ONE_PIECE // max(1, recorded.shape[1]))
        return torch.cat([self._of(part) for part in torch.split(recorded, at_once)])

    def _of(self, recorded: Tensor) -> Tensor:
        steps: Tensor = KINDS[self.kind](recorded)
        if self.scale != 1.0:
            steps = steps * self.scale
        if self.low is not None or self.high is not None:
            steps = steps.clamp(self.low, self.high)
        return steps


def _torch(*names: str) -> Callable[[Any], Any]:
    """These functions of torch, the first one innermost."""

    def compute(x: Any) -> Any:
        import torch

        for name in names:
            x = torch.nn.functional.softplus(x) if name == "softplus" else getattr(torch, name)(x)
        return x

    return compute


def _decay_of_capped(x: Any) -> Any:
    """-ln sigmoid of the bias after xLSTM's soft cap at 15."""
    import torch

    return torch.nn.functional.softplus(-15.0 * torch.tanh(x / 15.0))


def _decay_of_sixteenth(x: Any) -> Any:
    """-ln of the sixteenth root of a sigmoid, the gate of gated linear attention."""
    import torch

    return torch.nn.functional.softplus(-x) / 16.0


KINDS: dict[str, Callable[[Any], Any]] = {
    "softplus": _torch("softplus"),
    "exp": _torch("exp"),
    "sigmoid": _torch("sigmoid"),
    "none": _torch(),
    **{f"{name}_of_sinh": _torch("sinh", name) for name in ("softplus", "exp", "sigmoid")},
    "none_of_sinh": _torch("sinh"),
    "decay_of_capped": _decay_of_capped,
    "decay_of_sixteenth": _decay_of_sixteenth,
}


@dataclass(frozen=True)
class Eigenvalues:
    """The eigenvalues of one module.

    weight: the parameter, flattened row by row. form: how the eigenvalues follow from it. step: the step sizes if the form has a
    dt, or the decay -ln|lambda_bar| if the form is "gate". imag: the second weight of complex eigenvalues; `pairs`: instead the
    real and imaginary parts are the two halves of each complex number or of each row (n, 2) of `weight`. repeat: how many
    neighbouring eigenvalues share a weight. tile: how many times the row of all weights is used, one time after the other.
    note: what a reader of the page must know about these eigenvalues.
    """

    weight: Tensor
    form: Form
    step: StepSize | None = None
    imag: Tensor | None = None
    pairs: bool = False
    repeat: int = 1
    tile: int = 1
    note: str | None = None

    @property
    def width(self) -> int:
        """The number of eigenvalues."""
        numel = self.weight.numel()
        halves = 2 if self.pairs and not self.weight.is_complex() else 1
        return numel // halves * self.repeat * self.tile

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor that is recorded for these eigenvalues."""
        parts = (self.weight, self.imag, None if self.step is None else self.step.weight)
        return [part for part in parts if part is not None]

    def problem(self) -> str | None:
        """Why these shapes cannot be right, in words; None if they fit together."""
        if not self.width:
            return "the weight is empty"
        if self.weight.is_complex() and not self.pairs:
            return "the weight is complex, so its form must have an imaginary part"
        if self.pairs and not self.weight.is_complex() and self.weight.shape[-1:] != (2,):
            return f"the weight has the shape {tuple(self.weight.shape)}; (n, 2) is needed"
        if self.imag is not None and self.imag.numel() != self.weight.numel():
            return f"there are {self.imag.numel()} imaginary parts for {self.weight.numel()} eigenvalues"
        if (self.form.phase is not None) != (self.pairs or self.imag is not None):
            return "complex eigenvalues need an imaginary part, and real eigenvalues have none"
        if (self.step is None) == (self.form.dt == "dt" or self.form.map == "gate"):
            return f"the form has dt {self.form.dt!r}, which does not match the step sizes"
        if self.step is not None and self.width % max(1, self.step.weight.numel()):
            return f"there are {self.step.weight.numel()} step sizes for {self.width} eigenvalues"
        return None


@dataclass(frozen=True)
class Declared:
    """What the user declares about the eigenvalues of a parameter: see `declare`."""

    map: str
    time: str
    step: str | float | None = None
    imag: str | None = None
    a: float = 1.0
    b: float = 0.5

    @property
    def form(self) -> Form:
        """The form of the eigenvalues. Raises ValueError if there is no such map."""
        phase = None if self.imag is None else "imaginary" if self.time == "continuous" else "radians"
        rule = "none" if self.time == "discrete" else "zoh"
        dt = self.step if isinstance(self.step, float) or self.step is None else "dt"
        return Form(self.map, self.time, rule, a=self.a, b=self.b, dt=dt, phase=phase)


def declare(
    map: str, time: str, *, step: str | float | None = None, imag: str | None = None, a: float = 1.0, b: float = 0.5
) -> Declared:
    """What `stablessm.eigenvalues` returns; it describes the arguments and errors."""
    if isinstance(step, str) and not _CALL.fullmatch(step):
        raise ValueError(f"step is {step!r}; allowed: a number, 'softplus(name)', 'exp(name)' or 'sigmoid(name)'")
    if isinstance(step, int | float) and not isinstance(step, bool) and not (step > 0 and math.isfinite(step)):
        raise ValueError(f"step is {step!r}; a positive number is needed")
    declared = Declared(map, time, float(step) if isinstance(step, int) else step, imag, a, b)
    try:
        _ = declared.form
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"map is {map!r}, time is {time!r}, step is {step!r}: {error}") from None
    return declared


def parse_step(step: str) -> tuple[str, str]:
    """The function and the parameter's name of a step such as "softplus(dt_bias)"."""
    found = _CALL.fullmatch(step)
    assert found is not None
    return found[1], found[2]
