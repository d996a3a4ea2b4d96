"""A fork may change only supported fields. A new map keeps every eigenvalue or is refused with the eigenvalue's index."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.maps import MAPS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.forking import Unreachable, carried_weights, forked_config, summarize_changes
from stablessm_core.spec.model import Reparameterization

BOUND = 4 * 2.0**-24  # largest error of |lambda_bar|, as in docs/api.md: rounding of the weight and of two maps in float32
PAIRS = [
    (time, old, new)
    for time in ("discrete", "continuous")
    for old, new in itertools.permutations([name for name, map_ in MAPS.items() if time in map_.forms], 2)
]
BASE: dict[str, Any] = {"task": {"name": "polynomial_memory"}, "optimizer": {"lr": 0.1}}


def map_(name: str, time: str = "discrete", **constants: float) -> Reparameterization:
    return Reparameterization.model_validate({"name": name, "time": time, **constants})


@pytest.mark.parametrize(("time", "old", "new"), PAIRS)
@pytest.mark.slow
def test_a_new_map_keeps_every_eigenvalue_or_names_an_eigenvalue_that_it_cannot_reach(time: str, old: str, new: str) -> None:
    before, after = get_reparameterization(old, time=time), get_reparameterization(new, time=time)
    grid = torch.cat([torch.linspace(-6, 6, 1001), torch.logspace(-6, 3, 200), -torch.logspace(-6, 3, 200)])
    lambda_ = before.formulas.f(grid.double())
    reached = torch.tensor([after.reachable.contains(value) for value in lambda_.tolist()])
    dt = torch.full_like(grid, 0.05)

    carried = torch.from_numpy(carried_weights(grid[reached].numpy(), map_(old, time), map_(new, time)))
    assert carried.dtype == torch.float32
    there = before.lambda_bar(grid, dt)[reached]
    moved = (after.lambda_bar(carried, dt[reached]) - there).abs()
    assert (moved <= BOUND * there.abs().clamp(min=1)).all(), f"{moved.max():g}"

    for place in (~reached).nonzero()[:1, 0]:
        weights = np.r_[grid[reached].numpy()[:2], grid[place].numpy()]
        with pytest.raises(Unreachable) as refused:
            carried_weights(weights, map_(old, time), map_(new, time), layer=3)
        assert refused.value.index == len(weights) - 1
        assert f"eigenvalue {len(weights) - 1} of layer 3 is {float(lambda_[place]):.9g}" in str(refused.value)
        assert str(after.reachable) in str(refused.value)


def test_no_map_reaches_a_non_finite_eigenvalue() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(Unreachable, match="eigenvalue 1 of layer 0 is"):
            carried_weights(np.array([0.5, value], np.float32), map_("direct"), map_("best"))


def test_an_unreachable_eigenvalue_of_a_layer_with_a_matrix_of_weights_is_named_too() -> None:
    weights = np.array([[0.5, 0.6], [0.7, 1.5]], np.float32)  # as of S4D: channels x modes
    with pytest.raises(Unreachable, match="eigenvalue 3 of layer 2 is"):
        carried_weights(weights, map_("direct"), map_("best"), layer=2)


def test_new_constants_of_the_same_map_keep_the_eigenvalues() -> None:
    w = np.linspace(0.5, 30, 100, dtype=np.float32)
    carried = carried_weights(w, map_("best"), map_("best", a=4.0, b=0.5))
    np.testing.assert_allclose(carried, w / 2, rtol=2e-7)


def test_a_fork_keeps_every_setting_that_was_not_changed() -> None:
    config, differs = forked_config(
        BASE, {"optimizer.lr": 0.01, "optimizer.schedule": "cosine", "train.batch_size": 128, "name": "x"}
    )
    # The batch size is unchanged, and a new name does not count as a change.
    assert differs == {"optimizer.lr": 0.01, "optimizer.schedule": "cosine"}
    assert (config.name, config.train) == ("x", parse_config(BASE).train)
    assert summarize_changes(differs) == "lr 0.01, schedule cosine"
    assert (
        summarize_changes({"model.reparameterization.name": "best", "optimizer.grad_clip": None})
        == "reparameterization best, grad_clip null"
    )
    assert summarize_changes(forked_config(BASE, {})[1]) == "nothing (a replay)"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("task.length", 50), ("model.d_state", 8), ("model.n_layers", 2), ("train.seed", 1), ("model.activation", "relu"),
        ("model.reparameterization.time", "continuous"), ("task.name", "digits"),
    ],
)  # fmt: skip
def test_a_change_that_does_not_fit_the_weights_is_refused_and_the_error_lists_allowed_changes(path: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        forked_config(BASE, {path: value})
    ((field, message, allowed),) = refused.value.problems
    assert field.startswith(path.split(".")[0])
    assert "cannot change in a fork" in message
    assert allowed is not None
    assert "model.reparameterization.name" in allowed
