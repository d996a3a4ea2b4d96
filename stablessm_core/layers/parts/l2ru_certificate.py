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
EPSILON = torch.finfo(torch.float64).eps
FREQUENCIES = 2001


class System(NamedTuple):
    """The matrices A, B, C, D of a system in the coordinates z = K^T h, and K, all (n, n).

    K K^T is the matrix P of the system's certificate, so |z|^2 = h^T P h is the energy of the state h. In these coordinates the
    certificate's matrix is I, and no entry of [A, B / gamma; C, D / gamma] is larger than 1.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    K: Tensor


def certified(X11: Tensor, X21: Tensor, X22: Tensor, skew: Tensor, C: Tensor, Dt: Tensor, alpha: Tensor, gamma: Tensor) -> System:
    """The system that the weights define. Its gain is below |gamma| for all values of the weights.

    All arguments are float64, (n, n) except for alpha and gamma (1,). X11, X22: lower triangular. skew: skew-symmetric. With
    Q = (I - skew)(I + skew)^{-1} and
        Z = X21 X21^T + X22 X22^T + Dt^T Dt + I,   beta = gamma^2 sigma(alpha) / |Z|_2,   W = gamma^2 I - beta Z > 0,
        H11 = X11 X11^T + C^T C + beta I,   H12 = sqrt(beta) (X11 X21^T + C^T Dt),   N = H12 W^{-1} H12^T + j I,
    P = N + H11, and with lower Cholesky factors W = G G^T, N = L L^T, P = K K^T, the state h has the matrices
        K^{-T} Q L^T,   -K^{-T} Q L^{-1} H12,   C,   D = sqrt(beta) Dt.
    Then A^T P A = N, A^T P B = -H12 and B^T P B = H12^T N^{-1} H12 <= W. So the matrix of the lemma is at most
    -[X11; sqrt(beta) X21] [...]^T - beta I, for every jitter j >= 0. (The published B = -A H12^{-T} W is the same for j = 0,
    but it needs the inverse of H12, and for j > 0 the bound holds only up to an error of j.)

    The result is the system of z = K^T h. It is computed without N, P or an inverse of their factors, because N has the condition
    number of W^{-1}, which grows like e^alpha. Two QR factorisations with orthonormal columns give the same matrices:
        [G^{-1} H12^T; sqrt(j) I] = [T; *] L^T,   [L^T; X11^T; C; sqrt(beta) I] = [U; *; Y; *] K^T,
        A = Q U,   B = -Q T^T G^T,   C = Y.

    If weights are not finite, A, B, C and D are NaN. No error is raised: the loss becomes NaN and shows that the certificate is
    lost.
    """
    n = len(C)
    unit = torch.eye(n, dtype=C.dtype, device=C.device)
    Z = X21 @ X21.T + X22 @ X22.T + Dt.T @ Dt + unit
    finite = Z.isfinite().all()
    norm = torch.linalg.eigvalsh(torch.where(finite, Z, unit))[-1].where(finite, torch.nan)
    # the rounding errors of |Z| and of the Cholesky factor must not make W indefinite where sigma(alpha) is almost 1
    beta = gamma.square() * torch.sigmoid(alpha) / (norm * (1 + 64 * n * EPSILON))
    H12 = beta.sqrt() * (X11 @ X21.T + C.T @ Dt)
    G = _cholesky(gamma.square() * unit - beta * Z)
    half = torch.linalg.solve_triangular(G, H12.T, upper=False)
    orthonormal, L_transposed = _qr(torch.cat([half, math.sqrt(JITTER) * unit]))
    T = orthonormal[:n]
    orthonormal, K_transposed = _qr(torch.cat([L_transposed, X11.T, C, beta.sqrt() * unit]))
    U, Y = orthonormal[:n], orthonormal[2 * n : 3 * n]
    Q = torch.linalg.solve_ex(unit + skew, unit - skew)[0]
    A, B = Q @ U, -Q @ T.T @ G.T
    lost = torch.where(A.isfinite().all() & B.isfinite().all(), 0.0, torch.nan)
    return System(A + lost, B + lost, Y + lost, beta.sqrt() * Dt + lost, K_transposed.T)


def rounded(system: System, dtype: torch.dtype) -> System:
    """The system in another precision, slightly damped: its gain is below |gamma| too, although its entries are rounded.

    The gain is at most |gamma| if V = [A, B / gamma; C, D / gamma] has a spectral norm of at most 1. Rounding changes the norm by
    at most eps/2 |V|_F <= eps/2 sqrt(2n), so all matrices are first multiplied by 1 - eps sqrt(2n). The second term covers the
    rounding errors of float64.
    """
    n = len(system.A)
    factor = 1 - torch.finfo(dtype).eps * math.sqrt(2 * n) - 16 * n * EPSILON
    A, B, C, D = ((factor * matrix).to(dtype) for matrix in system[:4])
    return System(A, B, C, D, system.K.to(dtype))


def _cholesky(matrix: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where(failed == 0, factor, torch.nan)


def _qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The QR factors of a matrix with linearly independent columns. R has a positive diagonal, so R^T is a Cholesky factor."""
    orthonormal, R = torch.linalg.qr(matrix)
    sign = torch.where(R.diagonal() < 0, -1.0, 1.0)
    return orthonormal * sign, R * sign[:, None]


def bounded_real_matrix(system: System, gamma: Tensor) -> Tensor:
    """The lemma's matrix in the coordinates of the system, in which P is I: (2n, 2n). The certificate is valid if no eigenvalue
    of this matrix is positive."""
    A, B, C, D, _ = system
    unit = torch.eye(len(A), dtype=A.dtype, device=A.device)
    top = torch.cat([A.T @ A - unit + C.T @ C, A.T @ B + C.T @ D], 1)
    bottom = torch.cat([B.T @ A + D.T @ C, B.T @ B + D.T @ D - gamma.square() * unit], 1)
    return torch.cat([top, bottom])


@torch.no_grad()
def gain_on_grid(system: System, frequencies: int = FREQUENCIES) -> Tensor:
    """The maximum of |C (e^{i omega} I - A)^{-1} B + D|_2 over evenly spaced omega from 0 to pi: () float64.

    The result is NaN if the system contains NaN.

    The whole grid is computed in single precision, because no number is large in the coordinates of the system. The largest
    values are then computed again in double precision.
    """
    matrices = system[:4]
    if not all(matrix.isfinite().all() for matrix in matrices):
        return torch.full((), torch.nan, dtype=torch.float64)
    A = system.A
    omega = torch.linspace(0, math.pi, frequencies, dtype=torch.float64, device=A.device)
    points = torch.polar(torch.ones_like(omega), omega)
    pieces = torch.split(points.to(torch.complex64), max(1, 2**20 // A.numel()))
    estimates = torch.cat([_gains(piece, *(matrix.to(piece.dtype) for matrix in matrices)) for piece in pieces])
    best = estimates.topk(min(10, frequencies)).indices
    return _gains(points[best], *(matrix.to(points.dtype) for matrix in matrices)).max()


def _gains(points: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """|C (z I - A)^{-1} B + D|_2 at each of the points z, (count,)."""
    resolvent = torch.linalg.solve_ex(points[:, None, None] * torch.eye(len(A), device=A.device) - A, B)[0]
    response = C @ resolvent + D
    squared: Tensor = torch.linalg.eigvalsh((response.mH @ response).nan_to_num())[:, -1]
    return squared.clamp(min=0).sqrt()
