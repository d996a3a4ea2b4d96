"""Our layers equal those of transformers: the same function of the same weights, and the same number of weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.layers import of_transformers
from benchmarks.layers.pair import Pair, count
from stablessm_core.spec.layers import LAYERS
from tests.references.agreement import assert_same

pytest.importorskip("transformers")

PAIRS: dict[str, Callable[[int], Pair]] = {
    name: getattr(of_transformers, name) for name in ("mamba", "mamba2", "rg_lru", "rwkv4", "gated_deltanet")
}
WITH_OPTIONS = {
    "mamba2, 3 groups": partial(of_transformers.mamba2, d_state=5, head_width=4, n_groups=3),
    "gated_deltanet, narrow": partial(of_transformers.gated_deltanet, n_heads=3, head_width=5, expand=1),
}


@pytest.mark.parametrize("name", [*PAIRS, *WITH_OPTIONS])
def test_our_layer_matches_the_public_implementation(name: str) -> None:
    assert_same((PAIRS | WITH_OPTIONS)[name](24), 24)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("d_model", [24, 64])
def test_our_layer_has_as_many_weights_as_the_public_implementation(name: str, d_model: int) -> None:
    assert LAYERS[name]().parameters(d_model) == count(PAIRS[name](d_model).theirs)
