"""Training with and without `watch` gives the same bits, also if the watched module is evaluated when `watch` starts."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import stablessm
from tests.core.outside.test_confirm import Kernel


class Model(nn.Module):
    """A kernel that `watch` evaluates, and dropout, which uses random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.dropout = Kernel(), nn.Dropout(0.3)

    def forward(self, length: int) -> Tensor:
        out: Tensor = self.dropout(self.kernel(length))
        return out


def trained(directory: Path | None) -> list[Tensor]:
    torch.manual_seed(5)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = None if directory is None else stablessm.watch(model, optimizer, mode="offline", dir=directory, length=16)
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(16).square().mean()
        loss.backward()
        if run is not None:
            run.loss(loss)
        optimizer.step()
    if run is not None:
        run.finish()
    return [value.clone() for value in model.state_dict().values()]


def test_a_module_that_is_evaluated_trains_to_the_same_bits(tmp_path: Path) -> None:
    assert all(torch.equal(a, b) for a, b in zip(trained(None), trained(tmp_path), strict=True))
