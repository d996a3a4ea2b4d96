"""The Hyena mixer. It multiplies the input and the output of a state-space layer by projections of the mixer's input.

A state-space layer cannot recall tokens without these products. The mixer is Hyena (arXiv 2302.10866) of order 2 with a
state-space model as its long convolution. H3 (arXiv 2212.14052) has the same form with a shift instead of the three-tap
convolution.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.parts.short_convolution import ShortConvolution
from stablessm_core.spec.layers.hyena import Hyena
from stablessm_core.watch.watchable import Record


class HyenaMixer(WatchedLayer):
    """y = W_out (x0 * SSM(x1 * v)) with (x0, x1, v) = conv3(W_in u). Input and output are (batch, length, d_model).

    inner: the SSM, a layer of width d_model whose eigenvalues are recorded. The mixer removes the `readout` of the inner layer,
    because the published layers are linear between the two products.
    Parameters: project_in (3 d_model, d_model), short (3 d_model, taps), project_out (d_model, d_model), each with a bias.
    """

    def __init__(self, d_model: int, inner: nn.Module, *, taps: int = 3) -> None:
        super().__init__()
        if not isinstance(inner, WatchedLayer):
            raise TypeError(f"inner is {type(inner).__name__}; needs a layer that is watched")
        self.inner: Any = inner
        if hasattr(inner, "readout"):
            self.inner.readout = nn.Identity()
        self.project_in = nn.Linear(d_model, 3 * d_model)
        self.short = ShortConvolution(3 * d_model, taps)
        self.project_out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        gate, key, value = self.short(self.project_in(x)).chunk(3, dim=-1)
        y: Tensor = self.project_out(gate * self.inner(key * value))
        return y

    def step(self, x_t: Tensor, state: tuple[Tensor, Any]) -> tuple[Tensor, tuple[Tensor, Any]]:
        """One step: x_t (batch, d_model) -> (y_t, next state).

        state: the last inputs of the short convolution, and the inner layer's state.
        """
        before, within = state
        mixed, before = self.short.step(self.project_in(x_t), before)
        gate, key, value = mixed.chunk(3, dim=-1)
        y, within = self.inner.step(key * value, within)
        return self.project_out(gate * y), (before, within)

    def initial_state(self, batch: int) -> tuple[Tensor, Any]:
        return self.short.initial_state(batch), self.inner.initial_state(batch)

    @property
    def not_probed(self) -> str:  # type: ignore[override]
        return str(self.inner.not_probed)

    def recurrent(self, state: tuple[Tensor, Any]) -> Tensor:
        part: Tensor = self.inner.recurrent(state[1])
        return part

    def transition(self, x_t: Tensor) -> Tensor:
        factors: Tensor = self.inner.transition(x_t)
        return factors

    @property
    def last_state(self) -> Tensor | None:  # type: ignore[override]
        state: Tensor | None = self.inner.last_state
        return state

    def records(self) -> list[Record]:
        records: list[Record] = self.inner.records()
        return records

    def gates(self) -> dict[str, Tensor]:
        gates: dict[str, Tensor] = self.inner.gates()
        return gates

    def measured(self) -> dict[str, Tensor]:
        """The values that the inner layer computes only during evaluations; {} for most layers."""
        measure = getattr(self.inner, "measured", dict)
        measured: dict[str, Tensor] = measure()
        return measured


def build(section: Hyena, given: Surroundings) -> HyenaMixer:
    return HyenaMixer(given.d_model, build_layer(section.inner, given), taps=section.taps)
