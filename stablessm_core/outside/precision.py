"""In which type of numbers a watched model computes: that of its parameters, or that of autocast."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

NODES = 2000  # of the loss's graph that are looked at, from the loss on
HALF = (torch.float16, torch.bfloat16)


def precision_of(model: nn.Module) -> str | None:
    """The type of the model's first parameter, such as "float32"; None if it has no parameter."""
    parameter = next(iter(model.parameters()), None)
    return None if parameter is None else _name(parameter.dtype)


def autocast_of(loss: Any) -> str | None:
    """The half precision in which autocast computes this loss, "float16" or "bfloat16"; None if nothing shows it.

    Autocast may be active now. If it is not, the types of the numbers from which autograd computes the loss show it.
    """
    device = loss.device.type if isinstance(loss, Tensor) else "cuda" if torch.cuda.is_available() else "cpu"
    if torch.is_autocast_enabled(device) and (active := torch.get_autocast_dtype(device)) in HALF:
        return _name(active)
    first = getattr(loss, "grad_fn", None)
    waiting, seen = deque([] if first is None else [first]), {first}
    while waiting and len(seen) < NODES:
        node = waiting.popleft()
        for of in getattr(node, "_input_metadata", ()):
            if of.dtype in HALF:
                return _name(of.dtype)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
