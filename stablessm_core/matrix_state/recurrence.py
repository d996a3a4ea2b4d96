"""The recurrences as they are written: one step, and all steps one after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, S: Tensor, *, bonus: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One step of `scalar_decay` or `vector_decay`: q, k (batch, heads, keys), v (batch, heads, values), S (batch, heads, keys,
    values), log_decay (batch, heads, 1 or keys) or without the batch -> (o (batch, heads, values), next S).

    q and k may have fewer heads: each then serves as many neighbouring heads of v as there are more of them.
    """
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) if x.shape[1] < v.shape[1] else x for x in (q, k))
    written = k[..., None] * v[..., None, :]
    after = log_decay.exp()[..., None] * S + written
    read = after if bonus is None else S + bonus[..., None] * written
    return (q[..., None, :] @ read).squeeze(-2), after


def delta_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One step of `delta_rule`: as `step`, with beta and log_decay (batch, heads)."""
    S = log_decay.exp()[..., None, None] * S
    error = v - (k[..., None, :] @ S).squeeze(-2)
    S = S + k[..., None] * (beta[..., None] * error)[..., None, :]
    return (q[..., None, :] @ S).squeeze(-2), S


def decays_in_turn(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, S: Tensor, bonus: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """log_decay: (batch, length, heads, 1 or keys), or without the first two."""
    outputs = []
    for t in range(v.shape[1]):
        o, S = step(q[:, t], k[:, t], v[:, t], log_decay if log_decay.dim() == 2 else log_decay[:, t], S, bonus=bonus)
        outputs.append(o)
    return torch.stack(outputs, 1), S


def delta_rule_in_turn(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(v.shape[1]):
        o, S = delta_step(q[:, t], k[:, t], v[:, t], beta[:, t], log_decay[:, t], S)
        outputs.append(o)
    return torch.stack(outputs, 1), S
