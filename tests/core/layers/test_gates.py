"""Statistics of gates: extremes and means over batch and time, without gradients. Decays are finite and exact."""

import math

import pytest
import torch

from stablessm_core.layers.parts.gates import decay_of, gate_statistics


def test_gate_statistics_are_taken_over_batch_and_time() -> None:
    s = torch.rand(3, 5, 4, 2, requires_grad=True)
    lowest, mean, highest = gate_statistics(s)
    rows = s.detach().reshape(15, 8)
    assert torch.equal(lowest, rows.min(0).values)
    assert torch.equal(highest, rows.max(0).values)
    torch.testing.assert_close(mean, rows.mean(0))
    assert not mean.requires_grad


def test_gate_statistics_of_half_precision_values_are_computed_in_float32() -> None:
    s = torch.full((2, 600, 1), 100.0, dtype=torch.float16)
    assert gate_statistics(s).tolist() == [[100.0], [100.0], [100.0]]


def test_a_decay_is_exact_near_the_boundary_and_finite_for_a_fully_closed_gate() -> None:
    decay = decay_of(torch.tensor([1e-12, 0.5, 1.0]))
    assert decay[:2].tolist() == pytest.approx([1e-12, math.log(2)], rel=1e-6)
    assert 16 < decay[2].item() < 18
