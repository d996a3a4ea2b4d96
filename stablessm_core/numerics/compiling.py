"""Hints for torch.compile that do not import torch._dynamo, which imports sympy and Triton and loads more slowly than torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def constant_when_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Mark the function as `torch.compiler.assume_constant_result` does: a compiled graph keeps the result seen in tracing."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
