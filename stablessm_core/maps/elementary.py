"""Elementary functions, written once for numpy and for torch, that neither overflow nor cancel.

`xp` is the array namespace (`numpy` or `torch`); arrays have any shape and the dtype float32 or float64.
"""

from __future__ import annotations

from typing import Any

Array = Any  # numpy.ndarray or torch.Tensor; both namespaces share the functions used here


def saturated(x: Array, xp: Any) -> Array:
    """x, no larger than what exp can take in x's dtype."""
    return xp.clip(x, max=88.0 if x.dtype == xp.float32 else 709.0)


def saturated_exp(x: Array, xp: Any) -> Array:
    """e^x, at most the largest power of e that the dtype holds."""
    return xp.exp(saturated(x, xp))


def sigmoid(x: Array, xp: Any) -> Array:
    """1/(1 + e^-x)."""
    positive = x >= 0
    e = xp.exp(xp.where(positive, -x, x))  # e^-|x|, of which torch knows the derivative at 0, too
    return xp.where(positive, 1 / (1 + e), e / (1 + e))


def softplus(x: Array, xp: Any) -> Array:
    """ln(1 + e^x)."""
    return xp.clip(x, min=0) + xp.log1p(xp.exp(xp.where(x >= 0, -x, x)))
