"""The base classes of the layers. They keep values for the recorder and define single steps for the probe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from stablessm_core.layers.parts.gates import gate_statistics
from stablessm_core.numerics.differentiation import transformed
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.watch.watchable import Record


class WatchedLayer(nn.Module):
    """A state-space layer whose eigenvalues are recorded (`watch.watchable.Watchable`).

    Input and output are (batch, length, d_model). A subclass defines `forward`, `step`, `initial_state` and `records`. `forward`
    ends with a call to `watch`. `step` takes x_t (batch, d_model) and a state, and returns y_t and the next state. A state is a
    tensor or a tuple of tensors. `recurrent` assumes that the eigenvalues multiply the tensor, or the last tensor of the tuple.
    If they do not, override `recurrent`.

    last_state: see Watchable. not_probed: the reason why `layers.form_probe` cannot compare the layer's form with the layer's
    recurrence; "" if the comparison is possible. probe_scale: the amplitude of the probe's input. dtypes: the dtypes that the
    parameters may have. A conversion to another dtype, such as `half()`, raises TypeError and changes nothing in the layer.
    """

    last_state: Tensor | None = None
    not_probed: str = ""
    probe_scale: ClassVar[float] = 1.0
    # near the stability boundary, a float16 or bfloat16 eigenvalue rounds to 1
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.float64)

    def __init__(self, reparameterization: Reparameterization | None = None, scan_backend: str = "auto") -> None:
        super().__init__()
        if reparameterization is not None:
            self.reparameterization = reparameterization
        self.scan_backend = scan_backend
        self._gates: dict[str, Tensor] = {}

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    def initial_state(self, batch: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state()")

    def records(self) -> list[Record]:
        raise NotImplementedError(f"{type(self).__name__} does not define records()")

    def gates(self) -> dict[str, Tensor]:
        """The statistics of each gate in the last forward pass, (3, values); {} if the layer has no gates."""
        return self._gates

    def watch(self, last_state: Tensor, **gates: Tensor) -> None:
        """Keep the values that the recorder reads after a forward pass. Under a transform of torch.func, no values are kept.

        last_state: detached. gates: the values of each gate, (batch, length, values).
        """
        if transformed():
            self.last_state = None
            return
        self.last_state = last_state
        if gates:
            self._gates = {name: gate_statistics(values) for name, values in gates.items()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Every conversion of a module (half, bfloat16, to, type) calls this method with the function that converts a tensor."""

        def checked(x: Tensor) -> Tensor:
            converted = fn(x)
            if converted.dtype not in (x.dtype, *self.dtypes):
                raise TypeError(
                    f"{type(self).__name__} was to be converted to {converted.dtype}; its parameters may be "
                    f"{' or '.join(str(dtype) for dtype in self.dtypes)}. torch.autocast runs a layer with float32 parameters in "
                    "half precision and keeps its recurrence in float32"
                )
            return converted

        converted: Self = super()._apply(checked, recurse)  # type: ignore[no-untyped-call]
        return converted

    @staticmethod
    def full_precision(x: Tensor) -> torch.autocast:
        """A context that switches autocast off on x's device, so that recurrences run in their parameters' dtype."""
        return torch.autocast(x.device.type, enabled=False)

    def recurrent(self, state: Any) -> Tensor:
        """The part of a state that the eigenvalues multiply, as a view (batch, ...). An eigenvalue's states are adjacent."""
        part: Tensor = state if isinstance(state, Tensor) else state[-1]
        return part

    def transition(self, x_t: Tensor) -> Tensor:
        """The factor by which one step with input x_t (1, d_model) multiplies each state: (eigenvalues, states per eigenvalue).

        The factor is measured by one step from each of two different states. Override this method if the eigenvalues do not
        multiply the stored states directly.
        """
        start = self.initial_state(1)
        moved = copy.deepcopy(start)
        part = self.recurrent(moved)
        change = torch.linspace(1, 2, part.numel(), dtype=part.dtype.to_real(), device=part.device).view_as(part)
        part += change
        _, after_start = self.step(x_t, start)
        _, after_moved = self.step(x_t, moved)
        factors = (self.recurrent(after_moved) - self.recurrent(after_start)) / change
        return factors.reshape(self.records()[0].width, -1)

    def extra_repr(self) -> str:
        width, map_ = self.records()[0].width, getattr(self, "reparameterization", None)
        return f"eigenvalues={width}" + (f", reparameterization={map_.name} ({map_.time})" if map_ is not None else "")


class ConvolutionLayer(WatchedLayer):
    """A layer whose forward pass is a convolution. The last state is computed only when `last_state` is read."""

    def __init__(self, reparameterization: Reparameterization, scan_backend: str = "auto") -> None:
        super().__init__(reparameterization, scan_backend)
        self._last_state: Tensor | None = None
        self._pending: tuple[Callable[..., Tensor], tuple[Tensor, ...]] | None = None

    def watch_later(self, compute: Callable[..., Tensor], *given: Tensor) -> None:
        """Make `last_state` return |h| = compute(*given), (batch, eigenvalues), computed only when `last_state` is read.

        `given` must not contain a parameter, because the optimizer may change the parameter before `last_state` is read.
        """
        self._last_state = None
        self._pending = None if transformed() else (compute, tuple(x.detach() for x in given))

    @property
    def last_state(self) -> Tensor | None:
        """|h| after the last step of the last forward pass, (batch, eigenvalues), detached; None before the first pass."""
        if self._pending is not None:
            compute, given = self._pending
            with torch.no_grad():
                self.last_state = compute(*given)
        return self._last_state

    @last_state.setter
    def last_state(self, state: Tensor | None) -> None:
        self._last_state, self._pending = state, None
