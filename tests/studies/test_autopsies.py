"""What an autopsy says about a death: its kind, its place, and what would have saved the run."""

from __future__ import annotations

from typing import Any

import pytest

from studies.autopsies import KINDS, death_of
from tests.server.autopsies import PLACE, findings

NORM = {"module": "blocks.0.mlp.norm", "pass": "forward", "largest": "NaN", "largest_float64": 1.0, "nonfinite": 3}
GROUP = PLACE | {"module": "blocks.0.ssm", "operation": "native_group_norm", "largest_input": 4e36}
FINE = {"finite": True, "loss": 1.0, "largest": 1e9, "narrow": [], "first_nonfinite": None}


def answer(**changes: Any) -> dict[str, Any]:
    """The answer of a finished autopsy, in which no trial was made, and whose numbers fit float32."""
    modules = [{"module": "blocks.0", "pass": "forward", "largest": 1e9, "largest_float64": 1e9, "nonfinite": 0}, NORM]
    first = PLACE | {"largest_input": 1e9}
    usual = {
        "state": "done",
        "reason": None,
        "counterfactuals": [],
        "float64": FINE,
        "modules": modules,
        "first_nonfinite": first,
    }
    return findings(**usual | changes)


def trial(change: str, lives: bool | None, reason: str | None = None, **settings: Any) -> dict[str, Any]:
    return {"change": change, "settings": settings, "lives": lives, "reason": reason, "step": 3, "until": 9, "from_step": 1}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "arithmetic"),
        ({"float64": FINE | {"finite": False}}, "dynamics"),
        ({"float64": FINE | {"largest": 4e38}}, "range"),
        ({"float64": FINE | {"largest": "Infinity"}}, "range"),
        ({"modules": [NORM | {"module": "blocks.0", "largest_float64": 2e19}, NORM]}, "range"),
        ({"modules": [NORM | {"module": "head", "largest_float64": 2e19}, NORM | {"module": "loss"}]}, "range"),
        ({"modules": [NORM | {"module": "head", "largest_float64": 2e19}, NORM | {"module": "mlp"}]}, "arithmetic"),
        ({"first_nonfinite": GROUP, "float64": FINE | {"largest": 4e36}}, "range"),
        ({"first_nonfinite": GROUP | {"largest_input": 1e3}}, "arithmetic"),
        ({"first_nonfinite": None, "float64": FINE | {"largest": 2e19}}, "range"),
        ({"first_nonfinite": None}, "unknown"),
        ({"float64": FINE | {"narrow": ["mse_loss in loss"]}}, "unknown"),
        ({"float64": None}, "unknown"),
    ],
)
def test_the_repeat_in_float64_decides_the_kind_of_a_death(changes: dict[str, Any], kind: str) -> None:
    assert kind in KINDS
    assert death_of(answer(**changes)).kind == kind


@pytest.mark.parametrize(
    ("first", "place"),
    [
        (PLACE, "norm"),
        (PLACE | {"pass": "backward"}, "gradient of norm"),
        (GROUP, "norm"),
        (PLACE | {"module": "loss", "operation": "mse_loss"}, "loss"),
        (PLACE | {"module": "blocks.0.ssm", "operation": "scan_states"}, "recurrence"),
        (PLACE | {"module": "blocks.0.ssm", "operation": "mul", "eigenvalue": None}, "layer"),
        (PLACE | {"module": "head", "operation": "addmm", "eigenvalue": None}, "rest of the network"),
        (PLACE | {"pass": "update"}, "update"),
        (None, "nowhere in the network"),
    ],
)
def test_the_place_is_the_part_of_the_network_that_made_the_first_non_finite_result(first: Any, place: str) -> None:
    assert death_of(answer(first_nonfinite=first)).place == place


def test_the_other_map_is_named() -> None:
    death = death_of(answer(counterfactuals=[trial("other_map", True, **{"model.reparameterization.name": "softplus"})]))
    assert (death.other, death.other_map, death.frozen) == (True, "softplus", None)


def test_trials_say_nothing_if_the_unchanged_run_lived() -> None:
    trials = [trial("recurrence_frozen", True), trial("tenth_of_rate", False)]
    assert death_of(answer(counterfactuals=trials)).frozen is True
    death = death_of(answer(counterfactuals=[*trials, trial("unchanged", True)]))
    assert (death.frozen, death.tenth) == (None, None)


def test_trials_that_are_not_comparable_say_nothing() -> None:
    trials = [trial("recurrence_frozen", True), trial("unchanged", False)]
    assert death_of(answer(counterfactuals=[one | {"comparable": True} for one in trials])).frozen is True
    assert death_of(answer(counterfactuals=[one | {"comparable": False} for one in trials])).frozen is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "off"}, "the server allows no autopsies"),
        ({"state": "failed", "reason": "it died twice", "step": None}, "it died twice"),
        ({"refused": "The bits differ."}, "The bits differ."),
    ],
)
def test_without_findings_nothing_is_claimed(changes: dict[str, Any], reason: str) -> None:
    death = death_of(answer(**changes))
    assert (death.reason, death.kind, death.frozen) == (reason, "unknown", None)
