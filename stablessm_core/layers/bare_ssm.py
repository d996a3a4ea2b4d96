"""The layer of a bare model: the recurrence and the activation of StableSSM, without C and D."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.fused.choice import Choice
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.stable_ssm import StableSSM
from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.stable_ssm import StableSsm


class BareSSM(StableSSM):
    """act(h_t) with h_t = lambda_bar h_{t-1} + B_bar x_t, from (batch, length, inputs) to (batch, length, d_state).

    Followed by a linear read-out c, this is the model of the StableSSM paper (arXiv 2311.14495, equations 1 and 2):
    h_t = Lambda h_{t-1} + U x_t, y_t = c act(h_t), with U = B_bar. Initial values, maps and options are those of StableSSM. In
    discrete time U = diag(gamma) B with StableSSM's constant gamma.

    Parameters: w (d_state,), log_dt (d_state,) in continuous time only, B (d_state, inputs).
    """

    def __init__(
        self,
        inputs: int,
        d_state: int,
        *,
        reparameterization: Reparameterization | str = "best",
        eigenvalue_range: tuple[float, float] | None = None,
        activation: str = "tanh",
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(
            inputs,
            d_state,
            reparameterization=reparameterization,
            eigenvalue_range=eigenvalue_range,
            activation=activation,
            scan_backend=scan_backend,
            fused="off",
        )
        del self.C, self.D

    def forward(self, x: Tensor, state: Tensor | None = None, *, return_state: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """act(h); with `return_state`, (act(h), h after the last step). Arguments and errors as in StableSSM."""
        self._check("x", x, ("batch", "length", "d_model"))
        if state is not None:
            self._check("state", state, ("batch", "d_state"), batch=len(x))
        lambda_bar, gain = self._transition()
        driven = functional.linear(x, gain[:, None] * self.B)
        with self.full_precision(x):
            h = linear_scan(lambda_bar, driven.to(lambda_bar.dtype), h0=state, backend=self.scan_backend)
        self.watch(h[:, -1].detach().clone())  # a view would keep the memory of all of h alive
        active = ACTIVATIONS[self.activation].act(h)
        return (active, h[:, -1]) if return_state else active

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence: x_t (batch, inputs), state (batch, d_state) -> (act(h_t), h_t)."""
        self._check("x_t", x_t, ("batch", "d_model"))
        self._check("state", state, ("batch", "d_state"), batch=len(x_t))
        lambda_bar, gain = self._transition()
        h = lambda_bar * state + functional.linear(x_t, gain[:, None] * self.B).to(lambda_bar.dtype)
        return ACTIVATIONS[self.activation].act(h), h

    def choice(self, device: torch.device, steps: int) -> Choice:  # noqa: ARG002
        """No fused layer."""
        return Choice(None, "the layer of a bare model has no fused form")


def build(section: StableSsm, given: Surroundings) -> BareSSM:
    """The layer of a bare model. `given.d_model` is the number of its inputs."""
    assert section.d_state is not None
    assert section.activation is not None
    assert given.reparameterization is not None
    return BareSSM(
        given.d_model,
        section.d_state,
        reparameterization=given.reparameterization,
        eigenvalue_range=section.eigenvalue_range,
        activation=section.activation,
        scan_backend=given.scan_backend,
    )
