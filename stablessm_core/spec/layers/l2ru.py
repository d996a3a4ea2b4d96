"""Configuration of `l2ru`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection


class L2ru(LayerSection):
    """Linear system with as many states as features. Its L2 gain is at most gamma for any weights.

    All eigenvalues depend on all weights. The largest eigenvalue is recorded at every step. All eigenvalues, and the gain on a
    grid of frequencies, are computed only during evaluations.
    """

    title: ClassVar[str] = "L2RU"
    equation: ClassVar[str] = "h_{t+1} = A h_t + B x_t,  y_t = C h_t + D x_t,  ‖y‖₂ ≤ γ ‖x‖₂ for every weight"
    source: ClassVar[str] = "L2RU, arXiv 2503.23818"

    name: Literal["l2ru"] = "l2ru"
    gamma: float = Field(1.0, ge=1e-3, le=1e3, description="The certified gain from input to output.")
    train_gamma: bool = Field(False, description="true: train the gain, starting at gamma.")
    init: Literal["eye", "random"] = Field("eye", description="Initial weights: multiples of the identity, or standard normal.")

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002
        return 1

    def parameters(self, d_model: int) -> int:
        n = d_model
        return n * (n + 1) + n * (n - 1) // 2 + 3 * n * n + 1 + self.train_gamma

    def activations(self, d_model: int) -> int:
        return 2 * d_model
