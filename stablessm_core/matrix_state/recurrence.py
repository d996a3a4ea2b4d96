"""The recurrences, computed exactly as defined: one step, and a loop over all steps."""

from __future__ import annotations

import torch
from torch import Tensor


def step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, S: Tensor, *, bonus: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One step of `scalar_decay` or `vector_decay`: returns o (batch, heads, values) and the next S.

    q, k: (batch, heads, keys). v: (batch, heads, values). S: (batch, heads, keys, values). log_decay: (batch, heads, 1 or keys),
    or without the batch axis. If q and k have fewer heads than v, several neighbouring heads of v share a head of q and k.
    """
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) if x.shape[1] < v.shape[1] else x for x in (q, k))
    written = k[..., None] * v[..., None, :]
    after = log_decay.exp()[..., None] * S + written
    read = after if bonus is None else S + bonus[..., None] * written
    return (q[..., None, :] @ read).squeeze(-2), after


def delta_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One step of `delta_rule`: arguments as in `step`, with beta and log_decay (batch, heads)."""
    S = log_decay.exp()[..., None, None] * S
    error = v - (k[..., None, :] @ S).squeeze(-2)
    S = S + k[..., None] * (beta[..., None] * error)[..., None, :]
    return (q[..., None, :] @ S).squeeze(-2), S


def decay_loop(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, S: Tensor, bonus: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(o, last S), computed step by step. log_decay: (batch, length, heads, 1 or keys), or without the batch and length axes."""
    outputs = []
    for t in range(v.shape[1]):
        o, S = step(q[:, t], k[:, t], v[:, t], log_decay if log_decay.dim() == 2 else log_decay[:, t], S, bonus=bonus)
        outputs.append(o)
    return torch.stack(outputs, 1), S


def delta_rule_loop(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(v.shape[1]):
        o, S = delta_step(q[:, t], k[:, t], v[:, t], beta[:, t], log_decay[:, t], S)
        outputs.append(o)
    return torch.stack(outputs, 1), S
