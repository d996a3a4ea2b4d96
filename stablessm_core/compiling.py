"""What the compiler is told without importing it: with sympy and Triton behind it, torch._dynamo takes longer than torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def constant_when_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.compiler.assume_constant_result`: a compiled graph keeps what the function returned when it was traced."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
