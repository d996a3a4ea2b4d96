"""The state-space layer itself: a real diagonal linear recurrence with the nonlinearity in the readout.

StableSSM (arXiv 2311.14495), equations 1 and 2: dh/dt = Lambda h + B x, y = C act(h) + D x, Lambda = Diag(f(w)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.activations import ACTIVATIONS
from stablessm_core.compiled.blocks import StateSpace, apply, serves
from stablessm_core.differentiation import transformed
from stablessm_core.discretization import input_gain
from stablessm_core.fused.choice import MODES, Choice, choose
from stablessm_core.fused.operator import fused_layer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.stable_ssm.section import StableSsm
from stablessm_core.maps import default_eigenvalue_range
from stablessm_core.maps.elementary import saturated_exp
from stablessm_core.reparameterization import Reparameterization, get_reparameterization, initial_eigenvalues
from stablessm_core.scan import linear_scan
from stablessm_core.telemetry.watch import Record


class StableSSM(nn.Module):
    """y_t = C act(h_t) + D x_t with h_t = lambda_bar h_{t-1} + B_bar x_t: (batch, length, d_model) to the same.

    Discrete time: lambda_bar = f(w), B_bar = diag(gamma) B with the constant gamma = sqrt(1 - lambda_bar^2) of the initial
    eigenvalues. Continuous time: zero-order hold with a trainable step per state, lambda_bar = e^{dt f(w)},
    B_bar = (e^{dt f(w)} - 1)/f(w) B.

    White input of variance v leaves a state with variance v |B_bar|^2 / (1 - lambda_bar^2). Both times therefore start with
    |B_bar|^2 = 1 - lambda_bar^2: every state, of long memory or short, at the input's own scale, where act is curved but not
    flat (LRU's normalisation, arXiv 2303.06349). In discrete time gamma stands apart from B, or the rows of long memory would
    be small numbers that a step of Adam's fixed size overturns; it is constant, so the gradient of w stays that of f alone. Both
    depend on the eigenvalues only: every map starts as the same function.

    Parameters: w (d_state,), log_dt (d_state,) in continuous time only, B (d_state, d_model), C (d_model, d_state),
    D (d_model,); buffer gamma (d_state,) in discrete time only. w and log_dt must be float32 or float64; the recurrence runs in
    their dtype even under autocast, where the products with B and C are taken in the lower precision.

    reparameterization: a map, or the name of one in discrete time. eigenvalue_range: (low, high) of the initial f(w), the same
    for every map; dt_range: initial steps are log-uniform in it;
    activation: one of ACTIVATIONS; scan_backend: as in `linear_scan`. fused: "on" makes the states again in the backward pass
    instead of keeping them (`fused.operator`), "off" keeps them, "auto" asks the measured table of `fused.choice`.
    """

    last_state: Tensor | None  # (batch, d_state), detached: the final state of the last forward, unless torch.func saw it

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
        super().__init__()
        if d_model < 1 or d_state < 1:
            raise ValueError(f"d_model is {d_model} and d_state is {d_state}; both need to be at least 1")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; allowed are {sorted(ACTIVATIONS)}")
        if not 0 < dt_range[0] <= dt_range[1] < math.inf:
            raise ValueError(f"dt_range is {dt_range}; needs 0 < low <= high")
        if fused not in MODES:
            raise ValueError(f"fused is {fused!r}; allowed are {', '.join(MODES)}")
        if isinstance(reparameterization, str):
            reparameterization = get_reparameterization(reparameterization)
        self.reparameterization = reparameterization
        self.fused = fused
        self.activation = activation
        self.scan_backend = scan_backend
        self.last_state = None
        time = reparameterization.time
        low, high = eigenvalue_range or default_eigenvalue_range(time)
        w = reparameterization.inverse(initial_eigenvalues(low, high, d_state, time))
        self.w = nn.Parameter(w.float())
        self.log_dt: nn.Parameter | None = None
        if time == "continuous":
            start, end = math.log(dt_range[0]), math.log(dt_range[1])
            self.log_dt = nn.Parameter(start + (end - start) * torch.rand(d_state))
        B = torch.randn(d_state, d_model) / math.sqrt(d_model)
        scale = self._balanced_scale()
        self.gamma: Tensor | None
        self.register_buffer("gamma", scale if time == "discrete" else None)
        with torch.no_grad():
            self.B = nn.Parameter(B if time == "discrete" else (scale / self._transition()[1])[:, None] * B)
        self.C = nn.Parameter(torch.randn(d_model, d_state) / math.sqrt(d_state))
        self.D = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor, state: Tensor | None = None, *, return_state: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """y, or with `return_state` (y, h after the last step), from h_0 = `state`, (batch, d_state), zero without one.

        x in pieces, each from the state that the piece before returned, gives what x as a whole gives, to rounding; gradients
        pass through the state unless it is detached. A call that is given or asked for a state is never fused. Raises
        ValueError and TypeError for shapes, devices and dtypes that do not fit.
        """
        self._check("x", x, ("batch", "length", "d_model"))
        if state is not None:
            self._check("state", state, ("batch", "d_state"), batch=len(x))
        seen = transformed()
        if not (seen or return_state or state is not None):
            # int: a number the compiler may not keep open; the fused operator is differentiable once, and backward only
            backend = self.choice(x.device, int(math.prod(x.shape[:-1]))).backend
            if backend is not None:
                return self._fused(x, backend)
        lambda_bar, gain = self._transition()
        driven = functional.linear(x, gain[:, None] * self.B)  # scaled on the weight, which is smaller than the activations
        with torch.autocast(x.device.type, enabled=False):
            h = linear_scan(lambda_bar, driven.to(lambda_bar.dtype), h0=state, backend=self.scan_backend)
        self.last_state = None if seen else h[:, -1].detach().clone()  # a view would keep all of h alive
        y = functional.linear(ACTIVATIONS[self.activation].act(h), self.C) + self.D * x
        return (y, h[:, -1]) if return_state else y

    def residual(self, x: Tensor, norm: nn.LayerNorm) -> Tensor | None:
        """x + self(norm(x)) by the compiled kernels of a CPU, or None where those do not serve."""
        if x.dim() != 3 or self.fused == "on" or not serves(self.scan_backend, x, self.w):
            return None
        self._check("x", x, ("batch", "length", "d_model"))
        y, self.last_state = apply(self.first_half(norm), x, *self.given(norm))
        return y

    def first_half(self, norm: nn.LayerNorm) -> StateSpace:
        """What is constant of x + self(norm(x)); in continuous time it is given lambda_bar and B with its gain."""
        if self.log_dt is None:
            return StateSpace(norm.eps, self.activation, self.reparameterization, self.gamma)
        return StateSpace(norm.eps, self.activation)

    def given(self, norm: nn.LayerNorm) -> tuple[Tensor, ...]:
        """The weights of x + self(norm(x)), as that half is given them."""
        if self.log_dt is None:
            return norm.weight, norm.bias, self.w, self.B, self.C, self.D
        lambda_bar, gain = self._transition()
        return norm.weight, norm.bias, lambda_bar, gain[:, None] * self.B, self.C, self.D

    def choice(self, device: torch.device, steps: int) -> Choice:
        """Fused or not on this device for inputs of `steps` = batch x length."""
        d_model, d_state = self.C.shape
        choice: Choice = choose(
            self.fused, device, d_model=d_model, d_state=d_state, steps=steps, dtype=self.w.dtype, scan_backend=self.scan_backend
        )
        return choice

    def _fused(self, x: Tensor, backend: str) -> Tensor:
        lambda_bar, gain = self._transition()
        lower = torch.is_autocast_enabled(x.device.type)
        products = torch.get_autocast_dtype(x.device.type) if lower else self.w.dtype
        with torch.autocast(x.device.type, enabled=False):
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
        """lambda_bar, (d_state,), of the recurrence as it stands; carries no gradient."""
        with torch.no_grad():
            return self._transition()[0].clone()  # direct's eigenvalue is w itself

    def records(self) -> list[Record]:
        return [Record(self.reparameterization.form, self.w, self.log_dt)]

    def gates(self) -> dict[str, Tensor]:
        return {}

    def extra_repr(self) -> str:
        d_model, d_state = self.C.shape
        map_ = self.reparameterization
        return f"d_model={d_model}, d_state={d_state}, reparameterization={map_.name} ({map_.time}), activation={self.activation}"

    def _check(self, name: str, given: Tensor, axes: tuple[str, ...], batch: int | None = None) -> None:
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(given).__name__}")
        d_model, d_state = self.C.shape
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
        """lambda_bar and the rows' factor B_bar / B, both (d_state,)."""
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
