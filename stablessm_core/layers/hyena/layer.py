"""The mixer: what a state-space layer lacks to recall, two products with projections of the input, put around one.

Hyena (arXiv 2302.10866) of order 2 with a state-space model as its long convolution, which is the form of H3 (arXiv 2212.14052)
with a convolution of three taps in place of the shift.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.convolution import ShortConvolution
from stablessm_core.layers.hyena.section import Hyena
from stablessm_core.telemetry.watch import Record, Watchable


class HyenaMixer(nn.Module):
    """y = W_out (x0 * SSM(x1 * v)) with (x0, x1, v) = conv3(W_in u): (batch, length, d_model) to the same.

    inner: the SSM, a layer with forward, step and initial_state, d_model wide; it is what is watched. A `readout` of its own is
    left out: within the products the published layers are linear.
    Parameters: project_in (3 d_model, d_model), short (3 d_model, taps), project_out (d_model, d_model), each with a bias.
    """

    def __init__(self, d_model: int, inner: nn.Module, *, taps: int = 3) -> None:
        super().__init__()
        if not isinstance(inner, Watchable):
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
        """One step in time: x_t (batch, d_model), state (inputs of the short convolution, the inner layer's state)."""
        before, within = state
        mixed, before = self.short.step(self.project_in(x_t), before)
        gate, key, value = mixed.chunk(3, dim=-1)
        y, within = self.inner.step(key * value, within)
        return self.project_out(gate * y), (before, within)

    def initial_state(self, batch: int) -> tuple[Tensor, Any]:
        return self.short.initial_state(batch), self.inner.initial_state(batch)

    @property
    def last_state(self) -> Tensor | None:
        state: Tensor | None = self.inner.last_state
        return state

    def records(self) -> list[Record]:
        records: list[Record] = self.inner.records()
        return records

    def gates(self) -> dict[str, Tensor]:
        gates: dict[str, Tensor] = self.inner.gates()
        return gates

    def measured(self) -> dict[str, Tensor]:
        """What the inner layer computes at evaluations only; {} of most."""
        measure = getattr(self.inner, "measured", dict)
        measured: dict[str, Tensor] = measure()
        return measured


def build(section: Hyena, given: Surroundings) -> HyenaMixer:
    return HyenaMixer(given.d_model, build_layer(section.inner, given), taps=section.taps)
