"""From a continuous mode to one step of the recurrence: what zero-order hold does to the input.

dh/dt = lambda h + B x with x held constant over a step dt gives h_t = e^{dt lambda} h_{t-1} + B_bar x_t with
B_bar = (e^{dt lambda} - 1)/lambda B. The eigenvalue's half of it is `Reparameterization.lambda_bar`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm_core.differentiation import elementwise
from stablessm_core.maps.elementary import saturated_exp

# phi'(z) = sum_k (k + 1)/(k + 2)! z^k; ten terms are float64-exact below the switch at |z| = 0.1
_SERIES = [1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360, 1 / 403200, 1 / 3991680]
_SWITCH = 0.1


def input_gain(lambda_: Tensor, dt: Tensor) -> Tensor:
    """B_bar / B = (e^{dt lambda} - 1)/lambda, dt in the limit lambda -> 0; never overflows for |dt lambda| below 1e38.

    lambda_: continuous eigenvalue, (d_state,) float32 or float64; dt: step size > 0, same shape and dtype. Differentiable any
    number of times in both, accurate to a few ulp through lambda = 0.
    """
    return dt * elementwise(lambda_ * dt, _phi, _phi_slope)


def _phi(z: Tensor) -> Tensor:
    """(e^z - 1)/z."""
    saturated = z.clamp(max=88.0 if z.dtype == torch.float32 else 709.0)
    return torch.where(z == 0, 1.0, torch.expm1(saturated) / torch.where(z == 0, 1.0, z))


def _phi_slope(z: Tensor, phi: Tensor) -> Tensor:
    """phi' = (e^z - phi)/z, which cancels where |z| is small, just where dt puts it: there by its series."""
    small = z.abs() < _SWITCH
    near = torch.where(small, z, 0.0)
    series = torch.full_like(z, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        series = series * near + coefficient
    far = (saturated_exp(z, torch) - phi) / torch.where(small, 1.0, z)
    return torch.where(small, series, far)
