"""The tolerances that other scans publish for themselves, on their shapes, held by ours against the float64 loop.

accelerated-scan (tests/test_eq.py): uniform a and b, mean loss; absolute 1e-7 and relative 1.3e-6 in float32, 1e-1 and 1.6e-2 in
bfloat16, 12e-3 and 1e-3 in float16. flash-linear-attention (tests/ops/test_hgrn.py): a = sigmoid(g), inputs (1 - a) x, h0;
root mean square error 0.005 of the value itself.
"""

from __future__ import annotations

import pytest
import torch
from scan_cases import Problem

TOLERANCE = {torch.float32: (1e-7, 1.3e-6), torch.bfloat16: (1e-1, 1.6e-2), torch.float16: (12e-3, 1e-3)}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("length", [32, 1024, 8000, 16323])
def test_accelerated_scans_tolerances_hold(length, dtype) -> None:
    random = torch.Generator().manual_seed(3407)
    a, b = (torch.rand(1, length, 16, generator=random).to(dtype) for _ in range(2))
    given = Problem(a, b, None, torch.full_like(b, 1 / length), reverse=False)
    truth = given.solve("torch", torch.float64)
    for name, value in given.solve("torch").items():
        absolute, relative = TOLERANCE[dtype]
        torch.testing.assert_close(value, truth[name].to(dtype), atol=absolute, rtol=relative)


@pytest.mark.parametrize("length", [1, 15, 63, 300])
@pytest.mark.parametrize("d_state", [500, 1024])
def test_flash_linear_attentions_tolerances_hold(length, d_state) -> None:
    random = torch.Generator().manual_seed(42)
    x, g, weight = (torch.randn(2, length, d_state, generator=random) for _ in range(3))
    a = g.sigmoid()
    given = Problem(a, (1 - a) * x, torch.randn(2, d_state, generator=random), weight, reverse=False)
    truth = given.solve("reference", torch.float64)
    for name, value in given.solve("torch").items():
        error = (value - truth[name]).square().mean().sqrt()
        assert error <= 0.005 * truth[name].square().mean().sqrt(), name
