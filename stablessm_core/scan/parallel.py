"""The scan as a few dozen whole-tensor operations, on any device that PyTorch supports.

Time is split into chunks of RADIX steps. A first sweep starts all chunks in parallel from zero and keeps only their last states.
The same scan is then applied to the sequence of these last states, which is RADIX times shorter. This gives the correct last
state of each chunk. A second sweep starts all chunks in parallel from the correct states. The number of operations grows with
RADIX * log(length), and work and memory grow with length. A chain is the sequence of states of one batch row and column. Every
value is computed from earlier values of its own chain. So non-finite values never move back in time or between chains, and
nothing is divided by a power of a.

The last states and the powers of a are float64, because a rounding error in a^RADIX would be amplified by 1 / (1 - |a|^RADIX).

In the recurrence an overflowed state stays non-finite, but a scan in chunks can skip the overflow. So on a CPU, the last step
of every chunk is checked. If a chain is non-finite there, it is computed again, step by step. On other devices, all values of a
chain after its first non-finite value become NaN.

In this file, `links` are the factors between neighbouring steps: links[:, j] is the factor between steps j and j + 1. If the
factor is the same between all steps, `links` is one (d_state,) vector. With `reverse` the scan runs from the last step to the
first. "First", "previous" and "running order" refer to the direction in which the scan runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

RADIX = 16
FEW_ELEMENTS = 1 << 16


def states(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """The states h of h_t = a_t h_{t-1} + b_t.

    a (d_state,), (groups, d_state) or b's shape (batch, length, d_state), h0 (batch, d_state).
    """
    if a.dim() == 2:
        return torch.cat([states(a_g, b_g, h0_g, reverse) for a_g, b_g, h0_g in _by_group(a, b, h0)])
    first = None if h0 is None else torch.addcmul(_edge(b, reverse), _edge(a, reverse), h0)
    return _scan(_links(a, reverse), b, first, reverse)


def adjoints(
    a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None, reverse: bool, need_da: bool, need_dh0: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """g, da and dh0 as `autograd.LinearScan` defines them. g is a scan with the conjugated links in the opposite direction."""
    if a.dim() == 2:
        parts = [
            adjoints(a_g, h_g, grad_g, h0_g, reverse, need_da, need_dh0) for a_g, h_g, grad_g, h0_g in _by_group(a, h, grad, h0)
        ]
        gs, das, dh0s = zip(*parts, strict=True)
        return torch.cat(gs), torch.stack(das) if need_da else None, torch.cat(dh0s) if need_dh0 else None
    g = _scan(_conj(_links(a, reverse)), grad, None, not reverse)
    g_first = _edge(g, reverse)
    dh0 = _conj(_edge(a, reverse)) * g_first if need_dh0 else None
    if not need_da:
        return g, None, dh0
    source, target = (h[:, 1:], g[:, :-1]) if reverse else (h[:, :-1], g[:, 1:])
    if a.dim() == 1:
        da = _summed_product(_conj(source), target)
        return g, da if h0 is None else da + (_conj(h0) * g_first).sum(0), dh0
    da = torch.empty(g.shape, dtype=g.dtype, device=g.device)
    torch.mul(_conj(source), target, out=_links(da, reverse))
    _edge(da, reverse).copy_(torch.zeros_like(g_first) if h0 is None else _conj(h0) * g_first)
    return g, da, dh0


def _by_group(a: Tensor, *rows: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Each row of a, with the batch rows that use this row of a."""
    split = [[None] * len(a) if x is None else x.tensor_split(len(a)) for x in rows]
    return zip(a, *split, strict=True)


def _summed_product(x: Tensor, y: Tensor) -> Tensor:
    """The sum of x * y over batch and time, in a fixed order, without a temporary tensor as large as x."""
    block = x.shape[1] // RADIX + 1
    total = x[:, :block] * y[:, :block]
    for start in range(block, x.shape[1], block):
        end = min(start + block, x.shape[1])
        total[:, : end - start].addcmul_(x[:, start:end], y[:, start:end])
    return total.sum((0, 1))


def _links(a: Tensor, reverse: bool) -> Tensor:
    if a.dim() == 1:
        return a
    return a[:, :-1] if reverse else a[:, 1:]


def _edge(x: Tensor, reverse: bool) -> Tensor:
    """The first step in running order."""
    if x.dim() == 1:
        return x
    return x[:, -1] if reverse else x[:, 0]


def _scan(links: Tensor, b: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    """The states h of h_j = links h_{j-1} + b_j. The first h is `first`, or the first b if `first` is None."""
    length = b.shape[1]
    if length <= 2 * RADIX:
        h = torch.empty(b.shape, dtype=b.dtype, device=b.device)
        _sweep(links, b, first, None, h, length, reverse)
        return h
    if b.numel() <= FEW_ELEMENTS:
        h = _doubling(links, b, first, reverse)
        last_steps = h
    else:
        h = torch.empty(b.shape, dtype=b.dtype, device=b.device)
        transfer, ends = _chunk_ends(links, b, first, reverse)
        _sweep(links, b, first, _scan(transfer, ends, None, reverse).to(b.dtype), h, RADIX, reverse)
        last_steps = _head(_phase(h, RADIX - 1, RADIX, reverse), ends.shape[1], reverse)
    if b.device.type != "cpu":
        _propagate_nonfinite(h, reverse)
    elif not last_steps.sum().isfinite():
        _repair_chains(links, b, first, h, reverse)
    return h


def _doubling(links: Tensor, b: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    """The Hillis-Steele scan: each round doubles the number of steps that a value covers.

    It needs few operations, so it is used for small data.
    """
    h = b.clone()
    if first is not None:
        _edge(h, reverse).copy_(first)
    power = links.to(_wide(b.dtype, b.device)) if links.dim() == 1 else links
    span, length = 1, b.shape[1]
    while span < length:
        later, earlier = _shifted_pairs(h, span, reverse)
        later.add_(earlier * power.to(b.dtype))
        if power.dim() == 1:
            power = power * power
        else:
            later, earlier = _shifted_pairs(power, span, reverse)
            power = later * earlier
        span *= 2
    return h


def _shifted_pairs(x: Tensor, span: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """All pairs of steps that are `span` apart, as (later steps, earlier steps) in the order of the recurrence."""
    return (x[:, :-span], x[:, span:]) if reverse else (x[:, span:], x[:, :-span])


def _repair_chains(links: Tensor, b: Tensor, first: Tensor | None, h: Tensor, reverse: bool) -> None:
    """Recompute chains step by step from their first non-finite value on. All other values keep their bits."""
    rows, columns = h.isfinite().all(1).logical_not().nonzero(as_tuple=True)

    def chains(x: Tensor) -> Tensor:  # (1, length, chains)
        return x[rows, :, columns].t()[None]

    before, repaired = chains(h), torch.empty((1, h.shape[1], len(rows)), dtype=h.dtype)
    link = links[columns] if links.dim() == 1 else chains(links)
    _sweep(link, chains(b), None if first is None else first[rows, columns][None], None, repaired, h.shape[1], reverse)
    h[rows, :, columns] = torch.where(_since(before.isfinite().logical_not(), reverse), repaired, before)[0].t()


def _propagate_nonfinite(h: Tensor, reverse: bool) -> None:
    """Set each chain to NaN after its first non-finite value.

    Used on accelerators, where checking for a non-finite value would need a synchronization.
    """
    nonfinite = h.isfinite().logical_not()
    h.masked_fill_(_since(nonfinite, reverse) & ~nonfinite, float("nan"))


def _since(mark: Tensor, reverse: bool) -> Tensor:
    """True at and after the first mark, in running order."""
    return mark.flip(1).cumsum(1).flip(1) > 0 if reverse else mark.cumsum(1) > 0


def _chunk_ends(links: Tensor, b: Tensor, first: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    """(transfer, ends) of all chunks except the last. transfer: the factor from the last state of a chunk to the last state of
    the next chunk. ends: the last state of each chunk if the chunk starts from zero (the first chunk starts from `first`).
    """
    chunks = -(-b.shape[1] // RADIX)
    ends = _head(_phase(b, 0, RADIX, reverse), chunks - 1, reverse).clone()
    if first is not None:
        _edge(ends, reverse).copy_(first)
    for i in range(1, RADIX):
        b_i = _head(_phase(b, i, RADIX, reverse), chunks - 1, reverse)
        torch.addcmul(b_i, _into(links, i, chunks - 1, reverse), ends, out=ends)
    wide = _wide(b.dtype, b.device)
    if links.dim() == 1:
        transfer = links.to(wide)
        for _ in range(RADIX.bit_length() - 1):
            transfer = transfer * transfer
    else:
        transfer = _into(links, 0, chunks - 2, reverse).to(wide)
        for i in range(1, RADIX):
            transfer = transfer * _tail(_into(links, i, chunks - 1, reverse), reverse)
    return _finite(transfer), ends.to(wide)


def _sweep(links: Tensor, b: Tensor, first: Tensor | None, carry: Tensor | None, h: Tensor, radix: int, reverse: bool) -> None:
    """Write the states of all chunks to h in parallel. A chunk has `radix` steps.

    Each chunk starts from the last state of the previous chunk, which is in `carry`.
    """
    h_0, b_0 = _phase(h, 0, radix, reverse), _phase(b, 0, radix, reverse)
    _edge(h_0, reverse).copy_(_edge(b_0, reverse) if first is None else first)
    if carry is not None:
        link = _into(links, 0, carry.shape[1], reverse)
        torch.addcmul(_tail(b_0, reverse), link, carry, out=_tail(h_0, reverse))
    previous = h_0
    for i in range(1, radix):
        h_i = _phase(h, i, radix, reverse)
        count = h_i.shape[1]
        link = _into(links, i, count, reverse, radix)
        torch.addcmul(_phase(b, i, radix, reverse), link, _head(previous, count, reverse), out=h_i)
        previous = h_i


def _phase(x: Tensor, i: int, radix: int, reverse: bool) -> Tensor:
    """Step i of every chunk. Chunks are counted in running order, so only the last chunk may be shorter."""
    return x[:, (x.shape[1] - 1 - i) % radix if reverse else i :: radix]


def _head(x: Tensor, count: int, reverse: bool) -> Tensor:
    """The first `count` chunks in running order."""
    return x[:, x.shape[1] - count :] if reverse else x[:, :count]


def _tail(x: Tensor, reverse: bool) -> Tensor:
    """All chunks except the first in running order."""
    return x[:, :-1] if reverse else x[:, 1:]


def _into(links: Tensor, i: int, count: int, reverse: bool, radix: int = RADIX) -> Tensor:
    """The links into step i of the first `count` chunks. For i = 0 the first chunk is left out, because it has no such link."""
    if links.dim() == 1:
        return links
    return _head(_phase(links, (i - 1) % radix, radix, reverse), count, reverse)


def _conj(x: Tensor) -> Tensor:
    """The conjugate, computed immediately, because PyTorch ignores a lazy conjugation in an operator of a compiled graph."""
    return x.conj_physical() if x.is_complex() else x


def _wide(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if device.type == "mps":  # MPS has no float64
        return dtype
    return torch.complex128 if dtype.is_complex else torch.float64


def _finite(transfer: Tensor) -> Tensor:
    """The factors, limited to finite numbers, so that a zero state stays zero (0 * inf is NaN). Other states can overflow."""
    limit = torch.finfo(transfer.dtype).max
    if transfer.is_complex():
        return torch.where(transfer.isfinite(), transfer, limit)
    return transfer.clamp(-limit, limit)
