"""From a continuous mode to one step of the recurrence, real or complex.

dh/dt = lambda h + B x with x held constant over a step dt gives h_t = e^{dt lambda} h_{t-1} + B_bar x_t with
B_bar = (e^{dt lambda} - 1)/lambda B: zero-order hold. A real eigenvalue's half of it is `Reparameterization.lambda_bar`. The
bilinear rule, by the trapezium, gives (1 + z/2)/(1 - z/2) and dt/(1 - z/2) B with z = dt lambda instead.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stablessm_core.differentiation import elementwise
from stablessm_core.maps.elementary import saturated_exp

Rule = Literal["zoh", "bilinear"]

# phi'(z) = sum_k (k + 1)/(k + 2)! z^k; ten terms are float64-exact below the switch at |z| = 0.1
_SERIES = [1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360, 1 / 403200, 1 / 3991680]
_SWITCH = 0.1


def input_gain(lambda_: Tensor, dt: Tensor) -> Tensor:
    """B_bar / B = (e^{dt lambda} - 1)/lambda, dt in the limit lambda -> 0; never overflows for |dt lambda| below 1e38.

    lambda_: continuous eigenvalue, real or complex, of any shape; dt: step size > 0, real, broadcast to it. Differentiable any
    number of times in both, accurate to a few ulp through lambda = 0, of complex numbers their absolute value's.
    """
    return dt * elementwise(lambda_ * dt, _phi, _phi_slope)


def discretized(lambda_: Tensor, dt: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """(lambda_bar, B_bar / B) of complex eigenvalues lambda_ with the real step size dt, broadcast to it."""
    if rule == "zoh":
        return _exp(dt * lambda_), input_gain(lambda_, dt)
    half = dt * lambda_ / 2
    return (1 + half) / (1 - half), dt / (1 - half)


def _exp(z: Tensor) -> Tensor:
    """e^z, of size at most the largest power of e that the dtype holds."""
    if not z.is_complex():
        return saturated_exp(z, torch)  # type: ignore[no-any-return]
    return torch.polar(saturated_exp(z.real, torch), z.imag)


def _phi(z: Tensor) -> Tensor:
    """(e^z - 1)/z."""
    if z.is_complex():
        limit = 88.0 if z.dtype == torch.complex64 else 709.0
        saturated = torch.complex(z.real.clamp(max=limit), z.imag)
    else:
        saturated = z.clamp(max=88.0 if z.dtype == torch.float32 else 709.0)
    return torch.where(z == 0, 1.0, torch.expm1(saturated) / torch.where(z == 0, 1.0, z))


def _phi_slope(z: Tensor, phi: Tensor) -> Tensor:
    """phi' = (e^z - phi)/z, which cancels where |z| is small, just where dt puts it: there by its series."""
    small = z.abs() < _SWITCH
    near = torch.where(small, z, 0.0)
    series = torch.full_like(z, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        series = series * near + coefficient
    far = (_exp(z) - phi) / torch.where(small, 1.0, z)
    return torch.where(small, series, far)
