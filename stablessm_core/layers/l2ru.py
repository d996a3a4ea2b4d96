"""L2RU (arXiv 2503.23818) in its square, complete parametrisation: the weights can represent every system with the given gain."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.l2ru_certificate import System, certified, gain_on_grid, rounded
from stablessm_core.layers.parts.l2ru_scan import matrix_scan
from stablessm_core.layers.parts.modes import wide
from stablessm_core.spec.layers.l2ru import L2ru
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record


class L2RU(WatchedLayer):
    """y_t = C h_t + D x_t, h_{t+1} = A h_t + B x_t from h_0 = 0. Input and output are (batch, length, d_model).

    There are d_model states. As published, y_t is computed from the state before x_t updates the state. For all values of the
    weights and all input sequences, |y|_2 <= gamma |x|_2 (`parts.l2ru_certificate` has the formulas). The layer is linear; the
    block's MLP provides the nonlinearity. Each forward pass computes the matrices in float64 and rounds them to the weights'
    precision in such a way that the bound also holds for the rounded matrices. The state is stored in coordinates in which A is
    a contraction: in the published coordinates, rounding errors would grow without bound for alpha above about 16.

    Parameters, with n = d_model: X11, X22 (1, n(n+1)/2), lower triangles stored row by row; X21, C, Dt (1, n, n); skew (1,
    n(n-1)/2), an upper triangle; alpha (1,); and gamma (1,) if it is trained. The first axis is the axis of recorded
    eigenvalues. It has size 1, because all weights together determine the eigenvalues. With init "eye", every |lambda| is
    initially near 0.98. gamma is 1 by default.

    Records: the spectral radius of A, as a decay -ln|lambda| that the layer reports, and alpha, which sets how much of the gain
    is used. `measured` returns all eigenvalues and the gain.
    """

    lower: Tensor
    upper: Tensor
    gamma: Tensor

    def __init__(self, d_model: int, *, gamma: float = 1.0, train_gamma: bool = False, init: str = "eye") -> None:
        super().__init__()
        n = d_model
        self._A: Tensor | None = None  # the matrix A of the last forward pass, detached
        self.register_buffer("lower", torch.tril_indices(n, n), persistent=False)
        self.register_buffer("upper", torch.triu_indices(n, n, offset=1), persistent=False)
        unit = torch.eye(n)
        X11, X22, X21 = (0.01 * unit, 0.01 * unit, 0.1 * unit) if init == "eye" else torch.randn(3, n, n)
        small = 0.01 * torch.randn(n, n)
        self.X11 = nn.Parameter(X11[tuple(self.lower)][None])
        self.X22 = nn.Parameter(X22[tuple(self.lower)][None])
        self.X21 = nn.Parameter(X21[None].clone())
        self.C = nn.Parameter(unit[None].clone())
        self.Dt = nn.Parameter(unit[None].clone())
        self.skew = nn.Parameter((small - small.T)[tuple(self.upper)][None]) if n > 1 else None
        self.alpha = nn.Parameter(torch.tensor([4.1]))
        if train_gamma:
            self.gamma = nn.Parameter(torch.tensor([gamma]))
        else:
            self.register_buffer("gamma", torch.tensor([gamma]))

    def forward(self, x: Tensor) -> Tensor:
        A, B, C, D, _ = rounded(self.system(), self.C.dtype)
        with self.full_precision(x):
            x = x.to(A.dtype)
            h = matrix_scan(A, functional.linear(x, B))
            before = functional.pad(h[:, :-1], (0, 0, 1, 0))
            y = functional.linear(before, C) + functional.linear(x, D)
        self.watch(h[:, -1].detach().abs().amax(1, keepdim=True))
        self._A = None if self.last_state is None else A.detach()
        return y

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence: x_t, state (batch, d_model) -> (y_t, next state)."""
        A, B, C, D, _ = rounded(self.system(), self.C.dtype)
        with self.full_precision(x_t):
            x_t = x_t.to(A.dtype)
            y = functional.linear(state, C) + functional.linear(x_t, D)
            return y, functional.linear(state, A) + functional.linear(x_t, B)

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, (batch, d_model)."""
        return self.C.new_zeros(batch, self.C.shape[-1])

    def transition(self, x_t: Tensor) -> Tensor:
        """The spectral radius of the matrix by which one step multiplies the state, (1, 1), as in the layer's form."""
        unit = torch.eye(self.C.shape[-1], dtype=x_t.dtype)
        rows = self.step(x_t.expand_as(unit), unit)[1] - self.step(x_t, 0 * x_t)[1]
        return _moduli(rows.double())[:1, None]

    def records(self) -> list[Record]:
        deciding = (self.X11, self.X21, self.X22, self.C, self.Dt, self.skew, self.alpha, self.gamma)
        rows = tuple(p for p in deciding if isinstance(p, nn.Parameter))
        radius = Record(Form("gate", "discrete", "none", gate=True), rows=rows, gate="decay", gates=1, constant_gate=True)
        return [radius, Record(Form("none", "discrete", "none"), self.alpha, name="alpha")]

    @torch.no_grad()
    def gates(self) -> dict[str, Tensor]:
        """decay: -ln of the spectral radius of A in the last forward pass, (3, 1): three equal values, because A is constant."""
        if self._A is None:
            return {}
        return {"decay": -_moduli(self._A.double())[:1].log().expand(3, 1).to(self._A.dtype)}

    @torch.no_grad()
    def measured(self) -> dict[str, Tensor]:
        """|lambda| of A, the distance 1 - |lambda|, and two gains; NaN if the certificate does not exist.

        |lambda| and distance: float32 (d_model,), largest |lambda| first. Gains: the certified gain, and the gain measured on a
        grid of 2,001 frequencies, each (1,). They describe the rounded matrices with which the layer computes.
        """
        system = System(*(matrix.double() for matrix in rounded(self.system(), self.C.dtype)))
        moduli = _moduli(system.A)
        lost = torch.where(system.A.isfinite().all(), 0.0, torch.nan)
        return {
            "true_eigenvalue": moduli.float(),
            "true_boundary_distance": (1 - moduli).float(),
            "certified_gain": self.gamma.abs().float() + lost,
            "measured_gain": gain_on_grid(system).float().reshape(1),
        }

    def system(self) -> System:
        """The matrices A, B, C, D in the coordinates z = K^T h, and K, computed from the weights in float64 with gradients."""
        n = self.C.shape[-1]
        X11, X22 = (_filled(self.lower, weights, n) for weights in (self.X11, self.X22))
        skew = _filled(self.upper, self.skew, n) if self.skew is not None else wide(self.C[0]) * 0
        X21, C, Dt = (wide(matrix[0]) for matrix in (self.X21, self.C, self.Dt))
        return certified(X11, X21, X22, skew - skew.T, C, Dt, wide(self.alpha), wide(self.gamma))


def _filled(places: Tensor, weights: Tensor, n: int) -> Tensor:
    """The float64 matrix (n, n) with the weights (1, count) at the positions (2, count) and 0 elsewhere."""
    return wide(weights).new_zeros(n, n).index_put(tuple(places), wide(weights[0]))


def _moduli(A: Tensor) -> Tensor:
    """|lambda|, largest first, (n,); NaN for a matrix that is not finite."""
    if not A.isfinite().all():
        return torch.full_like(A[0], torch.nan)
    moduli: Tensor = torch.linalg.eigvals(A).abs()
    return moduli.sort(descending=True).values


def build(section: L2ru, given: Surroundings) -> L2RU:
    return L2RU(given.d_model, gamma=section.gamma, train_gamma=section.train_gamma, init=section.init)
