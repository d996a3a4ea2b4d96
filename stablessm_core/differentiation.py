"""Functions of one tensor, element by element, whose derivative is given rather than found, in every mode PyTorch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Value = Callable[[Tensor], Tensor]
Slope = Callable[[Tensor, Tensor], Tensor]


def elementwise(x: Tensor, value: Value, slope: Slope) -> Tensor:
    """y = value(x), with the derivative slope(x, y) in place of the one that autograd would find; of complex x it is analytic.

    Both are made of PyTorch's differentiable functions: the second derivative is that of `slope`. Works under torch.func (vmap,
    grad, jvp, hessian) and in forward mode. Where torch.compile traces it, it is differentiable once, as all that is compiled.
    """
    function = _Transformed if transformed() else _Elementwise
    y: Tensor = function.apply(x, value, slope)  # type: ignore[no-untyped-call]
    return y


def transformed() -> bool:
    """Does a transform of torch.func or forward-mode differentiation look at what runs now?

    Functions made for them are slower to call, so that ordinary calls take another form of the same function. Raises
    RuntimeError within two forward modes at once (jacfwd of jacfwd), where PyTorch would forget what such a function adds.
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
    """The same in the form that `torch.func` asks for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: Value, _slope: Slope) -> Tensor:
        y = value(x)
        return y.clone() if y is x else y  # PyTorch saves no input that is the output

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
