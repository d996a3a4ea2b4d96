"""Compared with the float64 loop, our scan meets the tolerances that other scans publish, on their shapes.

accelerated-scan (tests/test_eq.py): uniform a and b, mean loss; absolute 1e-7 and relative 1.3e-6 in float32, 1e-1 and 1.6e-2 in
bfloat16, 12e-3 and 1e-3 in float16; (1, length, 512) at 16 lengths up to 127,323. flash-linear-attention
(tests/ops/test_hgrn.py): a = sigmoid(g), inputs (1 - a) x, h0; root mean square error at most 0.005 of the value's.
"""

from __future__ import annotations

import pytest
import torch

from tests.core.scan.cases import Problem
from tests.core.scan.pairwise import pairwise

pytestmark = pytest.mark.slow

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: (1e-7, 1.3e-6), torch.bfloat16: (1e-1, 1.6e-2), torch.float16: (12e-3, 1e-3)}
LENGTHS = [2**i for i in range(5, 17)] + [8000, 16_323, 33_753, 127_323]
# At long lengths a CPU takes fewer chains than the other scans' tests do. This is enough because chains are independent.
ELEMENTS = 1 << 30 if DEVICE == "cuda" else 1 << 19


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_scan_meets_the_tolerances_of_accelerated_scan(length, dtype) -> None:
    random = torch.Generator().manual_seed(3407)
    a, b = (torch.rand(1, length, min(512, ELEMENTS // length), generator=random).to(dtype) for _ in range(2))
    given = Problem(a, b, None, torch.full_like(b, 1 / length), reverse=False)
    truth = given.solve("torch", torch.float64, DEVICE)
    for name, value in given.solve("auto", device=DEVICE).items():
        absolute, relative = TOLERANCE[dtype]
        torch.testing.assert_close(value, truth[name].to(dtype), atol=absolute, rtol=relative)


@pairwise(length=[1, 15, 63, 300], d_state=[500, 1024], dtype=[torch.float32, torch.bfloat16])
def test_the_scan_meets_the_tolerances_of_flash_linear_attention(length, d_state, dtype) -> None:
    random = torch.Generator().manual_seed(42)
    x, g, weight = (torch.randn(2, length, d_state, generator=random).to(dtype) for _ in range(3))
    a = g.sigmoid()
    given = Problem(a, (1 - a) * x, torch.randn(2, d_state, generator=random).to(dtype), weight, reverse=False)
    truth = given.solve("reference", torch.float64, DEVICE)
    for name, value in given.solve("auto", device=DEVICE).items():
        error = (value - truth[name]).square().mean().sqrt()
        assert error <= 0.005 * truth[name].square().mean().sqrt(), name
