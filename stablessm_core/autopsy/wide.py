"""Keeps float64 numbers float64, where code of a task or a layer would convert them to less."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.float16, torch.bfloat16)
CONVERSIONS = (Tensor.float, Tensor.half, Tensor.bfloat16)


class StayWide(TorchFunctionMode):
    """In its `with` block, `.float()` and the like leave float64 tensors as they are.

    Losses often convert outputs to float32. With float64 inputs that only adds rounding, which hides the slope of the loss over
    short distances.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = args[0] if args else None
        if isinstance(given, Tensor) and given.dtype == torch.float64:
            if func in CONVERSIONS:
                return given
            if func in (Tensor.to, Tensor.type):
                args = (given, *(torch.float64 if _is_narrow(one) else one for one in args[1:]))
                kwargs = {name: torch.float64 if _is_narrow(value) else value for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in NARROW
