"""Configuration of `l2ru`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.layers.section import LayerSection


class L2ru(LayerSection):
    """Square linear system, as many states as features, whose gain in L2 is at most gamma whatever the weights are.

    All weights together decide all eigenvalues. Watched at every step is the largest of them; at evaluations all are measured,
    and the gain on a grid of frequencies beside the certified one.
    """

    built_by: ClassVar[str] = "stablessm_core.layers.l2ru.layer:build"
    title: ClassVar[str] = "L2RU"
    equation: ClassVar[str] = "h_{t+1} = A h_t + B x_t,  y_t = C h_t + D x_t,  ‖y‖₂ ≤ γ ‖x‖₂ for every weight"
    source: ClassVar[str] = "L2RU, arXiv 2503.23818"

    name: Literal["l2ru"] = "l2ru"
    gamma: float = Field(1.0, ge=1e-3, le=1e3, description="The certified gain from input to output.")
    train_gamma: bool = Field(False, description="Whether the gain is trained, from there.")
    init: Literal["eye", "random"] = Field("eye", description="Initial weights: multiples of the identity, or standard normal.")

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002
        return 1

    def parameters(self, d_model: int) -> int:
        n = d_model
        return n * (n + 1) + n * (n - 1) // 2 + 3 * n * n + 1 + self.train_gamma

    def activations(self, d_model: int) -> int:
        return 2 * d_model
