"""One decay per key channel and step: the recurrences of GLA and RWKV. RWKV computes the output before it updates the state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm_core.matrix_state.chunks import check_shapes, full_precision, split_chunks, states_before, to_one_dtype
from stablessm_core.matrix_state.recurrence import decay_loop
from stablessm_core.matrix_state.scalar_decay import MIN_LOG_DECAY
from stablessm_core.numerics.differentiation import transformed

CHUNK = 32


def vector_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    initial: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """S_t = diag(e^{log_decay_t}) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t -> (o, last S).

    log_decay: (batch, length, heads, keys), or (heads, keys) if it is constant. bonus: (heads, keys), RWKV's u. With a bonus, the
    output is read before the update: o_t = (S_{t-1} + diag(bonus) k_t v_t^T)^T q_t.

    Let G_t be the sum of log decays up to and including t. Inside a chunk, o_t = sum_{s <= t} [sum_i q_ti k_si e^{G_ti - G_si}]
    v_s, but the product e^{G_t} e^{-G_s} may overflow. If t and s are in two neighbouring blocks, the exponential is a product
    of e^{sum from the boundary to t} and e^{sum from s to the boundary}, which are both at most 1. Blocks of 1, 2, 4, ... steps
    cover every pair (t, s) once.
    """
    batch, length, heads, values = v.shape if v.dim() == 4 else (0, 0, 0, 0)
    keys = k.shape[-1]
    check_shapes(q, k, v, initial, log_decay=(log_decay, ((batch, length, heads, keys), (heads, keys))))
    if k.shape[2] != heads or (bonus is not None and bonus.shape != (heads, keys)):
        shape = None if bonus is None else tuple(bonus.shape)
        raise ValueError(f"k must have the {heads} heads of v and bonus be {(heads, keys)}, got {k.shape[2]} heads and {shape}")
    q, k, v, log_decay, initial, bonus = to_one_dtype(q, k, v, log_decay, initial, bonus)
    with full_precision(v.device):
        if backend == "reference":
            S = v.new_zeros(batch, heads, keys, values) if initial is None else initial
            return decay_loop(q, k, v, log_decay, S, bonus)
        return _in_chunks(q, k, v, log_decay.expand(k.shape), initial, bonus, backend)


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, initial: Tensor | None, bonus: Tensor | None, backend: str
) -> tuple[Tensor, Tensor]:
    length = v.shape[1]
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    # (batch, chunks, heads, chunk, keys or values)
    q, k, v, g = (split_chunks(x, chunk).transpose(2, 3).contiguous() for x in (q, k, v, log_decay))
    weights, before, after = pair_weights(q, k, g, shifted=bonus is not None)
    o = weights @ v
    if bonus is not None:
        o = o + (q * k * bonus[:, None]).sum(-1, keepdim=True) * v
    whole = (before[..., -1, :] + g[..., -1, :] if bonus is not None else before[..., -1, :]).exp()
    written = (k * after.exp()).transpose(-1, -2) @ v
    S, last = states_before(whole[..., None], written, initial, backend)
    o = o + (q * before.exp()) @ S
    return o.transpose(2, 3).flatten(1, 2)[:, :length], last


def pair_weights(q: Tensor, k: Tensor, g: Tensor, *, shifted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, before, after) of q, k and the log decays g, all (..., chunk, keys), where `chunk` is a power of two.

    weights: (..., chunk, chunk), sum_i q_ti k_si e^{g_{s+1} + ... + g_t} at [t, s] for s <= t, otherwise 0. before, after:
    (..., chunk, keys), the sums of g up to and including a step, and after the step. shifted: sums up to a step exclude the step
    itself, in `before` and in the weights. The weights are then 0 for s = t.
    """
    if transformed():
        return _pair_weights(q, k, g, shifted)
    shape, flat = q.shape, (-1, *q.shape[-2:])
    weights, before, after = _PairWeights.apply(q.view(flat), k.view(flat), g.view(flat), shifted)  # type: ignore[no-untyped-call]
    return weights.view(*shape[:-1], shape[-2]), before.view(shape), after.view(shape)


def _pair_weights(q: Tensor, k: Tensor, g: Tensor, shifted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`pair_weights` from differences of sums. Needs `keys` times the memory of `_PairWeights`; supports higher derivatives."""
    chunk, wide = g.shape[-2], g.double().clamp(min=MIN_LOG_DECAY)
    up_to = wide.cumsum(-2)
    before = up_to - wide if shifted else up_to
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=g.device).triu(0 if shifted else 1)[..., None]
    between = (before[..., :, None, :] - up_to[..., None, :, :]).to(g.dtype).masked_fill(later, -torch.inf).exp()
    weights = torch.einsum("...tk,...sk,...tsk->...ts", q, k, between)
    return weights, before.to(g.dtype), (up_to[..., -1:, :] - up_to).to(g.dtype)


class _PairWeights(torch.autograd.Function):
    """`_pair_weights` of (batch, chunk, keys), block by block.

    Between two neighbouring blocks of h steps, the weights are the product of two factors: q' = q e^{before} of the later block
    and k' = k e^{after} of the earlier block, where `before` and `after` are sums inside the respective block.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, g: Tensor, shifted: bool) -> tuple[Tensor, Tensor, Tensor]:
        batch, c, _ = q.shape
        weights = q.new_zeros(batch, c, c)
        if not shifted:
            weights.diagonal(dim1=1, dim2=2).copy_((q * k).sum(-1))
        before, after, whole = torch.zeros_like(g) if shifted else g.clone(), torch.zeros_like(g), g
        kept = []
        h = 1
        while h < c:
            later, earlier = _halves(before, h)[1], _halves(after, h)[0]
            e_q, e_k = later.exp(), earlier.exp()
            q_, k_ = _halves(q, h)[1] * e_q, _halves(k, h)[0] * e_k
            _between_halves(weights, h).copy_(_products(q_, k_))
            kept += [e_q, e_k, q_, k_]
            first, second = whole.view(batch, -1, 2, 1, g.shape[-1]).unbind(2)
            later += first
            earlier += second
            whole = first + second
            h *= 2
        ctx.shifted = shifted
        ctx.save_for_backward(q, k, g, *kept)
        return weights, before, after

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, g, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # the saved tensors carry no derivatives
            inputs = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, g))
            results = _pair_weights(inputs[0], inputs[1], inputs[2], ctx.shifted)
            return (*torch.autograd.grad(results, inputs, grads, create_graph=True), None)
        grad, grad_before, grad_after = grads
        c = q.shape[1]
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        h = 1
        while h < c:
            e_q, e_k, q_, k_ = kept[:4]
            del kept[:4]
            d = _between_halves(grad, h)
            if h == 1:
                dq_, dk_ = d * k_, d * q_
            else:
                d = d.contiguous()
                dq_, dk_ = d @ k_, d.transpose(-1, -2) @ q_
            _halves(dq, h)[1].addcmul_(dq_, e_q)
            _halves(dk, h)[0].addcmul_(dk_, e_k)
            h *= 2
        # The exponent of a pair sums g over s < r <= t (shifted: s < r < t). So dL/dg_r sums q dq over the steps from r on and
        # subtracts the sum of k dk over the steps from r on.
        up, down = torch.addcmul(grad_before, q, dq), k * dk
        if ctx.shifted:
            dg = _sums_after(up) - _sums_after(down) - down
        else:
            dg = _sums_after(up - down)
            dg += up - down
            on_diagonal = grad.diagonal(dim1=1, dim2=2)[..., None]
            dq.addcmul_(on_diagonal, k)
            dk.addcmul_(on_diagonal, q)
        dg += grad_after.cumsum(1) - grad_after
        return dq, dk, dg, None


def _halves(x: Tensor, h: int) -> tuple[Tensor, ...]:
    """Two views of x (batch, chunk, keys): the earlier and the later block of each pair of blocks, (batch, pairs, h, keys)."""
    return x.view(x.shape[0], -1, 2, h, x.shape[2]).unbind(2)


def _between_halves(weights: Tensor, h: int) -> Tensor:
    """A view of the weights between the later and the earlier block of each pair, (batch, pairs, h, h)."""
    pairs = weights.shape[1] // (2 * h)
    blocks = weights.view(-1, pairs, 2, h, pairs, 2, h)[:, :, 1, :, :, 0]
    return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def _products(q: Tensor, k: Tensor) -> Tensor:
    return (q * k).sum(-1, keepdim=True) if q.shape[-2] == 1 else q @ k.transpose(-1, -2)


def _sums_after(x: Tensor) -> Tensor:
    """The sums of x_t over t > r along axis 1, for each r."""
    return x.flip(1).cumsum(1).flip(1) - x
