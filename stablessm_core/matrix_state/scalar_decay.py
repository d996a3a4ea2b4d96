"""One decay per head and step: Mamba-2's and RetNet's recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm_core.matrix_state.chunks import check_shapes, full_precision, split_chunks, states_before, to_one_dtype
from stablessm_core.matrix_state.recurrence import decay_loop
from stablessm_core.numerics.differentiation import transformed

# steps per chunk; on one core, 9 to 39 % faster than 64 steps (forward and backward; 16, 32 or 64 keys and values)
CHUNK = 32
MIN_LOG_DECAY = -1e3  # e^-1000 is 0 in float32 and float64, and a difference of finite sums is never NaN


def scalar_decay(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, initial: Tensor | None = None, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """S_t = e^{log_decay_t} S_{t-1} + k_t v_t^T, o_t = S_t^T q_t -> (o, last S).

    log_decay: (batch, length, heads), or (heads,) if it is constant. If q and k have fewer heads than v, several neighbouring
    heads of v share a head of q and k (the groups of Mamba-2).

    In a chunk that starts from S, let G_t be the sum of log decays up to and including t:
    o_t = e^{G_t} S^T q_t + sum_{s <= t} e^{G_t - G_s} (q_t . k_s) v_s.
    """
    batch, length, heads, values = v.shape if v.dim() == 4 else (0, 0, 0, 0)
    check_shapes(q, k, v, initial, log_decay=(log_decay, ((batch, length, heads), (heads,))))
    q, k, v, log_decay, initial = to_one_dtype(q, k, v, log_decay, initial)
    with full_precision(v.device):
        if backend == "reference":
            S = v.new_zeros(batch, heads, k.shape[3], values) if initial is None else initial
            return decay_loop(q, k, v, log_decay[..., None], S)
        return _in_chunks(q, k, v, log_decay, initial, backend)


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, initial: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
    """`scalar_decay` in chunks. Axes: b batch, n chunks, g groups, r heads of a group, c steps of a chunk, keys, values."""
    batch, length, heads, values = v.shape
    groups, keys = k.shape[2:]
    chunk = min(CHUNK, length)
    if log_decay.dim() == 1 and length % chunk:  # the last chunk is padded, and the state must not decay in the padding
        log_decay = log_decay.expand(batch, length, heads)
    q, k = (split_chunks(x, chunk).transpose(2, 3).contiguous() for x in (q, k))  # b n g c keys
    v = torch.unflatten(split_chunks(v, chunk), 3, (groups, -1))  # b n c g r values
    if log_decay.dim() == 1:
        g = log_decay.view(groups, -1, 1).expand(-1, -1, chunk)  # g r c
    else:
        g = torch.unflatten(split_chunks(log_decay, chunk), 3, (groups, -1)).permute(0, 1, 3, 4, 2)  # b n g r c
    G = sum_log_decays(g)
    since_start, to_end = G.exp().to(v.dtype), (G[..., -1:] - G).exp().to(v.dtype)
    weights = (q @ k.transpose(-1, -2))[:, :, :, None] * decays(G, v.dtype)
    inside = weights @ v.permute(0, 1, 3, 4, 2, 5)  # b n g r c values

    # states have the shape keys x (r values), so that a group needs only one product
    written = k.transpose(-1, -2) @ (v * to_end.movedim(-1, -3)[..., None]).transpose(2, 3).flatten(4)
    written = torch.unflatten(written, 4, (-1, values))  # b n g keys r values
    if initial is not None:
        initial = torch.unflatten(initial, 1, (groups, -1)).transpose(2, 3)
    before, last = states_before(since_start[..., -1:].unsqueeze(-3), written, initial, backend)
    carried = torch.unflatten(q @ before.flatten(4), 4, (-1, values))  # b n g c r values
    o = inside.transpose(3, 4) + carried * since_start.transpose(-1, -2)[..., None]
    o = o.transpose(2, 3).reshape(batch, -1, heads, values)[:, :length]
    return o, last.transpose(2, 3).reshape(batch, heads, keys, values)


def sum_log_decays(g: Tensor) -> Tensor:
    """Cumulative sums of log decays along the last axis, in float64, because later code uses differences of the sums."""
    return g.double().clamp(min=MIN_LOG_DECAY).cumsum(-1)


def decays(G: Tensor, dtype: torch.dtype) -> Tensor:
    """e^{G_t - G_s} at [..., t, s] for s <= t, otherwise 0: (..., chunk) -> (..., chunk, chunk)."""
    function: Any = _decays if transformed() else _Decays.apply
    result: Tensor = function(G, dtype)
    return result


def _decays(G: Tensor, dtype: torch.dtype) -> Tensor:
    # masked before exp, because masking after exp would give inf * 0 = NaN in the derivative
    later = torch.ones(G.shape[-1], G.shape[-1], dtype=torch.bool, device=G.device).triu(1)
    return (G[..., :, None] - G[..., None, :]).to(dtype).masked_fill(later, -torch.inf).exp()


class _Decays(torch.autograd.Function):
    """`decays` with a backward pass that needs only the result."""

    @staticmethod
    def forward(ctx: Any, G: Tensor, dtype: torch.dtype) -> Tensor:
        result = _decays(G, dtype)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        product = grad * result
        return (product.sum(-1) - product.sum(-2)).double(), None
