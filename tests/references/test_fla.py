"""Our layers equal those of flash-linear-attention: the same function of the same weights, and the same number of weights.

These tests run in a separate process: if fla is installed, transformers uses fla's kernels, which do not run on a CPU.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
import torch

from benchmarks.layers import of_fla
from benchmarks.layers.pair import count
from stablessm_core.matrix_state import scalar_decay
from stablessm_core.spec.layers import LAYERS
from tests.references.agreement import assert_same, near

pytest.importorskip("fla")

PAIRS = {name: getattr(of_fla, name) for name in ("retnet", "gla", "hgrn", "rwkv6", "gated_deltanet")}
WITH_OPTIONS = {
    "gated_deltanet, negative": partial(of_fla.gated_deltanet, n_heads=3, head_width=5, expand=1, allow_neg_eigval=True),
}


@pytest.mark.parametrize("name", [*PAIRS, *WITH_OPTIONS])
def test_our_layer_matches_the_public_implementation(name: str) -> None:
    assert_same((PAIRS | WITH_OPTIONS)[name](24), 24)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("d_model", [24, 64])
def test_our_layer_has_as_many_weights_as_the_public_implementation(name: str, d_model: int) -> None:
    bounds = d_model if name == "hgrn" else 0  # one row of lower bounds; in fla the matrix belongs to the model
    assert LAYERS[name]().parameters(d_model) == count(PAIRS[name](d_model).theirs) + bounds


def test_scalar_decay_matches_simple_gla() -> None:
    naive = import_module("fla.ops.simple_gla.naive")
    q, k = torch.randn(2, 2, 131, 3, 5)
    v, g = torch.randn(2, 131, 3, 7), -torch.rand(2, 131, 3)
    o, S = scalar_decay(q, k, v, g)
    for theirs in (naive.naive_recurrent_simple_gla, naive.naive_chunk_simple_gla):
        public, state = theirs(q, k, v, g, scale=1.0, output_final_state=True)
        near(o, public, "output", 1e-5)
        near(S, state, "state", 1e-5)
