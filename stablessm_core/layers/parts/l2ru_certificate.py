"""Compute a system with a certified gain from unconstrained weights, and measure the gain of a system.

Source: L2RU, arXiv 2503.23818, section IV.

By the bounded real lemma, the gain of h_{t+1} = A h_t + B x_t, y_t = C h_t + D x_t is below gamma if, for some P > 0,

    [A^T P A - P + C^T C,  A^T P B + C^T D;  B^T P A + D^T C,  B^T P B + D^T D - gamma^2 I] < 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

JITTER = 1e-6  # the published jitter j; with j = 0, the matrix N in `certified` may be singular
FREQUENCIES = 2001


class System(NamedTuple):
    """The matrices A, B, C, D of a system and the matrix P of the system's certificate, all (n, n)."""

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    P: Tensor


def certified(X11: Tensor, X21: Tensor, X22: Tensor, skew: Tensor, C: Tensor, Dt: Tensor, alpha: Tensor, gamma: Tensor) -> System:
    """The system that the weights define. Its gain is below |gamma| for all values of the weights.

    All arguments are float64, (n, n) except for alpha and gamma (1,). X11, X22: lower triangular. skew: skew-symmetric. With
    Q = (I - skew)(I + skew)^{-1} and
        Z = X21 X21^T + X22 X22^T + Dt^T Dt + I,   beta = gamma^2 sigma(alpha) / |Z|_2,   W = gamma^2 I - beta Z > 0,
        H11 = X11 X11^T + C^T C + beta I,   H12 = sqrt(beta) (X11 X21^T + C^T Dt),   N = H12 W^{-1} H12^T + j I,
    P = N + H11, and with lower Cholesky factors N = L L^T, P = K K^T
        A = K^{-T} Q L^T,   B = -K^{-T} Q L^{-1} H12,   D = sqrt(beta) Dt.
    Then A^T P A = N, A^T P B = -H12 and B^T P B = H12^T N^{-1} H12 <= W. So the matrix of the lemma is at most
    -[X11; sqrt(beta) X21] [...]^T - beta I, for every jitter j >= 0. (The published B = -A H12^{-T} W is the same for j = 0,
    but it needs the inverse of H12, and for j > 0 the bound holds only up to an error of j.)

    If a Cholesky factor does not exist, because weights are not finite or sigma(alpha) rounds to 1, then A, B and D are NaN. No
    error is raised: the loss becomes NaN and shows that the certificate is lost.
    """
    unit = torch.eye(len(C), dtype=C.dtype, device=C.device)
    Z = X21 @ X21.T + X22 @ X22.T + Dt.T @ Dt + unit
    finite = Z.isfinite().all()
    norm = torch.linalg.eigvalsh(torch.where(finite, Z, unit))[-1].where(finite, torch.nan)
    beta = gamma.square() * torch.sigmoid(alpha) / norm
    H11 = X11 @ X11.T + C.T @ C + beta * unit
    H12 = beta.sqrt() * (X11 @ X21.T + C.T @ Dt)
    half = torch.linalg.solve_triangular(_cholesky(gamma.square() * unit - beta * Z), H12.T, upper=False)
    N = half.T @ half + JITTER * unit
    P = N + H11
    L, K = _cholesky(N), _cholesky(P)
    Q = torch.linalg.solve_ex(unit + skew, unit - skew)[0]
    columns = torch.cat([L.T, -torch.linalg.solve_triangular(L, H12, upper=False)], dim=1)
    A, B = torch.linalg.solve_triangular(K.T, Q @ columns, upper=True).chunk(2, dim=1)
    lost = torch.where(A.isfinite().all() & B.isfinite().all(), 0.0, torch.nan)
    return System(A + lost, B + lost, C, beta.sqrt() * Dt + lost, P)


def _cholesky(matrix: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where(failed == 0, factor, torch.nan)


def bounded_real_matrix(system: System, gamma: Tensor) -> Tensor:
    """The lemma's matrix, (2n, 2n). The certificate is valid if the largest eigenvalue of this matrix is negative."""
    A, B, C, D, P = system
    top = torch.cat([A.T @ P @ A - P + C.T @ C, A.T @ P @ B + C.T @ D], 1)
    unit = torch.eye(len(A), dtype=A.dtype, device=A.device)
    bottom = torch.cat([B.T @ P @ A + D.T @ C, B.T @ P @ B + D.T @ D - gamma.square() * unit], 1)
    return torch.cat([top, bottom])


@torch.no_grad()
def gain_on_grid(system: System, frequencies: int = FREQUENCIES) -> Tensor:
    """The maximum of |C (e^{i omega} I - A)^{-1} B + D|_2 over evenly spaced omega from 0 to pi: () float64.

    The result is NaN if the system contains NaN.

    The whole grid is computed in single precision, in the coordinates K^T h, in which P is I and no number is large. The
    largest values are then computed again in double precision.
    """
    if not all(matrix.isfinite().all() for matrix in system):
        return torch.full((), torch.nan, dtype=torch.float64)
    A, B, C, D, P = system
    K = torch.linalg.cholesky(P)
    A, C = (torch.linalg.solve_triangular(K.T, matrix, upper=True, left=False) for matrix in (K.T @ A, C))
    energy = (A, K.T @ B, C, D)
    omega = torch.linspace(0, math.pi, frequencies, dtype=torch.float64, device=A.device)
    points = torch.polar(torch.ones_like(omega), omega)
    pieces = torch.split(points.to(torch.complex64), max(1, 2**20 // A.numel()))
    estimates = torch.cat([_gains(piece, *(matrix.to(piece.dtype) for matrix in energy)) for piece in pieces])
    best = estimates.topk(min(10, frequencies)).indices
    return _gains(points[best], *(matrix.to(points.dtype) for matrix in energy)).max()


def _gains(points: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """|C (z I - A)^{-1} B + D|_2 at each of the points z, (count,)."""
    resolvent = torch.linalg.solve_ex(points[:, None, None] * torch.eye(len(A), device=A.device) - A, B)[0]
    response = C @ resolvent + D
    squared: Tensor = torch.linalg.eigvalsh((response.mH @ response).nan_to_num())[:, -1]
    return squared.clamp(min=0).sqrt()
