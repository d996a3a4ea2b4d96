"""Elementwise functions with a given derivative, in every differentiation mode of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Value = Callable[[Tensor], Tensor]
Slope = Callable[[Tensor, Tensor], Tensor]


def elementwise(x: Tensor, value: Value, slope: Slope) -> Tensor:
    """y = value(x), with the derivative slope(x, y) instead of the derivative that autograd would compute.

    For complex x, `value` must be analytic. `value` and `slope` must consist of differentiable PyTorch operations, so that the
    second derivative is the derivative of `slope`. Works under torch.func (vmap, grad, jvp, hessian) and in forward mode. Under
    torch.compile, y is differentiable only once, like the result of any compiled code.
    """
    function = _Transformed if transformed() else _Elementwise
    y: Tensor = function.apply(x, value, slope)  # type: ignore[no-untyped-call]
    return y


def transformed() -> bool:
    """True inside a transform of torch.func or in forward-mode differentiation.

    An autograd function is slower to call if it supports these modes, so ordinary calls use a second form without this support.
    Raises RuntimeError inside two nested forward modes (jacfwd of jacfwd), where PyTorch would lose a part of the derivative.
    """
    if torch.compiler.is_compiling():
        return False
    if not torch._C._are_functorch_transforms_active():
        return forward_ad._current_level >= 0
    stack = torch._C._functorch.get_interpreter_stack() or []
    if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1:
        raise RuntimeError("forward mode within forward mode is not supported: use torch.func.hessian, or jacrev for one of them")
    return True


class _Elementwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Value, slope: Slope) -> Tensor:
        y = value(x)
        ctx.save_for_backward(x, y)
        ctx.slope = slope
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * ctx.slope(*ctx.saved_tensors).conj(), None, None


class _Transformed(torch.autograd.Function):
    """`_Elementwise` in the form that `torch.func` needs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: Value, _slope: Slope) -> Tensor:
        y = value(x)
        return y.clone() if y is x else y  # PyTorch cannot save an input that is also the output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, ctx.slope = inputs
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    backward = _Elementwise.backward

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _value: None, _slope: None) -> Tensor:
        out: Tensor = tangent * ctx.slope(*ctx.saved_tensors)
        return out
