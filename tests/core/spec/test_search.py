"""A search draws the same trials for the same seed, inside the limits of each distribution."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from stablessm_core.spec.errors import describe_errors
from stablessm_core.spec.search import Halving, Search, search_axes, trial_settings

SPACE: dict[str, Any] = {
    "optimizer.lr": {"distribution": "log_uniform", "low": 1e-4, "high": 1.0},
    "optimizer.weight_decay": {"distribution": "uniform", "low": -1.0, "high": 3.0},
    "model.d_state": {"distribution": "integer", "low": 1, "high": 4},
    "model.layer": {"distribution": "choice", "values": ["s4d", {"name": "mamba"}, None]},
}


def search(**given: Any) -> Search:
    return Search.model_validate({"space": SPACE, "trials": 400} | given)


def test_the_same_seed_gives_the_same_trials_and_another_seed_gives_others() -> None:
    assert trial_settings(search(seed=3)) == trial_settings(search(seed=3))
    assert trial_settings(search(seed=3)) != trial_settings(search(seed=4))
    # written out, so that no other version of Python or of this code may draw other trials
    [first] = trial_settings(search(trials=1))
    assert first == {
        "model.d_state": 2, "model.layer": {"name": "mamba"}, "optimizer.lr": pytest.approx(0.00038759278396060647, rel=1e-12),
        "optimizer.weight_decay": pytest.approx(2.6455634584881698, rel=1e-12),
    }  # fmt: skip


def test_more_trials_and_other_settings_leave_the_trials_unchanged() -> None:
    few = trial_settings(search(trials=5))
    assert trial_settings(search(trials=50))[:5] == few
    reversed_space = dict(reversed(SPACE.items()))  # PostgreSQL does not keep the order of keys
    assert trial_settings(search(trials=5, space=reversed_space)) == few
    one = trial_settings(search(trials=5, space={"optimizer.lr": SPACE["optimizer.lr"]}))
    assert [trial["optimizer.lr"] for trial in one] == [trial["optimizer.lr"] for trial in few]


def test_values_stay_inside_their_limits_and_cover_them() -> None:
    trials = trial_settings(search())
    rates = [trial["optimizer.lr"] for trial in trials]
    assert min(rates) >= 1e-4
    assert max(rates) <= 1.0
    assert sum(rate < 1e-2 for rate in rates) == pytest.approx(200, abs=40)  # half of the decades, not half of the range
    assert all(-1 <= trial["optimizer.weight_decay"] <= 3 for trial in trials)
    assert {trial["model.d_state"] for trial in trials} == {1, 2, 3, 4}
    assert sum(trial["model.layer"] is None for trial in trials) == pytest.approx(133, abs=40)


def test_a_range_of_a_single_value_gives_this_value() -> None:
    for name in ("log_uniform", "uniform", "integer"):
        space = {"x": {"distribution": name, "low": 3, "high": 3}}
        assert {trial["x"] for trial in trial_settings(search(space=space))} == {3}


def test_only_choices_are_axes_of_a_grid() -> None:
    assert search_axes(search()) == {
        "optimizer.lr": [], "optimizer.weight_decay": [], "model.d_state": [], "model.layer": ["s4d", {"name": "mamba"}, None]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"space": {}}, "space"),
        ({"trials": 2001}, "trials"),
        ({"seed": -1}, "seed"),
        ({"method": "grid"}, "method"),
        ({"halving": {"factor": 1}}, "halving.factor"),
        ({"halving": {"metric": "loss"}}, "halving.metric"),
        ({"halving": {"max_overflow_budget": math.inf}}, "halving.max_overflow_budget"),
    ],
)
def test_an_invalid_search_is_refused_with_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        search(**given)
    assert describe_errors(refused.value, Search)[0][0] == field


def test_rungs_grow_by_the_factor_and_end_before_the_last_step() -> None:
    halving = Halving(first_rung=10, factor=3)
    assert halving.rungs(1000) == [10, 30, 90, 270, 810]
    assert halving.rungs(90) == [10, 30]
    assert halving.rungs(10) == []


@pytest.mark.parametrize(("metric", "mode", "larger"), [("train/loss", None, False), ("eval/accuracy", None, True),
                                                       ("train/loss", "max", True), ("eval/accuracy", "min", False)])  # fmt: skip
def test_accuracy_is_better_if_larger_unless_the_mode_says_otherwise(metric: Any, mode: Any, larger: bool) -> None:
    assert Halving(metric=metric, mode=mode).larger_is_better is larger
