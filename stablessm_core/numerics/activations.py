"""The activation functions of the states, with their derivatives. The keys of ACTIVATIONS are the names in ActivationName."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten


class Activation(NamedTuple):
    """A function z = act(h), and a function that computes the gradient of h from (gradient of z, h, z)."""

    act: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]


def _identity(h: Tensor) -> Tensor:
    return h


# fused/triton_values.py has the same functions in Triton's language; tests compare both versions
ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(torch.tanh, lambda grad, _h, z: aten.tanh_backward(grad, z)),
    "gelu": Activation(functional.gelu, lambda grad, h, _z: aten.gelu_backward(grad, h)),
    "silu": Activation(functional.silu, lambda grad, h, _z: aten.silu_backward(grad, h)),
    "relu": Activation(torch.relu, lambda grad, _h, z: aten.threshold_backward(grad, z, 0)),
    "identity": Activation(_identity, lambda grad, _h, _z: grad),
}
