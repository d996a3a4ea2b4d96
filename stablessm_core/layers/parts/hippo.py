"""HiPPO-LegS in diagonal form: the initial values of S4 and its successors.

S4, arXiv 2111.00396, section 3; HiPPO, arXiv 2008.07669.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Legs(NamedTuple):
    """HiPPO-LegS of N states after a unitary change of basis: A = Lambda - P P*.

    Only the mode with Im Lambda > 0 of each conjugate pair is stored, so all tensors are (N/2,) float64. frequencies: Im Lambda,
    ascending; Re Lambda is -1/2. P, B: real, because the phases of the basis vectors are free and are chosen to make P and B
    real. Over all N modes, P* P = N^2/2 and B = sqrt(2) P.
    """

    frequencies: Tensor
    P: Tensor
    B: Tensor


def legs(d_state: int) -> Legs:
    """HiPPO-LegS in diagonal form. d_state: even.

    The original form is A_nk = -sqrt((2n+1)(2k+1)) below the diagonal and -(n+1) on the diagonal, B_n = sqrt(2n+1),
    P_n = sqrt(n+1/2). A + P P^T is a skew-symmetric matrix minus I/2, so a unitary change of basis transforms the sum to
    Lambda.
    """
    frequencies, basis = legs_basis(d_state)
    P = (basis.mH @ _low_rank(d_state).to(basis.dtype)).abs()
    return Legs(frequencies, P, 2**0.5 * P)


def legs_basis(d_state: int) -> tuple[Tensor, Tensor]:
    """The positive Im Lambda, ascending, (d_state/2,) float64, and the matching unit eigenvectors of A + P P^T.

    The eigenvectors are the columns of a complex128 matrix (d_state, d_state/2). Their phases are arbitrary.
    """
    p = _low_rank(d_state)
    lower = -2 * p[:, None] * p
    skew = (lower.tril(-1) - lower.triu(1)) / 2  # A + P P^T + I/2
    frequencies, basis = torch.linalg.eigh(-1j * skew)
    above = frequencies > 0
    return frequencies[above], basis[:, above]


def _low_rank(d_state: int) -> Tensor:
    return (torch.arange(d_state, dtype=torch.float64) + 0.5).sqrt()
