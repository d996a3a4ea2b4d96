"""The floor of the scan on a GPU: one elementwise kernel that moves as many bytes as the scan."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def move(x, y, z, out, other, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside)
    if y is not None:
        value += tl.load(y + at, mask=inside)
    if z is not None:
        value += tl.load(z + at, mask=inside)
    tl.store(out + at, value, mask=inside)
    if other is not None:
        tl.store(other + at, value, mask=inside)


def floor(b: Tensor, lti: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """The calls that move the bytes of forward and of forward + backward. LTV: a, b -> h; a, h, grad -> da, db. LTI: b -> h;
    h, grad -> db."""
    b = torch.view_as_real(b) if b.is_complex() else b
    a, h, grad, da, db = (torch.empty_like(b).normal_() for _ in range(5))
    grid = (triton.cdiv(b.numel(), BLOCK),)

    def forward() -> None:
        move[grid](b, None if lti else a, None, h, None, b.numel(), BLOCK)

    def both() -> None:
        forward()
        move[grid](h, grad, None if lti else a, db, None if lti else da, b.numel(), BLOCK)

    return forward, both
