"""The delta rule with one decay per head and step: Gated DeltaNet's recurrence."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm_core.matrix_state.chunks import check_shapes, full_precision, split_chunks, to_one_dtype
from stablessm_core.matrix_state.recurrence import delta_rule_loop
from stablessm_core.matrix_state.scalar_decay import decays, sum_log_decays

CHUNK = 32


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    initial: Tensor | None = None,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """S_t = a_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, a_t = e^{log_decay_t}, o_t = S_t^T q_t -> (o, last S).

    beta, log_decay: (batch, length, heads). The eigenvalues of a step are a_t and a_t (1 - beta_t |k_t|^2), so normalise k.

    A step writes k_t u_t^T with u_t = beta_t (v_t - a_t S_{t-1}^T k_t). In a chunk that starts from S, let G_t be the sum of log
    decays up to and including t. The u_t are the solution of a triangular system,
        u_t + beta_t sum_{s < t} e^{G_t - G_s} (k_t . k_s) u_s = beta_t v_t - beta_t e^{G_t} S^T k_t.
    The system is solved for all chunks in parallel, separately for each of the two terms on the right. Then a loop over chunks
    updates S.
    """
    batch, length, heads, values = v.shape if v.dim() == 4 else (0, 0, 0, 0)
    per_head = ((batch, length, heads),)
    check_shapes(q, k, v, initial, beta=(beta, per_head), log_decay=(log_decay, per_head))
    if k.shape[2] != heads:
        raise ValueError(f"k must have the {heads} heads of v, got {k.shape[2]}")
    q, k, v, beta, log_decay, initial = to_one_dtype(q, k, v, beta, log_decay, initial)
    if initial is None:
        initial = v.new_zeros(batch, heads, k.shape[3], values)
    with full_precision(v.device):
        if backend == "reference":
            return delta_rule_loop(q, k, v, beta, log_decay, initial)
        return _in_chunks(q, k, v, beta, log_decay, initial)


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    length, values = v.shape[1], v.shape[3]
    chunk = min(CHUNK, length)
    # (batch, chunks, heads, chunk, keys or values or 1 or chunk)
    q, k, v = (split_chunks(x, chunk).transpose(2, 3).contiguous() for x in (q, k, v))
    beta = split_chunks(beta, chunk).transpose(2, 3)[..., None]
    G = sum_log_decays(split_chunks(log_decay, chunk).transpose(2, 3))
    between = decays(G, v.dtype)
    since_start, to_end = (x.exp().to(v.dtype)[..., None] for x in (G, G[..., -1:] - G))
    k_t = k.transpose(-1, -2)
    system = (k @ k_t) * (between * beta)  # the solver ignores the diagonal
    sides = torch.cat([v * beta, k * (beta * since_start)], -1)
    from_values, from_state = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True).split(
        [values, k.shape[-1]], -1
    )
    into_state, over_chunk = (k * to_end).transpose(-1, -2), since_start[..., -1:, :]
    states, writes = [], []
    chunks = zip(from_values.unbind(1), from_state.unbind(1), into_state.unbind(1), over_chunk.unbind(1), strict=True)
    for u, w, into, decay in chunks:
        states.append(S)
        u = u - w @ S
        writes.append(u)
        S = decay * S + into @ u
    o = ((q @ k_t) * between) @ torch.stack(writes, 1) + (q @ torch.stack(states, 1)) * since_start
    return o.transpose(2, 3).flatten(1, 2)[:, :length], S
