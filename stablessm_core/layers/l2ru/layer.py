"""L2RU (arXiv 2503.23818), its square and complete parametrisation: every system of that gain is one of its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.differentiation import transformed
from stablessm_core.forms import Form
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.l2ru.certificate import System, certified, gain_on_grid
from stablessm_core.layers.l2ru.scan import matrix_scan
from stablessm_core.layers.l2ru.section import L2ru
from stablessm_core.layers.modes import wide
from stablessm_core.telemetry.watch import Record


class L2RU(nn.Module):
    """y_t = C h_t + D x_t, h_{t+1} = A h_t + B x_t from h_0 = 0: (batch, length, d_model) to the same, with d_model states.

    The output reads the state before the input's update, as published. For every value of the weights |y|_2 <= gamma |x|_2 over
    all sequences (`l2ru.certificate` has the formulas); the layer is linear, the nonlinearity is the block's MLP. The matrices
    are made in float64 at each forward and rounded to the weights' precision. Where their Cholesky factors do not exist the
    output is NaN.

    Parameters, n = d_model: X11, X22 (1, n(n+1)/2) lower triangles row by row, X21, C, Dt (1, n, n), skew (1, n(n-1)/2) the upper
    triangle, alpha (1,), and gamma (1,) if it is trained. Their first axis is that of the record: all of them together decide the
    eigenvalues. Starts with |lambda| near 0.98 for all ("eye"), gamma = 1.

    Watched: the spectral radius of A, as a decay -ln|lambda| that the layer reports itself, and alpha, which sets how much of the
    gain is used. `measured` gives all eigenvalues, and the gain.
    """

    last_state: Tensor | None  # (batch, 1), the largest |h| after the last step of the last forward
    lower: Tensor
    upper: Tensor
    gamma: Tensor

    def __init__(self, d_model: int, *, gamma: float = 1.0, train_gamma: bool = False, init: str = "eye") -> None:
        super().__init__()
        n = d_model
        self.last_state = None
        self._A: Tensor | None = None  # of the last forward, detached
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
        A, B, C, D = self._rounded()
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(A.dtype)
            h = matrix_scan(A, functional.linear(x, B))
            before = functional.pad(h[:, :-1], (0, 0, 1, 0))
            y = functional.linear(before, C) + functional.linear(x, D)
        seen = transformed()
        self.last_state = None if seen else h[:, -1].detach().abs().amax(1, keepdim=True)
        self._A = None if seen else A.detach()
        return y

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence: x_t, state (batch, d_model) -> (y_t, next state)."""
        A, B, C, D = self._rounded()
        with torch.autocast(x_t.device.type, enabled=False):
            x_t = x_t.to(A.dtype)
            y = functional.linear(state, C) + functional.linear(x_t, D)
            return y, functional.linear(state, A) + functional.linear(x_t, B)

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, (batch, d_model)."""
        return self.C.new_zeros(batch, self.C.shape[-1])

    def records(self) -> list[Record]:
        deciding = (self.X11, self.X21, self.X22, self.C, self.Dt, self.skew, self.alpha, self.gamma)
        rows = tuple(p for p in deciding if isinstance(p, nn.Parameter))
        radius = Record(Form("gate", "discrete", "none", gate=True), rows=rows, gate="decay", gates=1)
        return [radius, Record(Form("none", "discrete", "none"), self.alpha, name="alpha")]

    @torch.no_grad()
    def gates(self) -> dict[str, Tensor]:
        """decay: -ln of the spectral radius of A in the last forward, (3, 1), the same thrice, for A does not vary."""
        if self._A is None:
            return {}
        return {"decay": -_moduli(self._A.double())[:1].log().expand(3, 1).to(self._A.dtype)}

    @torch.no_grad()
    def measured(self) -> dict[str, Tensor]:
        """|lambda| of A and its distance from 1, float32 (d_model,), the closest first; the certified gain and the one on a grid
        of 2,001 frequencies, (1,) each. NaN where the certificate is lost.
        """
        system = self.system()
        moduli = _moduli(system.A)
        lost = torch.where(system.A.isfinite().all(), 0.0, torch.nan)
        return {
            "true_eigenvalue": moduli.float(),
            "true_boundary_distance": (1 - moduli).float(),
            "certified_gain": self.gamma.abs().float() + lost,
            "measured_gain": gain_on_grid(system).float().reshape(1),
        }

    def system(self) -> System:
        """The matrices that the weights stand for, with the P of their certificate, float64. Differentiable."""
        n = self.C.shape[-1]
        X11, X22 = (_filled(self.lower, weights, n) for weights in (self.X11, self.X22))
        skew = _filled(self.upper, self.skew, n) if self.skew is not None else wide(self.C[0]) * 0
        X21, C, Dt = (wide(matrix[0]) for matrix in (self.X21, self.C, self.Dt))
        return certified(X11, X21, X22, skew - skew.T, C, Dt, wide(self.alpha), wide(self.gamma))

    def extra_repr(self) -> str:
        return f"d_model={self.C.shape[-1]}, gamma={self.gamma.item():.4g}"

    def _rounded(self) -> tuple[Tensor, ...]:
        return tuple(matrix.to(self.C.dtype) for matrix in self.system()[:4])


def _filled(places: Tensor, weights: Tensor, n: int) -> Tensor:
    """The matrix (n, n), float64, with these weights, (1, count), in those places, (2, count), and 0 elsewhere."""
    return wide(weights).new_zeros(n, n).index_put(tuple(places), wide(weights[0]))


def _moduli(A: Tensor) -> Tensor:
    """|lambda|, largest first, (n,); NaN for a matrix that is not finite."""
    if not A.isfinite().all():
        return torch.full_like(A[0], torch.nan)
    moduli: Tensor = torch.linalg.eigvals(A).abs()
    return moduli.sort(descending=True).values


def build(section: L2ru, given: Surroundings) -> L2RU:
    return L2RU(given.d_model, gamma=section.gamma, train_gamma=section.train_gamma, init=section.init)
