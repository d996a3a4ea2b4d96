"""The recurrence as defined, one step after the other. This backend is slow; all other backends are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor


def scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h_t = a_t h_{t-1} + b_t, computed by a loop over t (backwards if `reverse`); autograd differentiates the loop itself.

    If h0 is None, the first state is b_1, and a_1 multiplies nothing. a_1 is still part of the graph, with a gradient of zero.

    a: (d_state,) or the shape of b. b: (batch, length, d_state). h0: (batch, d_state) or None. All have the dtype of the result.
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
