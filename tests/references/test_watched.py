"""The real layers of mambapy, s5-pytorch and LRU-pytorch, tiny: what `stablessm.watch` finds, against formulas written here."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stablessm_core.outside.eigenvalues import UNCONFIRMED
from stablessm_core.outside.modules import Layer, find_layers
from tests.core.outside.test_modules import lambda_bar
from tests.core.outside.test_real_modules import mamba


def the_layer(module: nn.Module) -> Layer:
    found = find_layers(nn.Sequential(module))
    assert found.sentences == []
    (layer,) = found.layers
    return layer


def agrees(layer: Layer, expected: Tensor) -> None:
    np.testing.assert_allclose(lambda_bar(layer.eigenvalues), expected.detach().flatten().numpy(), rtol=1e-5)


def test_mambapy() -> None:
    mambapy = pytest.importorskip("mambapy.mamba")
    block = mambapy.MambaBlock(mambapy.MambaConfig(d_model=8, n_layers=1, d_state=4))
    layer = the_layer(block)
    assert layer.name == "MambaBlock"
    agrees(layer, mamba(block))


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
def test_s5_pytorch(discretization: str) -> None:
    made = pytest.importorskip("s5").S5(8, 8)
    made.seq.discretize = getattr(import_module("s5.s5_model"), f"discretize_{discretization}")  # as S5SSM's setting does
    layer = the_layer(made)
    assert layer.name == "S5SSM"
    discrete, _ = made.seq.discretize(made.seq.Lambda, torch.zeros(8, 8), torch.exp(made.seq.log_step))
    agrees(layer, discrete.abs())


def test_lru_pytorch() -> None:
    made = pytest.importorskip("LRU_pytorch").LRU(4, 4, 6)
    layer = the_layer(made)
    assert layer.eigenvalues.note == UNCONFIRMED, "it is found by the names of its parameters"
    agrees(layer, torch.exp(-torch.exp(made.nu_log)))
