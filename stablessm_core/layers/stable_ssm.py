"""The StableSSM layer: a real diagonal linear recurrence with the nonlinearity in the readout.

StableSSM (arXiv 2311.14495), equations 1 and 2: dh/dt = Lambda h + B x, y = C act(h) + D x, Lambda = Diag(f(w)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.fused.choice import MODES, Choice, choose
from stablessm_core.fused.operator import fused_layer
from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.step_sizes import log_uniform
from stablessm_core.map import saturated_exp
from stablessm_core.maps import default_eigenvalue_range
from stablessm_core.network.blocks import StateSpace, apply, can_run
from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.numerics.differentiation import transformed
from stablessm_core.numerics.discretization import input_gain
from stablessm_core.reparameterization import Reparameterization, get_reparameterization, initial_eigenvalues
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.stable_ssm import StableSsm
from stablessm_core.watch.watchable import Record


class StableSSM(WatchedLayer):
    """y_t = C act(h_t) + D x_t with h_t = lambda_bar h_{t-1} + B_bar x_t. Input and output are (batch, length, d_model).

    Discrete time: lambda_bar = f(w) and B_bar = diag(gamma) B, where gamma is constant and equals sqrt(1 - lambda_bar^2) for
    the initial eigenvalues. Continuous time: zero-order hold with a trainable step size per state, lambda_bar = e^{dt f(w)} and
    B_bar = (e^{dt f(w)} - 1)/f(w) B.

    A white input of variance v gives a state the variance v |B_bar|^2 / (1 - lambda_bar^2). So initially
    |B_bar|^2 = 1 - lambda_bar^2, in discrete time and in continuous time (LRU's normalisation, arXiv 2303.06349). Then every
    state has the scale of the input, whether its memory is short or long. At this scale act is nonlinear but not saturated.

    In discrete time gamma is not part of B. Otherwise the rows of B for eigenvalues near 1 would have small entries, and a
    single Adam step of fixed size would be much larger than those entries. Gamma is constant, so the gradient of w flows only
    through f. All initial values depend only on the eigenvalues, so with every map the layer starts as the same function.

    Parameters: w (d_state,), log_dt (d_state,) in continuous time only, B (d_state, d_model), C (d_model, d_state),
    D (d_model,); buffer gamma (d_state,) in discrete time only. w and log_dt must be float32 or float64; the recurrence runs in
    their dtype even under autocast, which computes the products with B and C in a lower precision.

    reparameterization: a map, or the name of a discrete-time map. eigenvalue_range: (low, high) of the initial f(w), the same
    for every map. dt_range: the range of the initial step sizes, which are log-uniform. activation: one of ACTIVATIONS.
    scan_backend: as in `linear_scan`. fused: "on" recomputes the states in the backward pass instead of keeping them
    (`fused.operator`), "off" keeps the states, "auto" follows the table of measurements in `fused.choice`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        *,
        reparameterization: Reparameterization | str = "best",
        eigenvalue_range: tuple[float, float] | None = None,
        activation: str = "tanh",
        scan_backend: str = "auto",
        dt_range: tuple[float, float] = (1e-3, 1e-1),
        fused: str = "auto",
    ) -> None:
        super().__init__(scan_backend=scan_backend)
        if d_model < 1 or d_state < 1:
            raise ValueError(f"d_model is {d_model} and d_state is {d_state}; both need to be at least 1")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; allowed: {sorted(ACTIVATIONS)}")
        if not 0 < dt_range[0] <= dt_range[1] < math.inf:
            raise ValueError(f"dt_range is {dt_range}; needs 0 < low <= high")
        if fused not in MODES:
            raise ValueError(f"fused is {fused!r}; allowed: {', '.join(MODES)}")
        if isinstance(reparameterization, str):
            reparameterization = get_reparameterization(reparameterization)
        self.reparameterization = reparameterization
        self.fused = fused
        self.activation = activation
        time = reparameterization.time
        low, high = eigenvalue_range or default_eigenvalue_range(time)
        w = reparameterization.inverse(initial_eigenvalues(low, high, d_state, time))
        self.w = nn.Parameter(w.float())
        self.log_dt: nn.Parameter | None = None
        if time == "continuous":
            self.log_dt = nn.Parameter(log_uniform(*dt_range, d_state))
        B = torch.randn(d_state, d_model) / math.sqrt(d_model)
        scale = self._balanced_scale()
        self.gamma: Tensor | None
        self.register_buffer("gamma", scale if time == "discrete" else None)
        with torch.no_grad():
            self.B = nn.Parameter(B if time == "discrete" else (scale / self._transition()[1])[:, None] * B)
        self.C = nn.Parameter(torch.randn(d_model, d_state) / math.sqrt(d_state))
        self.D = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor, state: Tensor | None = None, *, return_state: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """y; with `return_state`, (y, h after the last step).

        state: h_0, (batch, d_state); None means zero. If a sequence is split into pieces, and each piece starts from the state
        that the previous piece returned, the output is the same as for the whole sequence, up to rounding. Gradients pass
        through the state unless the state is detached. A call with `state` or `return_state` is never fused.
        Raises ValueError or TypeError if shapes, devices or dtypes do not match.
        """
        self._check("x", x, ("batch", "length", "d_model"))
        if state is not None:
            self._check("state", state, ("batch", "d_state"), batch=len(x))
        seen = transformed()
        if not (seen or return_state or state is not None):
            # The fused operator supports only one reverse-mode derivative. int() makes the number of steps a constant for the
            # compiler.
            backend = self.choice(x.device, int(math.prod(x.shape[:-1]))).backend
            if backend is not None:
                return self._fused(x, backend)
        lambda_bar, gain = self._transition()
        driven = functional.linear(x, gain[:, None] * self.B)  # scale B instead of the activations, because B is smaller
        with self.full_precision(x):
            h = linear_scan(lambda_bar, driven.to(lambda_bar.dtype), h0=state, backend=self.scan_backend)
        self.watch(h[:, -1].detach().clone())  # a view would keep the memory of all of h alive
        y = functional.linear(ACTIVATIONS[self.activation].act(h), self.C) + self.D * x
        return (y, h[:, -1]) if return_state else y

    def residual(self, x: Tensor, norm: nn.LayerNorm) -> Tensor | None:
        """x + self(norm(x)), computed by the compiled CPU kernels; None if the kernels do not support this case."""
        if x.dim() != 3 or self.fused == "on" or not can_run(self.scan_backend, x, self.w):
            return None
        self._check("x", x, ("batch", "length", "d_model"))
        y, self.last_state = apply(self.first_half(norm), x, *self.given(norm))
        return y

    def first_half(self, norm: nn.LayerNorm) -> StateSpace:
        """The operation x + self(norm(x)). In continuous time, its inputs are lambda_bar and the scaled B, not w and B."""
        if self.log_dt is None:
            return StateSpace(norm.eps, self.activation, self.reparameterization, self.gamma)
        return StateSpace(norm.eps, self.activation)

    def given(self, norm: nn.LayerNorm) -> tuple[Tensor, ...]:
        """The weights of x + self(norm(x)), in the form that the operation `first_half` takes as inputs."""
        if self.log_dt is None:
            return norm.weight, norm.bias, self.w, self.B, self.C, self.D
        lambda_bar, gain = self._transition()
        return norm.weight, norm.bias, lambda_bar, gain[:, None] * self.B, self.C, self.D

    def choice(self, device: torch.device, steps: int) -> Choice:
        """The choice between the fused and the unfused layer on this device for inputs of `steps` = batch x length."""
        d_state, d_model = self.B.shape
        choice: Choice = choose(
            self.fused, device, d_model=d_model, d_state=d_state, steps=steps, dtype=self.w.dtype, scan_backend=self.scan_backend
        )
        return choice

    def _fused(self, x: Tensor, backend: str) -> Tensor:
        lambda_bar, gain = self._transition()
        lower = torch.is_autocast_enabled(x.device.type)
        products = torch.get_autocast_dtype(x.device.type) if lower else self.w.dtype
        with self.full_precision(x):
            y, self.last_state = fused_layer(
                lambda_bar, gain[:, None] * self.B, self.C, self.D, x,
                activation=self.activation, products=products, backend=backend,
            )  # fmt: skip
        return y

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence: x_t (batch, d_model), state (batch, d_state) -> (y_t, next state)."""
        self._check("x_t", x_t, ("batch", "d_model"))
        self._check("state", state, ("batch", "d_state"), batch=len(x_t))
        lambda_bar, gain = self._transition()
        driven = functional.linear(x_t, gain[:, None] * self.B)
        h = lambda_bar * state + driven.to(lambda_bar.dtype)
        return functional.linear(ACTIVATIONS[self.activation].act(h), self.C) + self.D * x_t, h

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, (batch, d_state)."""
        return self.w.new_zeros(batch, self.w.shape[0])

    def eigenvalues(self) -> Tensor:
        """The current eigenvalues lambda_bar of the recurrence, (d_state,), without gradient."""
        with torch.no_grad():
            return self._transition()[0].clone()  # cloned, because with the map `direct` the eigenvalues are w itself

    def records(self) -> list[Record]:
        return [Record(self.reparameterization.form, self.w, self.log_dt)]

    def _check(self, name: str, given: Tensor, axes: tuple[str, ...], batch: int | None = None) -> None:
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(given).__name__}")
        d_state, d_model = self.B.shape
        wanted = {"d_model": d_model, "d_state": d_state, "batch": batch, "length": None}
        shape = tuple(given.shape)
        fits = len(shape) == len(axes) and all(wanted[axis] in (None, size) for axis, size in zip(axes, shape, strict=True))
        if not fits or shape[1] == 0:
            described = ", ".join(axis if wanted[axis] is None else f"{axis} = {wanted[axis]}" for axis in axes)
            raise ValueError(f"{name} must be ({described}){', length at least 1' * (len(axes) == 3)}, got {shape}")
        if given.device != self.w.device:
            raise ValueError(f"{name} is on {given.device}, the layer on {self.w.device}; both must be on one device")
        lower = name != "state" and (self.fused == "on" or torch.is_autocast_enabled(given.device.type))
        if not given.is_floating_point() or not (lower or given.dtype == self.w.dtype):
            raise TypeError(f"{name} is {given.dtype}, the layer {self.w.dtype}; convert one, or call under torch.autocast")

    def _transition(self) -> tuple[Tensor, Tensor]:
        """lambda_bar, and the factor by which each row of B is multiplied to give B_bar; both (d_state,)."""
        if self.log_dt is None:
            assert self.gamma is not None
            return self.reparameterization.lambda_bar(self.w), self.gamma
        dt = saturated_exp(self.log_dt, torch)
        return self.reparameterization.lambda_bar(self.w, dt), input_gain(self.reparameterization(self.w), dt)

    @torch.no_grad()
    def _balanced_scale(self) -> Tensor:
        """sqrt(1 - lambda_bar^2), (d_state,)."""
        dt = None if self.log_dt is None else self.log_dt.exp()
        distance = self.reparameterization.boundary_distance(self.w, dt)
        return (distance * (2 - distance)).sqrt()


def build(section: StableSsm, given: Surroundings) -> StableSSM:
    assert section.d_state is not None
    assert section.activation is not None
    assert given.reparameterization is not None
    return StableSSM(
        given.d_model,
        section.d_state,
        reparameterization=given.reparameterization,
        eigenvalue_range=section.eigenvalue_range,
        activation=section.activation,
        scan_backend=given.scan_backend,
        fused=given.fused,
    )
