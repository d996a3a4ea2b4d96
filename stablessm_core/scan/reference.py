"""The recurrence as it is defined, one step after the other: slow, and the truth every other backend is held to."""

from __future__ import annotations

import torch
from torch import Tensor


def scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h_t = a_t h_{t-1} + b_t by a loop over t (backwards if `reverse`); autograd differentiates the loop itself.

    Without h0 the first state is b_1: a_1 multiplies nothing. It belongs to the graph all the same, with a gradient of zero.

    a (d_state,) or b's shape, b (batch, length, d_state), h0 (batch, d_state) or None; all of one dtype, which the result has.
    """
    b_steps = b.unbind(1)
    a_steps = [a] * len(b_steps) if a.dim() == 1 else a.unbind(1)
    order = -1 if reverse else 1
    h: list[Tensor] = []
    state, never = h0, b.new_zeros((), dtype=torch.bool)
    for a_t, b_t in zip(a_steps[::order], b_steps[::order], strict=True):
        state = torch.where(never, a_t, b_t) if state is None else a_t * state + b_t
        h.append(state)
    return torch.stack(h[::order], dim=1)
