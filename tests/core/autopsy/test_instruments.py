"""The instruments name the first non-finite result that reached the loss or the gradients, and no infinity that is meant."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.autopsy.instruments import Instruments, Result
from stablessm_core.scan import linear_scan

INF, NAN = math.inf, math.nan


def first_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Result | None:
    """The first non-finite result behind function(x) and its gradient."""
    x = x.clone().requires_grad_()
    with Instruments() as seen:
        loss = function(x).sum()
        seen.stage = "backward"
        loss.backward()
    assert x.grad is not None
    return seen.first_behind([loss.detach()]) or seen.first_behind([x.grad])


def masked_softmax(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape, dtype=torch.bool).triu(1)
    return torch.softmax(x.masked_fill(mask, -INF), -1)


def weights_with_an_underflow(x: Tensor) -> Tensor:
    """exp(log 0) is 0, as for an eigenvalue that has become 0."""
    return torch.exp(torch.log(torch.zeros(3, 3)) + x)


def written_in_pieces(x: Tensor) -> Tensor:
    buffer = torch.empty_like(x)
    for row, out in zip(x.detach(), buffer, strict=True):
        torch.mul(row, row, out=out)
    return buffer * 0 + x


HERE = torch.tensor([[1.0, 2.0, 3.0], [1e30, 1.0, 2.0], [0.0, -1.0, 5.0]])

CASES: list[tuple[str, Callable[[Tensor], Tensor], tuple[str, str, tuple[int, ...]] | None]] = [
    ("an overflow", lambda x: x * x, ("forward", "mul", (1, 0))),
    ("an overflow before others", lambda x: (x * x).exp() + (x - x / 0), ("forward", "mul", (1, 0))),
    ("the square root of a negative number", lambda x: torch.sqrt(x + 0.5), ("forward", "sqrt", (2, 1))),
    ("an infinite slope at 0", lambda x: torch.sqrt(x.clamp(min=0)), ("backward", "div", (2, 0))),
    ("a mask is meant", masked_softmax, None),
    ("log 0 is meant", weights_with_an_underflow, None),
    ("a mask beside an overflow", lambda x: masked_softmax(x) + x.cosh(), ("forward", "cosh", (1, 0))),
    ("log 0 beside an overflow", lambda x: weights_with_an_underflow(-x.abs()) * (x * x), ("forward", "mul", (1, 0))),
    ("NaN made of meant infinities", lambda x: torch.softmax(x.masked_fill(x > 0, -INF), -1), ("forward", "_softmax", (0, 0))),
    ("log 0 that reaches the loss", lambda x: x.abs().log(), ("forward", "log", (2, 0))),
    ("a constant that is NaN", lambda x: x * torch.tensor(NAN), ("forward", "mul", (0, 0))),
    ("an overflow in place", lambda x: x.clone().mul_(x), ("forward", "mul_", (1, 0))),
    ("an overflow in a piece of a buffer", written_in_pieces, ("forward", "mul", (0,))),
    ("an overflow that was overwritten", lambda x: (x * x).detach().zero_() + x, None),
    (
        "a complex overflow",
        lambda x: (torch.view_as_complex(torch.stack([x, x], -1)).conj() * x).real,
        ("forward", "mul", (1, 0)),
    ),
    ("memory that is not yet written", lambda x: torch.empty(1000).fill_(0).sum() + x, None),
]


@pytest.mark.parametrize(("function", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_first_nonfinite_result_is_named(
    function: Callable[[Tensor], Tensor], expected: tuple[str, str, tuple[int, ...]] | None
) -> None:
    found = first_of(function, HERE)
    assert (None if found is None else (found.stage, found.operation, found.index)) == expected


def test_the_largest_input_is_finite_and_no_mark() -> None:
    found = first_of(lambda x: torch.where(x > 2, x, -1e38) * 1e10, HERE)
    assert found is not None
    assert found.operation == "mul"
    assert found.largest_input == pytest.approx(1e30)  # not the mark 1e38, which is what overflowed


def test_a_scan_names_the_earliest_step_of_time() -> None:
    a = torch.tensor([0.5, 1e13])
    b = torch.ones(4, 10, 2)
    b[0, :5] = 0  # the first sequence overflows later than the others
    found = first_of(lambda x: linear_scan(a, x), b)
    assert found is not None
    assert (found.operation, found.index) == ("scan_states", (1, 3, 1))


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.inner(x)) * 2


def test_operations_are_attributed_to_their_modules_forward_and_backward() -> None:
    model = nn.Sequential(Doubling(), nn.Linear(3, 1))
    with torch.no_grad():
        model[1].weight.fill_(1e30)
    x = HERE.clamp(max=5)
    with Instruments() as seen:
        with seen.watch_modules(model):
            output = model(x)
        seen.stage = "loss"
        loss = output.mean()
        seen.stage = "backward"
        (loss * 1e20).backward()
    assert [m.module for m in seen.modules] == ["0.inner", "0", "1", "loss"]
    found = seen.first_behind([p.grad for p in model.parameters()])
    assert found is not None
    assert (found.stage, found.module) == ("backward", "1")


def test_narrow_operations_are_listed() -> None:
    with Instruments() as seen:
        (torch.ones(3, dtype=torch.float64) * 2).float().exp()
    assert list(seen.narrow) == ["_to_copy in model", "exp in model"]
