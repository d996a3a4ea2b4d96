"""HiPPO-LegS in diagonal form: the published numbers, and the matrix from which they follow."""

import pytest
import torch

from stablessm_core.layers.parts.hippo import legs


def test_four_states_have_the_published_modes() -> None:
    frequencies, P, _ = legs(4)
    torch.testing.assert_close(frequencies, torch.tensor([0.556501, 4.603293], dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(P, torch.tensor([0.683724, 1.879500], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("d_state", "largest"), [(16, 80.97), (32, 325.43), (64, 1303.27)])
def test_the_highest_frequency_grows_with_the_square_of_the_number_of_states(d_state: int, largest: float) -> None:
    assert legs(d_state).frequencies[-1].item() == pytest.approx(largest, abs=0.005)


@pytest.mark.parametrize("d_state", [2, 4, 8])
def test_the_low_rank_correction_gives_the_eigenvalues_of_the_triangular_hippo_matrix(d_state: int) -> None:
    frequencies, P, B = legs(d_state)
    Lambda = torch.complex(torch.full_like(frequencies, -0.5), frequencies)
    whole = torch.diag(torch.cat([Lambda, Lambda.conj()]))
    both = torch.cat([P, P])
    values = torch.linalg.eigvals(whole - both[:, None] * both)
    wanted = -torch.arange(d_state, 0, -1, dtype=torch.float64)
    torch.testing.assert_close(values.real.sort().values, wanted, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(values.imag, torch.zeros_like(P).repeat(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(both.square().sum().item(), d_state**2 / 2)
    torch.testing.assert_close(B, 2**0.5 * P)
