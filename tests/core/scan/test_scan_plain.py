"""The short way to the C kernels: the bits of the general way, few Python calls, and the general way where it is needed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from stablessm_core.scan import linear_scan, plain, why_not_compiled
from tests.core.scan.cases import problem
from tests.core.scan.pairwise import pairwise

pytestmark = pytest.mark.skipif(why_not_compiled(torch.device("cpu")) is not None, reason="needs the C kernels")

BOTH = (True, False)


def leaves(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.detach().clone().requires_grad_() for x in tensors]


def values_and_gradients(a: Tensor, b: Tensor, h0: Tensor | None, weight: Tensor, reverse: bool) -> list[Tensor]:
    h = linear_scan(a, b, h0, reverse=reverse)
    return [h, *torch.autograd.grad(h, [x for x in (a, b, h0) if x is not None], weight)]


@pairwise(
    dtype=(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    shape=((8, 100, 32), (1, 1, 1), (3, 70, 5), (2, 700, 100)),
    lti=BOTH, h0=BOTH, reverse=BOTH, transposed=BOTH,
)  # fmt: skip
def test_the_short_way_gives_the_bits_of_the_general_way(dtype, shape, lti, h0, reverse, transposed, monkeypatch) -> None:
    given = problem(shape, dtype, lti=lti, h0=h0, reverse=reverse)
    a, b, first, weight = given.a.to(dtype), given.b.to(dtype), given.h0, given.weight.to(dtype)
    if transposed:
        b, weight = (x.transpose(0, 2).contiguous().transpose(0, 2) for x in (b, weight))
    a, b, first = leaves(a, b, None if first is None else first.to(dtype))
    assert plain.fits(a, b, first)
    short = values_and_gradients(a, b, first, weight, reverse)
    with torch.no_grad():
        assert torch.equal(linear_scan(a, b, first, reverse=reverse), short[0])
    monkeypatch.setattr(plain, "fits", lambda *_: False)
    general = values_and_gradients(a, b, first, weight, reverse)
    assert [(x.dtype, x.shape) for x in short] == [(x.dtype, x.shape) for x in general]
    assert all(torch.equal(x, y) for x, y in zip(short, general, strict=True))


@pytest.mark.parametrize("lti", BOTH)
def test_a_small_scan_with_gradients_makes_few_python_calls(lti: bool) -> None:
    """At (8, 100, 32), Python takes more time than the computation."""
    a, b = leaves(torch.rand(32) if lti else torch.rand(8, 100, 32), torch.randn(8, 100, 32))
    weight = torch.ones(8, 100, 32)
    values_and_gradients(a, b, None, weight, False)
    called: list[str] = []

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and "stablessm_core" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        h = linear_scan(a, b)
        torch.autograd.grad(h, [a, b], weight)
    finally:
        sys.setprofile(None)
    assert len(called) <= 30, called


def test_higher_derivatives_and_every_transform_take_the_general_way() -> None:
    a, b = leaves(torch.rand(3, dtype=torch.float64), torch.randn(2, 9, 3, dtype=torch.float64))
    assert plain.fits(a, b, None)
    assert torch.autograd.gradcheck(linear_scan, (a, b))
    assert torch.autograd.gradgradcheck(linear_scan, (a, b))
    h = linear_scan(a, b)
    rows = torch.eye(h.numel(), dtype=h.dtype).view(-1, *h.shape)
    (together,) = torch.autograd.grad(h, b, rows, is_grads_batched=True, retain_graph=True)
    for row, found in zip(rows, together, strict=True):
        assert torch.equal(torch.autograd.grad(h, b, row, retain_graph=True)[0], found)
    with forward_ad.dual_level():
        assert not plain.fits(a, b, None)
    assert torch.func.vmap(lambda x: torch.tensor(0.0) if plain.fits(a, x[None], None) else x.sum())(b).shape == (2,)
    negated = torch.complex(b, b).detach().conj().imag
    assert negated.is_neg()
    assert not plain.fits(a, negated, None)
    torch.testing.assert_close(linear_scan(a, negated), linear_scan(a, -b), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.rand(3), torch.rand(2, 0, 3)),
        (torch.rand(4), torch.rand(2, 5, 3)),
        (torch.rand(1, 3), torch.rand(2, 5, 3)),
        (torch.rand(3), torch.rand(5, 3)),
        (torch.rand(3), torch.rand(2, 5, 3, device="meta")),
    ],
)
def test_invalid_arguments_reach_the_errors_of_the_general_way(a: Tensor, b: Tensor) -> None:
    assert not plain.fits(a, b, None)
    with pytest.raises(ValueError, match="must be"):
        linear_scan(a, b)
