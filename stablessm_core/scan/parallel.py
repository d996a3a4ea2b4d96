"""The scan as a few dozen whole-tensor operations, on any device PyTorch knows.

Time is cut into chunks of RADIX steps. A first sweep walks all chunks at once and keeps only where each would end if it
started from zero; the ends are joined by the same scan on a sequence RADIX times shorter; a second sweep walks all chunks at
once again, now from the right state. The number of operations grows with RADIX * log(length), the work and the memory with
length. Every value is made by the recurrence itself from earlier values of its own chain: nothing non-finite travels back in
time or between chains, and nothing is divided by a power of a.

Chunk ends and powers are held in float64: an error of one rounding in a^RADIX would be amplified by 1 / (1 - |a|^RADIX).

A state that overflowed never ends being non-finite in the recurrence, yet joined chunks can step over it. So the last step of
every chunk is looked at, and where one is not finite the recurrence is done as it stands, one step after the other.

Throughout, `links` couple neighbouring steps: links[:, j] stands between steps j and j+1, or one (d_state,) vector stands
between all of them. `reverse` runs from the last step to the first, so "first" and "previous" mean in running order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

RADIX = 16
FEW_ELEMENTS = 1 << 16


def states(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h of h_t = a_t h_{t-1} + b_t. a (d_state,), (groups, d_state) or as b (batch, length, d_state), h0 (batch, d_state)."""
    if a.dim() == 2:
        return torch.cat([states(a_g, b_g, h0_g, reverse) for a_g, b_g, h0_g in _by_group(a, b, h0)])
    first = None if h0 is None else torch.addcmul(_edge(b, reverse), _edge(a, reverse), h0)
    return _scan(_links(a, reverse), b, first, reverse)


def adjoints(
    a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None, reverse: bool, need_da: bool, need_dh0: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """g, da and dh0 as `autograd.LinearScan` defines them: the scan over the same links, conjugated, in the other direction."""
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
    """Each row of a with its share of the batch."""
    split = [[None] * len(a) if x is None else x.tensor_split(len(a)) for x in rows]
    return zip(a, *split, strict=True)


def _summed_product(x: Tensor, y: Tensor) -> Tensor:
    """sum over batch and time of x * y, in a fixed order, without a temporary as large as x."""
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
    """h of h_j = links h_{j-1} + b_j; the first h is `first`, or b's first."""
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
        _stay_spoiled(h, reverse)
    elif not last_steps.sum().isfinite():
        _walk_again(links, b, first, h, reverse)
    return h


def _doubling(links: Tensor, b: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    """Hillis and Steele: after each round a value covers twice as many steps. Little data: what counts is how many operations."""
    h = b.clone()
    if first is not None:
        _edge(h, reverse).copy_(first)
    power = links.to(_wide(b.dtype, b.device)) if links.dim() == 1 else links
    span, length = 1, b.shape[1]
    while span < length:
        later, earlier = _apart(h, span, reverse)
        later.add_(earlier * power.to(b.dtype))
        if power.dim() == 1:
            power = power * power
        else:
            later, earlier = _apart(power, span, reverse)
            power = later * earlier
        span *= 2
    return h


def _apart(x: Tensor, span: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """All pairs of steps `span` apart: the later ones and the earlier ones, in running order."""
    return (x[:, :-span], x[:, span:]) if reverse else (x[:, span:], x[:, :-span])


def _walk_again(links: Tensor, b: Tensor, first: Tensor | None, h: Tensor, reverse: bool) -> None:
    """The chains with anything not finite, from there on, one step after the other. Everything else keeps its bits."""
    rows, columns = h.isfinite().all(1).logical_not().nonzero(as_tuple=True)

    def chains(x: Tensor) -> Tensor:  # (1, length, chains)
        return x[rows, :, columns].t()[None]

    here, walked = chains(h), torch.empty((1, h.shape[1], len(rows)), dtype=h.dtype)
    link = links[columns] if links.dim() == 1 else chains(links)
    _sweep(link, chains(b), None if first is None else first[rows, columns][None], None, walked, h.shape[1], reverse)
    h[rows, :, columns] = torch.where(_since(here.isfinite().logical_not(), reverse), walked, here)[0].t()


def _stay_spoiled(h: Tensor, reverse: bool) -> None:
    """What is no longer finite stays so to the end of its chain: on a device, where asking whether there is any costs a sync."""
    spoiled = h.isfinite().logical_not()
    h.masked_fill_(_since(spoiled, reverse) & ~spoiled, float("nan"))


def _since(mark: Tensor, reverse: bool) -> Tensor:
    """At and after any mark in running order."""
    return mark.flip(1).cumsum(1).flip(1) > 0 if reverse else mark.cumsum(1) > 0


def _chunk_ends(links: Tensor, b: Tensor, first: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    """Per chunk but the last one: the factor from the previous chunk's end to its own end, and its end when started from zero."""
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
    """Walk all chunks of `radix` steps at once, each from the state in `carry` with which the previous chunk ends."""
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
    """Step i of every chunk; chunks are counted from the first step in running order, so only the last one may be short."""
    return x[:, (x.shape[1] - 1 - i) % radix if reverse else i :: radix]


def _head(x: Tensor, count: int, reverse: bool) -> Tensor:
    """The first `count` chunks in running order."""
    return x[:, x.shape[1] - count :] if reverse else x[:, :count]


def _tail(x: Tensor, reverse: bool) -> Tensor:
    """All chunks but the first in running order."""
    return x[:, :-1] if reverse else x[:, 1:]


def _into(links: Tensor, i: int, count: int, reverse: bool, radix: int = RADIX) -> Tensor:
    """Links into step i of the first `count` chunks that have such a link (the first chunk has none into its step 0)."""
    if links.dim() == 1:
        return links
    return _head(_phase(links, (i - 1) % radix, radix, reverse), count, reverse)


def _conj(x: Tensor) -> Tensor:
    """Not lazily: within an operator of a compiled graph, PyTorch forgets to apply a lazy conjugation."""
    return x.conj_physical() if x.is_complex() else x


def _wide(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if device.type == "mps":  # has no float64
        return dtype
    return torch.complex128 if dtype.is_complex else torch.float64


def _finite(transfer: Tensor) -> Tensor:
    """Overflowed powers cut to the largest number: zero states stay zero (0 * inf would be NaN), others still overflow."""
    limit = torch.finfo(transfer.dtype).max
    if transfer.is_complex():
        return torch.where(transfer.isfinite(), transfer, limit)
    return transfer.clamp(-limit, limit)
