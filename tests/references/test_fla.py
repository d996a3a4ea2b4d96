"""The layers of flash-linear-attention: the same function of the same weights, and as many of them.

In a process of its own: where transformers finds fla, it takes fla's kernels, and a CPU has none.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
import torch

from benchmarks.layers import of_fla
from benchmarks.layers.pair import count
from stablessm_core.layers.registry import LAYERS
from stablessm_core.matrix_state import scalar_decay
from tests.references.agreement import assert_same, near

pytest.importorskip("fla")

PAIRS = {name: getattr(of_fla, name) for name in ("retnet", "gla", "hgrn", "rwkv6", "gated_deltanet")}
WITH_OPTIONS = {
    "gated_deltanet, negative": partial(of_fla.gated_deltanet, n_heads=3, head_width=5, expand=1, allow_neg_eigval=True),
}


@pytest.mark.parametrize("name", [*PAIRS, *WITH_OPTIONS])
def test_a_layer_is_the_public_one(name: str) -> None:
    assert_same((PAIRS | WITH_OPTIONS)[name](24), 24)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("d_model", [24, 64])
def test_a_layer_has_as_many_weights_as_the_public_one(name: str, d_model: int) -> None:
    bounds = d_model if name == "hgrn" else 0  # a row a layer of the matrix that is the whole model's there
    assert LAYERS[name]().parameters(d_model) == count(PAIRS[name](d_model).theirs) + bounds


def test_decay_by_a_scalar_is_simple_gla() -> None:
    naive = import_module("fla.ops.simple_gla.naive")
    q, k = torch.randn(2, 2, 131, 3, 5)
    v, g = torch.randn(2, 131, 3, 7), -torch.rand(2, 131, 3)
    o, S = scalar_decay(q, k, v, g)
    for theirs in (naive.naive_recurrent_simple_gla, naive.naive_chunk_simple_gla):
        public, state = theirs(q, k, v, g, scale=1.0, output_final_state=True)
        near(o, public, "output", 1e-5)
        near(S, state, "state", 1e-5)
