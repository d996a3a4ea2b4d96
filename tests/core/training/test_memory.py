"""The measured memory function against kernels that are known."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.loading import get_task
from stablessm_core.theory import fit_decay
from stablessm_core.training.memory import measure_memory


class Diagonal(nn.Module):
    """y = c h + 0.7, h_t = lambda h_(t-1) + x_t, with one input channel."""

    def __init__(self, lambda_: list[float], c: list[float]) -> None:
        super().__init__()
        self.lambda_, self.c = nn.Parameter(torch.tensor(lambda_)), torch.tensor(c)

    def forward(self, x: Tensor) -> Tensor:
        h, y = torch.zeros(len(x), len(self.c)), []
        for t in range(x.shape[1]):
            h = self.lambda_ * h + x[:, t]
            y.append((h @ self.c)[:, None] + 0.7)
        return torch.stack(y, dim=1)


def test_the_memory_of_a_linear_system_is_its_kernel() -> None:
    model = Diagonal([0.9, -0.5], [0.3, 0.1])
    t = np.arange(60)
    kernel = np.abs(0.3 * 0.9**t + 0.1 * (-0.5) ** t)
    measured = measure_memory(model, 1, length=60)
    np.testing.assert_allclose(measured / measured[0], kernel / kernel[0], rtol=1e-3, atol=1e-6)
    assert fit_decay(measured).kind == "exponential"
    assert model.training


def test_a_network_can_be_measured_without_a_change_of_its_output() -> None:
    config = RunConfig.model_validate({"name": "memory", "task": {"name": "polynomial_memory"}})
    task = get_task(config.task, None)  # type: ignore[arg-type]
    model = build_model(config, task)
    assert task.input_size is not None
    state = torch.get_rng_state()
    first, again = (measure_memory(model, task.input_size, length=40) for _ in range(2))
    assert first.shape == (40,)
    assert np.isfinite(first).all()
    assert first[0] > 0
    np.testing.assert_array_equal(first, again)
    assert torch.equal(state, torch.get_rng_state())


def test_models_without_an_output_for_each_step_are_refused() -> None:
    pooled = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(ValueError, match=r"need \(2, 20, channels\)"):
        measure_memory(pooled, 1, length=20)
    with pytest.raises(ValueError, match="length is 0"):
        measure_memory(pooled, 1, length=0)
