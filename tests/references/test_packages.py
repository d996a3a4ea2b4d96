"""Our layers equal those of smaller packages: the same function of the same weights, and the same number of weights."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.layers import of_packages
from benchmarks.layers.pair import count
from stablessm_core.spec.layers import LAYERS
from tests.references.agreement import LENGTH, assert_same, near

for _package in ("transformers", "mambapy", "s5", "LRU_pytorch", "neural_ssm", "minGRU_pytorch"):
    pytest.importorskip(_package)

PAIRS = {
    "mambapy, all steps at once": of_packages.mamba_of_mambapy,
    "mambapy, step by step": partial(of_packages.mamba_of_mambapy, pscan=False),
    "s5-pytorch": of_packages.s5_of_s5_pytorch,
    "LRU-pytorch": of_packages.lru_of_lru_pytorch,
    "neural-ssm LRU, scan": of_packages.lru_of_neural_ssm,
    "neural-ssm LRU, convolution": partial(of_packages.lru_of_neural_ssm, mode="conv"),
    "neural-ssm LRU, loop": partial(of_packages.lru_of_neural_ssm, mode="loop"),
}
MIN_GRU = {"minGRU-pytorch": of_packages.min_gru, "minGRU-pytorch, wide": partial(of_packages.min_gru, expand=3)}


@pytest.mark.parametrize("name", PAIRS)
def test_our_layer_matches_the_public_implementation(name: str) -> None:
    assert_same(PAIRS[name](24), 24)


@pytest.mark.parametrize("name", MIN_GRU)
def test_min_gru_matches_the_public_package_within_its_log_space_error(name: str) -> None:
    """The package scans logarithms, and their sum over the steps loses digits. In float64 enough digits remain."""
    assert_same(MIN_GRU[name](24), 24, tolerance=1e-3)
    pair = MIN_GRU[name](24)
    x = torch.randn(2, LENGTH, 24, dtype=torch.float64)
    near(pair.ours.double()(x), pair.theirs.double()(x), "output", 1e-11)


@pytest.mark.parametrize("mode", ["loop", "scan"])
def test_l2ru_matches_the_public_package_except_for_its_jitter(mode: str) -> None:
    """The package computes its matrices in the weights' precision; we use float64. Its B omits the 1e-6 added to a factor."""
    assert_same(of_packages.l2ru(24, mode=mode), 24, tolerance=1e-3)
    pair = of_packages.l2ru(24, mode=mode)
    theirs, own = pair.theirs.double().set_param(), pair.ours.double().system()
    back = torch.linalg.inv(own.K.T)  # ours has the state K^T h, theirs h
    ours = (back @ own.A @ own.K.T, back @ own.B, own.C @ own.K.T, own.D)
    for name, tolerance in {"A": 1e-11, "B": 1e-4, "C": 1e-11, "D": 1e-11}.items():
        which = "ABCD".index(name)
        near(ours[which], theirs[which], name, tolerance)


def test_our_layers_have_as_many_weights_as_the_public_layers() -> None:
    d_model = 24
    assert LAYERS["min_gru"]().parameters(d_model) == count(of_packages.min_gru(d_model).theirs)
    assert LAYERS["l2ru"]().parameters(d_model) == count(of_packages.l2ru(d_model).theirs)
    s5 = LAYERS["s5"]()
    assert s5.parameters(d_model) - s5.readout(d_model) == count(of_packages.s5_of_s5_pytorch(d_model).theirs)
    # D is a vector in the paper, but a matrix in that package
    matrix = d_model**2 - d_model
    lru = LAYERS["lru"]()
    assert lru.parameters(d_model) - lru.readout(d_model) + matrix == count(of_packages.lru_of_lru_pytorch(d_model).theirs)
