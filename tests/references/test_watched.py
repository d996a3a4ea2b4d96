"""The real layers of mambapy, s5-pytorch and LRU-pytorch, tiny: what `stablessm.watch` finds, against formulas written here."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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
    assert layer.eigenvalues.note is None, "its response to an impulse confirms what the names of its parameters suggest"
    agrees(layer, torch.exp(-torch.exp(made.nu_log)))


def test_both_directions_of_mambapys_vim() -> None:
    vim = pytest.importorskip("mambapy.vim")
    made = vim.VMamba(vim.MambaConfig(d_model=8, n_layers=2, d_state=4, bidirectional=True))
    found = find_layers(made)
    assert [layer.path.rpartition(".")[2] for layer in found.layers] == ["A_log", "A_log_b"] * 2
    assert (found.sentences, found.unwatched) == ([], [])
    mixer = made.layers[0].mixer
    backward = -torch.nn.functional.softplus(mixer.dt_proj_b.bias)[:, None] * torch.exp(mixer.A_log_b)
    agrees(found.layers[1], torch.exp(backward))


def test_a_whole_mambapy_model_gives_no_warning() -> None:
    module = pytest.importorskip("mambapy.mamba")
    found = find_layers(module.Mamba(module.MambaConfig(d_model=8, n_layers=2, d_state=4)))
    assert (len(found.layers), found.sentences, found.unwatched) == (2, [], [])


def test_a_liquid_s5_says_that_its_eigenvalues_depend_on_the_input() -> None:
    layer = the_layer(pytest.importorskip("s5").S5(8, 8, liquid=True))
    assert "the input is added to each eigenvalue" in (layer.eigenvalues.note or "")


def test_mingru_has_nothing_to_watch() -> None:
    found = find_layers(nn.Sequential(pytest.importorskip("minGRU_pytorch").minGRU(8)))
    assert found.layers == []
    assert "nothing to watch here" in found.sentences[0]
