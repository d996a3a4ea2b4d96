"""Products of real sequences with complex weights that are stored as pairs of real numbers."""

import pytest
import torch

from stablessm_core.layers.parts.complex_weights import complex_product, real_part_of_product
from stablessm_core.layers.parts.readout import GatedReadout


@pytest.mark.slow
def test_products_of_real_pairs_match_complex_multiplication() -> None:
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    B, C = torch.randn(4, 3, 2, dtype=torch.float64), torch.randn(3, 4, 2, dtype=torch.float64)
    h = complex_product(x, B)
    torch.testing.assert_close(h, x.to(torch.complex128) @ torch.view_as_complex(B).T)
    torch.testing.assert_close(real_part_of_product(C, h), (h @ torch.view_as_complex(C).T).real)


def test_under_autocast_the_complex_product_keeps_float32() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        h = complex_product(torch.randn(2, 3), torch.randn(4, 3, 2))
        assert h.dtype == torch.complex64
        assert real_part_of_product(torch.randn(3, 4, 2), h).dtype == torch.bfloat16


def test_the_readout_is_a_gated_linear_unit_with_the_published_initialization() -> None:
    torch.manual_seed(0)
    for initial in ("lecun", "uniform"):
        readout = GatedReadout(400, initial).double()
        y = torch.randn(3, 400, dtype=torch.float64)
        (W_1, W_2), (b_1, b_2) = readout.weight.chunk(2), readout.bias.chunk(2)
        g = torch.nn.functional.gelu(y)
        torch.testing.assert_close(readout(y), (g @ W_1.T + b_1) * torch.sigmoid(g @ W_2.T + b_2))
        deviation = {"lecun": 1.0, "uniform": 3**-0.5}[initial] / 20
        assert abs(readout.weight.std().item() / deviation - 1) < 0.01
        assert readout.bias.any().item() is (initial == "uniform")
